"""Adaptation of an expert kernel to a specification: transfer, check, verify, lower, compile, time.

The order of the steps and the output folder are decided here; every step is a library function.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from .attn.capture.call_inputs import ATTENDED, DTYPES_OF_ATTENTION, check_head_dims
from .checking.checked import Checked, Const
from .checking.checker import pick_kernel
from .checking.const_defaults import consts_as_json, describe_consts, fill_consts
from .syntax.caller_values import program_of
from .syntax.nodes import Program
from .syntax.types import DTYPES
from .text.diagnostics import CuirError, Diagnostic
from .text.jsontext import to_json
from .text.notebook import ShownInNotebooks
from .text.source import Span

if TYPE_CHECKING:
    from .attn.splicing.splice import TransferResult
    from .lowering.lowered import Cuda
    from .performance.suites.result_rows import Comparison
    from .spec.specification import Specification
    from .verification.report import VerifyReport

Status = Literal["running", "done", "failed", "skipped", "interrupted"]
Demand = Literal["auto", "yes", "no"]
STEPS = ("transfer", "check", "verify", "lower", "compile", "run")


@dataclass
class Step:
    """Step of the job: its status, and its result in a line."""

    name: str
    status: Status = "running"
    detail: str = ""
    seconds: float = 0.0


@dataclass
class BridgeReport(ShownInNotebooks):
    """Report of the job.

    `ok`: nothing failed. A step left out for want of a compiler or a GPU is no failure; `missing` says what it would
    add.
    """

    html_renderer = "pages.bridge_page:render_steps"

    variant: str
    kernel: str = ""
    consts: Mapping[str, Const] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    diagnostics: tuple[Diagnostic, ...] = ()
    missing: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    diff: str = ""
    verification: VerifyReport | None = None
    resources: dict[str, object] | None = None
    timing: Comparison | None = None
    setting: dict[str, object] | None = None

    def __repr__(self) -> str:
        steps = ", ".join(f"{s.name} {s.status}" for s in self.steps)
        return f"BridgeReport({self.variant}, {describe_consts(self.consts)}: {steps})"

    def __bool__(self) -> bool:
        """Return `ok`, so that `assert bridge(...)` holds only for a right result."""
        return self.ok

    @property
    def ok(self) -> bool:
        """True if no step failed."""
        return not self.diagnostics and all(s.status in ("done", "skipped") for s in self.steps)

    def as_json(self) -> dict[str, object]:
        """Return the report as JSON data."""
        return {
            "ok": self.ok,
            "variant": self.variant,
            "kernel": self.kernel,
            "consts": consts_as_json(self.consts),
            "steps": [{"name": s.name, "status": s.status, "detail": s.detail, "seconds": round(s.seconds, 3)} for s in self.steps],
            "diagnostics": [d.as_json() for d in self.diagnostics],
            "missing": self.missing,
            "notes": self.notes,
            "diff": self.diff,
            "files": self.files,
            "verification": self.verification.as_json() if self.verification is not None else None,
            "resources": self.resources,
            "timing": self.timing,
            "setting": self.setting,
        }


Progress = Callable[[Step], None]


def bridge(
    specification: Specification,
    origin: Program | str | os.PathLike[str],
    *,
    kernel: str | None = None,
    consts: Mapping[str, Const] | None = None,
    level: Literal["quick", "full"] = "quick",
    out: Path | None = None,
    compile: Demand = "auto",
    run: Demand = "auto",
    progress: Progress | None = None,
) -> BridgeReport:
    """Adapt `origin` to the variant that `specification` describes, in STEPS.

    A wrong program ends the job with its diagnostics in the report; a wrong call raises CuirError.

    Args:
        specification: Variant to compute.
        origin: Expert kernel: a program or a path.
        kernel: Name of the kernel, if the program has several.
        consts: Values of const parameters; others have the default of the origin, then that of `fill_consts` (T:
            f16, D: 128).
        level: Effort of verification.
        out: Folder for the programs, their difference, the verification report, the CUDA source, the cubin, the
            resource report.
        compile: "auto" leaves the step out where nvcc is missing, "yes" makes that an error, "no" leaves it out.
        run: The same for the run on a Hopper GPU.
        progress: Called with each step, at its start and end.
    """
    program = program_of(origin, "bridge")
    const_values = fill_consts(pick_kernel(program, kernel), consts or {})
    job = _Job(specification, program, kernel, const_values, level, out, progress or (lambda step: None))
    return job.run(compile, run)


class _Failed(Exception):
    """Exception of a step that found the program wrong; the report says why."""


class _Job:
    """State of the job."""

    def __init__(
        self,
        spec: Specification,
        origin: Program,
        kernel: str | None,
        consts: dict[str, Const],
        level: Literal["quick", "full"],
        out: Path | None,
        progress: Progress,
    ) -> None:
        self.spec, self.origin, self.kernel, self.consts, self.level, self.out, self.progress = (
            spec,
            origin,
            kernel,
            consts,
            level,
            out,
            progress,
        )
        self.report = BridgeReport(spec.name, consts=consts)

    def run(self, compile: Demand, run: Demand) -> BridgeReport:
        """Run all steps; return the report."""
        self.demands(compile, run)
        try:
            transferred = self.transfer()
            self.choose(transferred)
            checked = self.check(transferred.program)
            self.verify(transferred.program)
            cuda = self.lower(checked)
            self.compile(cuda, compile)
            self.time(checked, transferred, run)
        except _Failed:
            pass
        self.summary()
        return self.report

    def demands(self, compile: Demand, run: Demand) -> None:
        """Check that demanded steps are possible, before any work is done."""
        if compile == "yes":
            from .runtime.nvcc import find_compiler

            find_compiler()
        if run == "yes":
            from .performance.timing.gpu import require_gpu

            require_gpu('leave out --run (in Python run="yes") to do everything else')

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """Return the context of a step: its status, time, and diagnostics."""
        step = Step(name)
        self.report.steps.append(step)
        self.progress(step)
        start = time.perf_counter()
        try:
            yield step
            step.status = "done" if step.status == "running" else step.status
        except CuirError as error:
            step.status, step.detail = "failed", error.diagnostics[0].message
            self.report.diagnostics = self.place_diagnostics(error.diagnostics)
            raise _Failed from error
        except BaseException as error:
            step.status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            raise
        finally:
            step.seconds = time.perf_counter() - start
            self.progress(step)

    def place_diagnostics(self, diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
        """Return diagnostics with the path of the adapted program, which passes know by name only."""
        name = f"{self.spec.name}.cuir"
        path = self.report.files.get(name, name)

        def move_span(span: Span | None) -> Span | None:
            if span is None:
                return None
            source = replace(span.source, name=path) if span.source.name == name else span.source
            return replace(span, source=source, via=move_span(span.via))

        return tuple(
            replace(d, span=move_span(d.span), notes=tuple(replace(n, span=move_span(n.span)) for n in d.notes)) for d in diagnostics
        )

    def write(self, name: str, content: str | bytes) -> None:
        """Write a file of the output folder, if there is one."""
        if self.out is None:
            return
        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if content.endswith("\n") or not content else content + "\n", encoding="utf-8")
        self.report.files[name] = str(path)

    # ---- the steps
    def transfer(self) -> TransferResult:
        """Transfer the origin."""
        from .attn.splicing.splice import transfer
        from .syntax.printer import show

        with self.step("transfer") as step:
            self.write("origin.cuir", show(self.origin))
            result = transfer(self.origin, self.spec)
            self.write(f"{self.spec.name}.cuir", result.text)
            self.write(f"{self.spec.name}.diff", result.diff)
            self.report.notes += list(result.notes)
            self.report.diff = result.diff
            added = sum(line.startswith("+") and not line.startswith("+++") for line in result.diff.splitlines())
            removed = sum(line.startswith("-") and not line.startswith("---") for line in result.diff.splitlines())
            step.detail = f"{removed} lines of the origin became {added}" if added or removed else "the origin is this variant already"
        return result

    def choose(self, transferred: TransferResult) -> None:
        """Choose the setting that a call of the timed problem would get; the caller's consts take precedence."""
        from .performance.selection import choose
        from .performance.suites.contest import BATCH, HEADS, LENGTH
        from .spec.specification import Lengths

        at = Lengths(BATCH, HEADS, HEADS, LENGTH, LENGTH)
        initial_consts, choice = (
            self.consts,
            choose(transferred.program, self.consts, at, numbers=transferred.numbers, mask=transferred.mask, kernel=transferred.kernel),
        )
        self.consts, self.report.setting = choice.consts, choice.as_json()
        if choice.consts != initial_consts:
            self.report.notes.append(str(choice))

    def check(self, program: Program) -> Checked:
        """Check the program."""
        from .checking.checker import check

        with self.step("check") as step:
            checked = check(program, self.kernel, self.consts)
            self.report.kernel, self.report.consts = checked.name, checked.consts
            step.detail = f"{len(checked.roles)} role{'s' * (len(checked.roles) != 1)}, {checked.threads} threads, {checked.shared_bytes:,} bytes of shared memory"
        return checked

    def verify(self, program: Program) -> None:
        """Verify the program."""
        from .verification import verify

        with self.step("verify") as step:

            def tell(detail: str) -> None:
                step.detail = detail
                self.progress(step)

            report = verify(program, self.spec, kernel=self.kernel, consts=self.consts, level=self.level, progress=tell)
            self.report.verification = report
            self.write("verification.json", to_json(report.as_json()))
            self.write("verification.md", report.as_markdown())
            questions = [stage for stage in report.stages if stage.verdict != "skipped"]
            step.detail = (
                f"{len(questions)} questions, all answered with yes; {report.runs} runs under different schedules"
                if report.ok
                else report.summary()
            )
            if not report.ok:
                step.status = "failed"
                self.report.diagnostics = self.place_diagnostics(report.diagnostics)
        if not report.ok:
            raise _Failed

    def lower(self, checked: Checked) -> Cuda:
        """Lower the kernel to CUDA."""
        from .lowering import lower
        from .runtime.launchable import find_lowered

        with self.step("lower") as step:
            cuda = find_lowered(checked) or lower(checked)  # the verification has lowered it
            self.write(f"{self.spec.name}.cu", cuda.source)
            step.detail = f"{len(cuda.source.splitlines())} lines of CUDA C++"
        return cuda

    def compile(self, cuda: Cuda, demand: Demand) -> None:
        """Compile the CUDA source, if demanded or possible."""
        from .runtime.launchable import describe_spills
        from .runtime.nvcc import compile_cuda

        if demand == "no":
            self.skip("compile", "not asked for")
            return
        with self.step("compile") as step:
            try:
                compiled = compile_cuda(cuda)
            except CuirError as error:
                if demand == "yes" or not _absent(error):
                    raise
                step.status, step.detail = "skipped", error.diagnostics[0].message
                self.report.missing.append(f"{step.detail}: it would add the cubin and the resource report; {error.diagnostics[0].hint}")
                return
            self.report.resources = compiled.resources.as_json()
            self.write(f"{self.spec.name}.cubin", compiled.cubin)
            self.write("resources.json", to_json(self.report.resources))
            self.write("resources.txt", compiled.resources.as_text())
            step.detail = compiled.resources.summary()
            if spilled := describe_spills(cuda, compiled.resources):
                self.report.notes.append(f"warning: {spilled}; `cuir tune` finds the fastest")

    def time(self, checked: Checked, transferred: TransferResult, demand: Demand) -> None:
        """Time the kernel on a GPU, if demanded or possible."""
        from .performance.suites.contest import compare
        from .performance.timing.gpu import explain_missing_gpu

        reason = explain_missing_gpu(checked.arch)
        if demand == "no" or (demand == "auto" and reason):
            self.skip("run", reason if demand == "auto" else "not asked for")
            if demand == "auto":
                self.report.missing.append(
                    f"a GPU that runs {checked.arch} would add a run on the device, checked against PyTorch, and its time beside "
                    "scaled_dot_product_attention and FlexAttention"
                )
            return
        with self.step("run") as step:
            self.report.timing = compare(checked, transferred)
            step.detail = self.report.timing["summary"]

    def skip(self, name: str, why: str) -> None:
        """Record a step that is left out."""
        step = Step(name, "skipped", why)
        self.report.steps.append(step)
        self.progress(step)

    def summary(self) -> None:
        """Write the summary."""
        if self.out is not None:
            self.report.files["summary.json"] = str(self.out / "summary.json")
            self.write("summary.json", to_json(self.report.as_json()))


def attention_consts(dtype: str, head_dim: int, value_dim: int | None = None) -> dict[str, Const]:
    """Return T and D of an attention kernel, and DV where the head dim of values differs.

    Raises CuirError.
    """
    if DTYPES.get(dtype) not in ATTENDED:
        raise CuirError.of(
            "U109", f"attention kernels are for {DTYPES_OF_ATTENTION}, found `{dtype}`", hint="--dtype f16, --dtype bf16 or --dtype f32"
        )
    value_dim = head_dim if value_dim is None else value_dim
    check_head_dims(head_dim, value_dim)
    consts: dict[str, Const] = {"T": DTYPES[dtype], "D": head_dim}
    if value_dim != head_dim:
        consts["DV"] = value_dim
    return consts


def _absent(error: CuirError) -> bool:
    """Return whether an error says that the compiler is missing, rather than that it found a fault."""
    from .text.codes import CODES

    return all(d.code in CODES and CODES[d.code].call for d in error.diagnostics)
