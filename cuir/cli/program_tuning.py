"""Option `--model` of tune: schedules that a model (or a file) proposes, verified and timed.

Each is timed beside the best so far. The pass is in llm/; here are output and files.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..text.diagnostics import CuirError, Diagnostic
from .live_view import ProgressLine
from .output import make_styled_text, print_errors, print_json, stderr, stdout

if TYPE_CHECKING:
    from llm.loop import Verdict
    from llm.passes.tune import Tuned, Tuning

    from ..attn.splicing.splice import TransferResult
    from ..checking.checked import Const
    from ..performance.search import Outcome
    from ..performance.search.compiling import BuildResult
    from ..performance.search.settings_contest import Contender, Entry
    from ..performance.search.space import Space
    from ..performance.timing.problem import Shape
    from ..syntax.nodes import Program
    from .model_options import Asking
    from .tuning_targets import TuningTarget, TuningWords


@dataclass(frozen=True)
class ProgramSearch:
    """Search of programs for a target and a shape.

    Attributes:
        name: The target on the command line.
        target: What it names.
        shape: Of the problem.
        words: Parameters of the variant, and values of consts.
        dtype: Of the tensors.
        rounds: Rounds of timing.
        jobs: Processes that compile.
        missing: Why nothing can be timed on this machine, "" if it can.
        samples, attempts: Conversations, and answers of each.
    """

    name: str
    target: TuningTarget
    shape: Shape
    words: TuningWords
    dtype: str
    rounds: int
    jobs: int | None
    missing: str
    samples: int
    attempts: int


class Considered(NamedTuple):
    """A proposal: its file, and the verdict on it."""

    name: str
    verdict: Verdict


def tune_programs(search: ProgramSearch, proposals: Sequence[str], asking: Asking | None, folder: Path, as_json: bool) -> int:
    """Search programs instead of values of consts; return the exit code.

    Args:
        search: Target and rules.
        proposals: Programs that enter before the model is asked.
        asking: The model to ask, if any.
        folder: For programs and reports.
        as_json: Print JSON data.
    """
    from llm.limited_processes import LimitedProcesses
    from llm.passes.transfer import describe_specification
    from llm.passes.tune import Target, Tuned, Tuning, tune

    from ..attn.splicing.splice import transfer
    from ..bridging import attention_consts
    from ..performance.search.candidate_runs import RemoteDevice
    from ..performance.timing.worker import Worker
    from .command_inputs import agreeing, output_folder, read_consts, read_program, read_variant
    from .conversations_view import Conversations
    from .worker_process import COMMAND

    (variant, source, space), shape, dtype, missing = search.target, search.shape, search.dtype, search.missing
    load = partial(read_variant, variant, search.words.param)
    spec = load()
    result = transfer(read_program(source), spec)
    fixed = agreeing(attention_consts(dtype, shape.D, shape.DV), read_consts(search.words.const), f"--dtype {dtype} and --shape {shape}")
    proposed_programs = [(name, read_program(name)) for name in proposals]
    job = {
        "variant": variant,
        "parameters": list(search.words.param),
        "origin": source,
        "kernel": result.kernel,
        "shape": list(shape.as_tuple()),
        "dtype": dtype,
    }
    words = (
        f"{describe_specification(spec)}\n\nIts values are parameters of the kernel already."
        if spec.captured
        else describe_specification(spec)
    )
    goal = Target(
        result.program,
        result.kernel,
        load,
        fixed,
        words,
        _describe_timing(shape, dtype, missing),
        _find_search_results(result.program, shape, dtype, fixed),
    )
    output_folder(folder, "tuned", search.name, source)
    with LimitedProcesses() as processes, Worker(COMMAND) as worker:
        with ProgressLine(f"{search.name} for {shape} ({dtype})", as_json) as line:
            line.update("the program itself")
            tuning = Tuning.of(
                goal,
                _setting(result, space, shape, fixed),
                None if missing else RemoteDevice(worker, job),
                _compiler(search.jobs, bool(missing)),
                processes,
                search.rounds,
            )
            considered = []
            for number, (name, program) in enumerate(proposed_programs):
                line.update(f"{name}, {number + 1} of {len(proposed_programs)} proposals", number / len(proposed_programs))
                considered.append(Considered(name, _consider(tuning, name, program)))
        assert tuning.start is not None
        if asking is None:
            tuned = Tuned(tuning.contest.best, tuning.start, tuple(tuning.contest.entries), (), "every proposal was considered")
        else:
            with Conversations(f"{search.name} for {shape}, schedules by {asking.asks.model}", quiet=as_json) as view:
                tuned = tune(tuning, asking.asks, asking.budget, search.samples, search.attempts, view, asking.recorder)
    files = _write_files(tuned, folder, spec.name)
    good = any(e.status in ("faster", "slower", "unranked") for e in tuned.entries) or any(_is_unchanged(c.verdict) for c in considered)
    if as_json:
        print_json(_data(tuned, search, considered, asking, files) | {"ok": good})
    else:
        _print(tuned, considered, asking, missing, folder, files)
    return 0 if good else 1


def _setting(result: TransferResult, space: Space, shape: Shape, fixed: Mapping[str, Const]) -> Mapping[str, Const]:
    """Return the setting that a call of this shape gets."""
    from ..performance.selection import Evidence, choose

    near = space.restrict(result.program, result.kernel).narrow({"DV": shape.DV, **fixed})
    return choose(
        result.program,
        fixed,
        shape.lengths,
        Evidence(near.starts, near.exact),
        numbers=result.numbers,
        mask=result.mask,
        kernel=result.kernel,
    ).setting


def _find_search_results(program: Program, shape: Shape, dtype: str, fixed: Mapping[str, Const]) -> tuple[Outcome, ...]:
    """Return results of a search over consts for this program, shape and GPU.

    They are those of settings with these consts.
    """
    from ..performance.search import Outcome
    from ..performance.search.tuning_records import Journal, Key, device

    journal = Journal.of(Key.of(device()[0], program, dtype, shape, fixed), shape)
    outcomes = map(Outcome.of, journal.entries.values())
    return tuple(o for o in outcomes if fixed.items() <= o.consts.items())


def _compiler(jobs: int | None, optional: bool) -> Callable[[str, str, Mapping[str, Const]], BuildResult] | None:
    """Return a compiler of one program; None without nvcc where it is not needed for a run.

    Raises CuirError U503, U504.
    """
    from ..performance.search import compile_all
    from ..runtime.nvcc import find_compiler, include_dir

    try:
        find_compiler()
        include_dir()
    except CuirError:
        if optional:
            return None
        raise

    def compile_program(text: str, kernel: str, consts: Mapping[str, Const]) -> BuildResult:
        """Compile a program."""
        return next(result for _, result in compile_all([(text, kernel, consts)], jobs))

    return compile_program


def _consider(tuning: Tuning, name: str, program: Program) -> Verdict:
    """Return the verdict on a program from a file; its diagnostics point into that file."""
    from llm.places import in_file
    from llm.prompting import fence

    from ..syntax.printer import show

    best = tuning.contest.best
    verdict = tuning.consider(best.text, fence(show(program), "cuir"))
    if _is_unchanged(verdict):
        than = "start" if tuning.start is not None and best is tuning.start.contender else "best so far"
        same = Diagnostic("V502", f"{name} is the same program as the {than}: not timed", hint="change what is to be tried")
        return replace(verdict, diagnostics=(same,))
    return replace(verdict, diagnostics=in_file(verdict.diagnostics, program, f"{name} (definitions that it does not hold)"))


def _is_unchanged(verdict: Verdict) -> bool:
    """Return whether a right program did not enter the contest, since it equals the best one."""
    return verdict.right and "entry" not in verdict.extra


def _describe_timing(shape: Shape, dtype: str, missing: str) -> str:
    """Describe what is timed, for the prompt."""
    from ..performance.search.tuning_records import device

    problem = f"One forward pass in {dtype} with B={shape.B}, H={shape.H}, HK={shape.HK}, M={shape.M}, N={shape.N}, D={shape.D}"
    if missing:
        return f"{problem}, on an H200 (132 multiprocessors). No GPU is here now: your program is verified and compiled, and the first that is right ends this; it is timed elsewhere."
    return f"{problem}: the median time of a call with a cold L2 cache, in turns with the best so far, on {device()[0]} ({device()[1]} multiprocessors)."


def _write_files(tuned: Tuned, folder: Path, variant: str) -> dict[str, str]:
    """Write the best program with its difference to the start, if it is faster, and unranked proposals.

    Each states the setting that it was verified for.
    """
    from ..performance.search.space import label

    def add_setting(contender: Contender) -> str:
        """Return a program below a comment on its setting."""
        return f"# Verified against {variant} for {label(contender.consts)}; for no other values.\n{contender.text}"

    texts: dict[str, str] = {}
    if tuned.faster:
        texts["tuned.cuir"] = add_setting(tuned.best)
        texts["tuned.diff"] = _difference(tuned.start.contender, tuned.best)
    for number, entry in enumerate((e for e in tuned.entries if e.status == "unranked"), 1):
        texts[f"proposal-{number}.cuir"] = add_setting(entry.contender)
        texts[f"proposal-{number}.diff"] = _difference(tuned.start.contender, entry.contender)
    for name, text in texts.items():
        try:
            (folder / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise CuirError.of("U108", f"cannot write {folder / name}: {error.strerror}", hint="name another folder with --out") from None
    return {name: str(folder / name) for name in texts}


def _difference(before: Contender, after: Contender) -> str:
    """Return the difference of two programs."""
    lines = difflib.unified_diff(before.text.splitlines(), after.text.splitlines(), "start", "proposal", lineterm="")
    return "\n".join(lines) + "\n"


def _data(
    tuned: Tuned, search: ProgramSearch, considered: Sequence[Considered], asking: Asking | None, files: Mapping[str, str]
) -> dict[str, object]:
    """Return the results as JSON data."""
    from .conversations_view import as_data, drift

    return {
        "diagnostics": [],
        "missing": search.missing or None,
        "target": search.name,
        "shape": list(search.shape.as_tuple()),
        "dtype": search.dtype,
        "model": asking.asks.model if asking else None,
        "spent": asking.budget.as_json() if asking else None,
        "why": tuned.why,
        "faster": tuned.faster,
        "speedup": round(tuned.speedup, 5),
        "start": tuned.start.as_json(),
        "entries": [e.as_json() for e in tuned.entries],
        "proposals": [{"file": name, "stage": v.stage, "diagnostics": [d.as_json() for d in v.diagnostics]} for name, v in considered],
        "rounds": [as_data(o, asking.asks) for o in tuned.outcomes] if asking else [],
        "drift": (drift(asking.asks) if asking else "") or None,
        "files": dict(files),
    }


def _print(
    tuned: Tuned, considered: Sequence[Considered], asking: Asking | None, missing: str, folder: Path, files: Mapping[str, str]
) -> None:
    """Print the programs that were verified, refused answers, and the best."""
    from .conversations_view import print_drift
    from .tables import print_diff, print_table

    console = stdout()
    print_table(
        "programs that were verified",
        ("what", "milliseconds", "the best's then", "registers", "spills", "changed consts"),
        [_row("start", tuned.start, tuned.start), *(_row(f"{n}: {e.status}", e, tuned.start) for n, e in enumerate(tuned.entries, 1))],
    )
    refused = [(f"{a.sample}.{a.number}", a) for o in tuned.outcomes for s in o.samples for a in s.attempts if not a.verdict.right]
    if refused:
        print_table(
            "answers that were refused",
            ("sample", "stage", "codes"),
            [(name, a.verdict.stage, " ".join(dict.fromkeys(d.code for d in a.verdict.diagnostics))) for name, a in refused],
        )
    for name, verdict in considered:
        if not verdict.right:
            stderr().print(f"{name} is refused ({verdict.stage}):", soft_wrap=True)
            print_errors(verdict.diagnostics, False)
        elif _is_unchanged(verdict):
            console.print(verdict.diagnostics[0].message, highlight=False, soft_wrap=True)
    if tuned.faster:
        print_diff((folder / "tuned.diff").read_text(encoding="utf-8").splitlines())
        console.print(
            make_styled_text(("faster", "bold green"), f"  {tuned.speedup:.3f} x the start, in {files['tuned.cuir']}"),
            highlight=False,
            soft_wrap=True,
        )
    elif missing:
        console.print(
            make_styled_text(
                ("not ranked", "yellow"),
                f"  {missing}: registers and traces do not tell which of two right programs is faster, so none is kept",
            ),
            highlight=False,
            soft_wrap=True,
        )
        if files:
            names = " ".join(f"--proposal {path}" for name, path in files.items() if name.endswith(".cuir"))
            console.print(
                f"  to time them on a Hopper GPU: the same command with {names} in place of the model", highlight=False, soft_wrap=True
            )
    else:
        console.print("nothing is faster than the start, which stays", highlight=False, soft_wrap=True)
    spent = f"; {asking.budget.summary()}" if asking else ""
    console.print(f"{tuned.why}{spent}", highlight=False, soft_wrap=True)
    if asking is not None:
        print_drift(asking.asks)


def _row(name: str, entry: Entry, start: Entry) -> tuple[str, ...]:
    """Return a line of the table of programs."""
    from statistics import median

    from ..performance.search.space import label

    build, consts = entry.contender.built, entry.contender.consts
    times = [f"{median(t):.4f}" if t else "" for t in (entry.milliseconds, entry.best)]
    changed = label({n: v for n, v in consts.items() if start.contender.consts.get(n) != v}) if entry is not start else label(consts)
    resources = (str(build.registers), str(build.spills)) if build is not None and not build.refused else ("", "")
    return (name, *times, *resources, changed)
