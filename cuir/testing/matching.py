"""assert_matches: a kernel against a PyTorch function on one problem, under several schedules.

One problem of a kernel on the GPU, judged as a run in the interpreter is.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..arguments.binding import TORCH
from ..attn.verification.numeric import judge
from ..attn.verification.problems import Case
from ..checking.checked import Checked, Const
from ..checking.checker import check, pick_kernel
from ..checking.const_defaults import fill_consts
from ..interp import Schedule
from ..runtime.compiled import compile
from ..spec.function_specification import FunctionSpecification, Value
from ..spec.specification import LENGTHS, Lengths, Specification
from ..syntax.caller_values import program_of
from ..syntax.nodes import Program
from ..syntax.printer import show
from ..text.diagnostics import CuirError
from ..verification import verify
from ..verification.blame import blame
from ..verification.function_judge import check_function
from ..verification.inputs import FunctionLaunch, list_applicable_kinds
from ..verification.on_gpu import make_fault, move_to_device
from ..verification.schedules import NUMBER_GRIDS
from ..verification.spec_dispatch import (
    AnyCase,
    AnyLaunch,
    check_case,
    prepare_launch,
    prepare_specification,
    require_compared,
    require_judgeable,
    shrink_error,
)
from ..verification.values.cases import Draw
from .session_settings import MismatchError, identify, is_within_hypothesis, make_failure, run_once, session


def check_on_gpu(
    program: Program, checked: Checked, spec: FunctionSpecification | Specification, case: AnyCase, device: str = "cuda"
) -> None:
    """Compile the kernel, launch it on a problem and judge its outputs.

    Raises CuirError as `check_case`, U5xx without a GPU or nvcc, and V403 for a fault that the driver reports.
    """
    compiled, problem = compile(checked), prepare_launch(program, checked, spec, case, poison=True)

    def execute(launch: AnyLaunch) -> None:
        arguments = move_to_device(launch.arguments(), device)
        try:
            compiled.launch(arguments)
            results = {name: arguments[name].cpu() for name in launch.outputs}
        except RuntimeError as error:
            raise make_fault(checked, error, str(case)) from error
        for name, x in results.items():
            launch.outputs[name].copy_(x)

    if isinstance(problem, FunctionLaunch):
        assert isinstance(spec, FunctionSpecification) and isinstance(case, Draw)
        check_function(checked, spec, problem, case, execute)
        return
    execute(problem)
    assert isinstance(spec, Specification) and isinstance(case, Case)
    judge(problem, spec, case, checked.origin.span)


Kernel = Program | Checked | str | os.PathLike[str]
Function = Callable[..., Any] | FunctionSpecification | Specification | str


@dataclass(frozen=True)
class _Problem:
    """One problem (dims and inputs) of a checked kernel, and the text of the assertion that repeats it."""

    program: Program
    checked: Checked
    spec: FunctionSpecification | Specification
    case: AnyCase
    call: str

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """Tensors that the caller gave."""
        return dict(self.case.tensors) if isinstance(self.case, Draw) else {}


def assert_matches(
    kernel: Kernel,
    function: Function,
    values: Mapping[str, Value] | None = None,
    *,
    kind: str = "normal",
    seed: int = 0,
    schedules: int | tuple[str, ...] | None = None,
    consts: Mapping[str, Const] | None = None,
    **dims: int,
) -> None:
    """Assert that a kernel computes a PyTorch function, and has no race or deadlock, on a CPU.

    With dims or values it runs one problem under some schedules. Without them it is `cuir.verify` at level quick.

    Args:
        kernel: a program, a checked kernel, a function decorated with `@cuir.kernel`, or the path of a file.
        function: takes by name what the kernel reads, and returns what it writes (see `FunctionSpecification`);
            or an attention's mods (`Specification`).
        values: tensors and scalars by the kernel's names; the others are drawn. Tensors have the kernel's dtypes, and
            their shapes give dims.
        kind: how tensors are drawn: "normal", "large", "ties", "zero", ... (docs/testing.md).
        seed: of what is drawn, and of the schedules.
        schedules: their number (the default is that of `--cuir-schedules`), or their names.
        consts: const parameters; others have the defaults of `cuir.verify`.
        dims: a length for each dim of the kernel.

    Raises:
        MismatchError: (an AssertionError) numbers differ by more than PyTorch's own error allows, or a run has a fault.
        CuirError: the call is wrong.
    """
    __tracebackhide__ = True
    if isinstance(kernel, Checked):
        consts, kernel = {**kernel.consts, **(consts or {})}, kernel.program
    program = program_of(kernel, "testing.assert_matches")
    picked = pick_kernel(program, None)
    all_consts = fill_consts(picked, consts or {})
    if not dims and not values:
        _assert_verified(program, function, all_consts)
        return
    names = _list_schedules(session.schedules if schedules is None else schedules, seed)
    written = values or {}

    def run() -> MismatchError | None:
        checked = check(program, None, all_consts)
        spec = prepare_specification(function, picked, program, all_consts)
        require_judgeable(checked, spec)
        return _run(_make_problem(program, checked, spec, written, kind, seed, dims), names)

    key = show(program), picked.name, identify(function), str(all_consts), kind, seed, names, str(dims), _digest(written)
    failure = run_once(key, run)
    if failure is not None:
        raise failure from None


def _assert_verified(program: Program, function: Function, consts: Mapping[str, Const]) -> None:
    """Verify at level quick. Raises MismatchError."""
    __tracebackhide__ = True
    report = verify(program, function, consts=consts)
    if not report.ok:
        failed = next(s for s in report.stages if s.verdict == "failed")
        raise make_failure(
            f"`{report.kernel}` is wrong ({failed.name})", CuirError(failed.diagnostics), "cuir.verify, or assert_matches without dims"
        )


def _list_schedules(schedules: int | tuple[str, ...], seed: int) -> tuple[str, ...]:
    """Return names of schedules: in order first, then random and adversarial ones in turn."""
    if isinstance(schedules, int):
        if schedules < 1:
            raise CuirError.of("U113", f"schedules is a number of at least 1, or names, found {schedules}")
        return ("in_order", *(f"{('adversarial', 'random')[i % 2]}:{seed + i}" for i in range(schedules - 1)))
    return tuple(schedules)


def _make_problem(
    program: Program,
    checked: Checked,
    spec: FunctionSpecification | Specification,
    values: Mapping[str, Value],
    kind: str,
    seed: int,
    dims: Mapping[str, int],
) -> _Problem:
    """Return the problem. Raises CuirError U113 for values and dims that do not fit the kernel."""
    needed = checked.dims or (LENGTHS if isinstance(spec, Specification) else ())
    sizes = _complete_dims(checked, tuple(needed), values, dims)
    options = [f"{n}={v}" for n, v in dims.items()]
    options += [f"kind={kind!r}"] * (kind != "normal") + [f"seed={seed}"] * bool(seed)
    call = f"assert_matches({', '.join([checked.name, '...', *['values'] * bool(values), *options])}"
    if isinstance(spec, Specification):
        if values:
            raise CuirError.of("U113", "mods capture their tensors; values are for functions", hint="give dims alone: B, H, HK, M, N")
        return _Problem(program, checked, spec, Case("one problem", Lengths(**sizes), kind, seed), call)  # type: ignore[arg-type]
    kinds = list_applicable_kinds(checked, spec)
    if kind not in kinds:
        raise CuirError.of("U113", f"tensors of `{checked.name}` cannot be drawn of kind {kind!r}", hint=f"these apply: {', '.join(kinds)}")
    scalars = tuple((n, v) for n, v in values.items() if not isinstance(v, torch.Tensor))
    tensors = tuple((n, v) for n, v in values.items() if isinstance(v, torch.Tensor))
    return _Problem(program, checked, spec, Draw("one problem", sizes, kind, seed, scalars=scalars, tensors=tensors), call)


def _complete_dims(checked: Checked, needed: tuple[str, ...], values: Mapping[str, Value], dims: Mapping[str, int]) -> dict[str, int]:
    """Return the length of each needed dim, from the arguments and from the shapes of tensors."""
    tensors, scalars = {t.name: t for t in checked.tensors}, {s.name for s in checked.scalars}
    sources: dict[str, tuple[int, str]] = {n: (v, "the argument") for n, v in dims.items()}
    for name, value in values.items():
        if name not in tensors and name not in scalars:
            raise CuirError.of(
                "U113", f"`{checked.name}` has no parameter {name}", hint=f"it has {', '.join([*tensors, *sorted(scalars)])}"
            )
        if not isinstance(value, torch.Tensor):
            continue
        if name not in tensors:
            raise CuirError.of("U113", f"`{name}` of `{checked.name}` is a scalar, found a tensor of shape {tuple(value.shape)}")
        declared = tensors[name]
        if value.dtype != TORCH[declared.dtype] or value.dim() != len(declared.dims):
            raise CuirError.of(
                "U113",
                f"`{name}` of `{checked.name}` is a tensor of {TORCH[declared.dtype]} with {len(declared.dims)} dims, "
                f"found {value.dtype} of shape {tuple(value.shape)}",
            )
        for dim, size in zip(declared.dims, value.shape):
            expected_size, source = sources.setdefault(dim, (size, f"the shape of {name}")) if isinstance(dim, str) else (dim, "the kernel")
            if expected_size != size:
                raise CuirError.of("U113", f"{dim} is {expected_size} by {source}, and {size} by the shape of {name}")
    if unknown := [n for n in sources if n not in needed]:
        raise CuirError.of("U113", f"`{checked.name}` has no dim {', '.join(unknown)}", hint=f"its dims are {', '.join(needed)}")
    if missing := [n for n in needed if n not in sources]:
        raise CuirError.of(
            "U113",
            f"assert_matches takes the length of each dim, found none of {', '.join(missing)}",
            hint=", ".join(f"{n}=..." for n in missing),
        )
    for n, (size, _) in sources.items():
        if type(size) is not int or size < 0:
            raise CuirError.of("U113", f"the length of {n} is an integer of at least 0, found {size!r}")
    return {n: sources[n][0] for n in needed}


def _run(problem: _Problem, schedules: tuple[str, ...]) -> MismatchError | None:
    """Run the problem under each schedule, and on the GPU if asked for; return the first failure.

    The session says whether the GPU is asked for.
    """
    for number, name in enumerate(schedules):
        if (failure := _run_schedule(problem, name, number)) is not None:
            return failure
    return _run_on_gpu(problem) if session.gpu else None


def _run_schedule(problem: _Problem, name: str, number: int) -> MismatchError | None:
    """Run the problem under one schedule; return a failure."""
    schedule, grid = Schedule.parse(name), NUMBER_GRIDS[number % len(NUMBER_GRIDS)]
    try:
        rows = check_case(problem.program, problem.checked, problem.spec, problem.case, schedule, grid)
        require_compared(problem.checked, problem.spec, rows)
    except CuirError as error:
        if error.diagnostics[0].code.startswith(("X", "U")):
            raise
        wrong, case = error.diagnostics[0].code in ("V301", "V302"), problem.case
        if wrong and not is_within_hypothesis() and not problem.tensors:
            error = shrink_error(problem.program, problem.checked, problem.spec, case, error, grid=grid)
        elif wrong:
            launch = prepare_launch(problem.program, problem.checked, problem.spec, case)
            error = blame(problem.checked, problem.spec, launch, error)
        title = f"`{problem.checked.name}` differs from `{problem.spec.name}`" if wrong else f"`{problem.checked.name}` goes wrong"
        return make_failure(f"{title}, schedule {name}", error, f"{problem.call}, schedules=({name!r},))")
    return None


def _run_on_gpu(problem: _Problem) -> MismatchError | None:
    """Compile the kernel, run the problem on the GPU, and judge its numbers; return a failure."""
    try:
        check_on_gpu(problem.program, problem.checked, problem.spec, problem.case)
    except CuirError as error:
        if error.diagnostics[0].code.startswith(("X", "U")):
            raise
        return make_failure(
            f"`{problem.checked.name}` differs from `{problem.spec.name}` on the GPU", error, f"{problem.call}) with --cuir-gpu"
        )
    return None


def _digest(values: Mapping[str, Value]) -> str:
    """Return a digest of names and bits."""
    digest = hashlib.sha256()
    for name, value in sorted(values.items()):
        bits = value.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode()
        digest.update(name.encode() + bits)
    return digest.hexdigest()
