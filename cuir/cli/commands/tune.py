"""Command `tune`: the fastest settings of a kernel, or with a model faster programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...text.diagnostics import CuirError
from ..command_defaults import EXPERT
from ..completion import complete_target
from ..model_options import ASKING, Attempts, Cache, Model, ModelOptions, Money, Record, Replay, Samples, Temperature, Timeout, Tokens
from ..options import Consts, Fresh, GivenDtype, Jobs, Json, On, Origin, Parameters
from ..output import print_json, stderr
from ..tuning_targets import TuningTarget, TuningWords, read_target, transfer_origin

if TYPE_CHECKING:
    from ...checking.checked import Const
    from ...performance.search import Outcome, SearchOptions, TuneReport
    from ...performance.search.compiling import BuildResult
    from ...performance.search.search import Bench, Device
    from ...performance.search.space import Consts as Setting
    from ...performance.search.tuning_records import Key
    from ...performance.timing.problem import Shape

SEARCH, LISTING = "How to search", "Without a GPU"  # panels of the help
SECONDS = 600.0  # of a search, if nobody says otherwise


def tune(
    targets: Annotated[list[str], typer.Argument(help="variants to adapt --origin to, or kernels to tune as they stand; with --variant the kernel to adapt", autocompletion=complete_target, show_default=False)],
    variant: Annotated[list[str] | None, typer.Option("--variant", metavar="VARIANT", help="what the kernel is adapted to and tuned for; several allowed", show_default=False)] = None,
    shape: Annotated[list[str] | None, typer.Option("--shape", metavar="SHAPE", help="B,H,HK,M,N,D; several allowed", show_default="2,32,32,8192,8192 with the file's D, else 128")] = None,
    param: Parameters = None, origin: Origin = EXPERT, dtype: GivenDtype = None, const: Consts = None,
    space: Annotated[Path | None, typer.Option("--space", metavar="FILE", help="values worth trying, as JSON", show_default="NAME.tune.json beside the kernel", rich_help_panel=SEARCH)] = None,
    limit: Annotated[float | None, typer.Option("--limit", min=0, metavar="SECONDS", help="time after which nothing new begins; the same command later goes on", show_default="600; none with --model")] = None,
    jobs: Jobs = None, on: On = "local",
    rounds: Annotated[int, typer.Option("--rounds", min=1, metavar="N", help="rounds of timing, all candidates in turns", rich_help_panel=SEARCH)] = 3,
    exhaustive: Annotated[bool, typer.Option("--exhaustive", help="try every combination, not only axis after axis around the best", rich_help_panel=SEARCH)] = False,
    choice: Annotated[bool, typer.Option("--choice", help="only say which setting a call of each shape gets, and why", rich_help_panel=LISTING)] = False,
    gpu: Annotated[str | None, typer.Option("--gpu", metavar="NAME", help="with --choice: for a GPU that is not here, such as 'NVIDIA H200'", show_default=False, rich_help_panel=LISTING)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only list candidates, and why others do not fit", rich_help_panel=LISTING)] = False,
    fresh: Fresh = False, model: Model = None, samples: Samples = 1, attempts: Attempts = 5, budget: Money = None, tokens: Tokens = None,
    temperature: Temperature = None, timeout: Timeout = 600,
    proposal: Annotated[list[str] | None, typer.Option("--proposal", metavar="FILE", help="a program to time beside the kernel, as a model's would be; several allowed", show_default=False, rich_help_panel=ASKING)] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FOLDER", help="with --model: folder for programs", show_default="out/TARGET-tuned", rich_help_panel=ASKING)] = None,
    record: Record = None, replay: Replay = None, cache: Cache = None, as_json: Json = False,
) -> int:  # fmt: skip
    """Find the fastest tile sizes, stages and other consts for a shape, and keep them for later calls.

    With --model, find faster programs.

    Examples:
        cuir tune causal --shape 2,32,8,4096,4096,128
        cuir tune causal --dry-run
        cuir tune causal --choice --gpu 'NVIDIA H200'
    """
    from ...campaigns.executors import make_executor
    from ...checking.const_defaults import USUAL_DTYPE
    from ...performance.search import SearchOptions
    from ...performance.timing.gpu import explain_missing_gpu
    from ...performance.timing.problem import Shape as ShapeType
    from ..choice_view import find_gpu, show_choices
    from ..command_inputs import expert_for, read_program
    from ..model_options import open_model
    from ..program_tuning import ProgramSearch, tune_programs

    make_executor(on)  # refuses other places
    if on != "local" and (model is not None or replay is not None or proposal or choice):
        raise CuirError.of("U100", f"--on {on} is for the search of settings, which is not asked for", hint="leave out --on")
    words = TuningWords(tuple(param or ()), tuple(const or ()))
    shapes = [ShapeType.parse(s) for s in shape or ()]
    missing = "" if dry_run else explain_missing_gpu()
    if variant and (len(targets) != 1 or origin not in (EXPERT, targets[0])):
        named = f"`{' '.join(targets)}`" + (f" and --origin {origin}" if origin != EXPERT else "")
        raise CuirError.of(
            "U100", f"with --variant one kernel is adapted, found {named}", hint=f"cuir tune {targets[0]} --variant {variant[0]}"
        )
    named_gpu = find_gpu(gpu) if choice else None
    arch = named_gpu[1].arch if named_gpu else None
    origin = expert_for(origin, dtype or USUAL_DTYPE, *(dim for s in shapes for dim in (s.D, s.DV or 0)), arch=arch)
    kernel = targets[0] if variant else origin
    if model is not None or replay is not None or proposal:
        tuned_targets = variant or targets
        if len(tuned_targets) != 1 or len(shapes) > 1 or dry_run or exhaustive:
            raise CuirError.of(
                "U100",
                "programs are tuned for one target and one shape, without --dry-run and --exhaustive",
                hint="--model, --replay and --proposal stand for another search",
            )
        chosen = read_target(tuned_targets[0], kernel, space, bool(variant))
        shapes, dtype = _problems(chosen.source, shapes, dtype)
        task = {
            "pass": "tune",
            "target": tuned_targets[0],
            "variant": chosen.variant,
            "parameters": list(words.param),
            "origin": chosen.source,
            "shape": list(shapes[0].as_tuple()),
            "dtype": dtype,
            "const": list(words.const),
        }
        asking = (
            open_model(task, ModelOptions(model, record, replay, cache, temperature, timeout, budget, tokens))
            if model is not None or replay is not None
            else None
        )
        if asking is not None:
            asking.budget.seconds = limit
        problem = ProgramSearch(tuned_targets[0], chosen, shapes[0], words, dtype, rounds, jobs, missing, samples, attempts)
        folder = out if out is not None else Path("out") / f"{Path(tuned_targets[0]).stem}-tuned"
        return tune_programs(problem, tuple(proposal or ()), asking, folder, as_json)
    if record is not None or cache is not None or out is not None:
        raise CuirError.of("U100", "--record, --cache and --out are for schedules that a model proposes", hint="--model names one")
    if gpu is not None and not choice:
        raise CuirError.of("U100", "--gpu names the GPU of a choice that is shown", hint="--choice --gpu 'NVIDIA H200'")
    if named_gpu is not None:
        for target in variant or targets:
            chosen = read_target(target, kernel, space, bool(variant))
            problems, of = _problems(chosen.source, shapes, dtype)
            show_choices(target, chosen, problems, words, of, named_gpu, as_json)
        return 0
    reports = []
    for target in variant or targets:
        chosen = read_target(target, kernel, space, bool(variant))
        archs = dict.fromkeys(k.arch for k in read_program(chosen.source).kernels().values())
        absent = "" if dry_run else next(filter(None, map(explain_missing_gpu, archs)), "")
        missing = missing or absent
        problems, of = _problems(chosen.source, shapes, dtype)
        options = SearchOptions(SECONDS if limit is None else limit, rounds, exhaustive)
        run = _SettingsSearch(target, chosen, words, of, options, (on, jobs), dry_run or bool(absent), fresh)
        reports += [_tune_one(run, problem, as_json) for problem in problems]
    if as_json:
        print_json({"ok": all(r["ok"] for r in reports), "diagnostics": [], "missing": missing or None, "tuned": reports})
    elif missing:
        stderr().print(
            f"left out: {missing}. A GPU that runs the kernel would compile the candidates that fit, check each against float64, time them and keep the best.",
            soft_wrap=True,
        )
    return 0 if all(r["ok"] for r in reports) else 1


def _problems(source: str, shapes: Sequence[Shape], dtype: str | None) -> tuple[list[Shape], str]:
    """Return shapes and dtype of the command line.

    Without shapes it is one shape, with the head dim and the dtype that the file's kernel has by default.
    """
    from ...attn.verification.problems import is_attention
    from ...checking.const_defaults import USUAL_DTYPE, USUAL_HEAD_DIM, with_defaults
    from ...performance.timing.problem import Shape as ShapeType
    from ..command_inputs import read_program

    kernels = [k for k in read_program(source).kernels().values() if is_attention(k)]
    kernel_defaults = with_defaults(kernels[0], {}) if kernels else {}
    D = kernel_defaults.get("D", USUAL_HEAD_DIM)
    assert isinstance(D, int)
    return list(shapes) or [ShapeType(2, 32, 32, 8192, 8192, D)], dtype or str(kernel_defaults.get("T", USUAL_DTYPE))


@dataclass(frozen=True)
class _SettingsSearch:
    """Search of the settings of a target.

    Attributes:
        name: The target on the command line.
        target: What it names.
        words: Parameters of the variant, and values of consts.
        dtype: Of the tensors.
        options: Limits and extent.
        places: Option --on, and processes that compile.
        static: Candidates are only listed.
        fresh: Results of earlier searches are dropped.
    """

    name: str
    target: TuningTarget
    words: TuningWords
    dtype: str
    options: SearchOptions
    places: tuple[str, int | None]
    static: bool
    fresh: bool


def _tune_one(run: _SettingsSearch, shape: Shape, as_json: bool) -> dict[str, object]:
    """Search the settings of one target and shape; return the report as JSON data."""
    from ...bridging import attention_consts
    from ...checking.const_defaults import describe_consts
    from ...performance.search import SearchTask, compile_all, shape_class
    from ...performance.search import tune as search
    from ...performance.search.candidate_runs import RemoteDevice
    from ...performance.search.space import plain
    from ...performance.search.tuning_records import Journal, Key, device, store_best
    from ...performance.timing.gpu import versions
    from ...performance.timing.worker import Worker
    from ..command_inputs import agreeing, read_consts, read_program
    from ..measurement_views import TuneView, print_tuned
    from ..process_setup import goes_on_from
    from ..task_places import use_executor
    from ..tuning_tasks import ClusterBench
    from ..verification_tasks import make_absolute
    from ..worker_process import COMMAND

    variant, source, space = run.target
    dtype, static = run.dtype, run.static
    transferred = transfer_origin(variant, run.words.param, source)
    space.check_names(read_program(source), transferred.kernel)
    space = space.restrict(transferred.program, transferred.kernel)
    fixed = agreeing(attention_consts(dtype, shape.D, shape.DV), read_consts(run.words.const), f"--dtype {dtype} and --shape {shape}")
    arch, sms = device()
    key = Key.of(arch, transferred.program, dtype, shape, fixed)
    journal = Journal(None) if static else Journal.of(key, shape)
    if run.fresh:
        journal.clear()
    job = {
        "variant": variant,
        "parameters": list(run.words.param),
        "origin": source,
        "kernel": transferred.kernel,
        "shape": list(shape.as_tuple()),
        "dtype": dtype,
    }

    def compile_settings(settings: Sequence[Setting]) -> Iterator[tuple[int, BuildResult]]:
        """Compile settings."""
        return compile_all([(transferred.text, transferred.kernel, s) for s in settings], jobs, executor if spread else None)

    def keep_best(best: Outcome) -> None:
        """Store the best setting in the cache."""
        record = {
            "consts": plain(best.consts),
            "milliseconds": best.median,
            "shape": list(shape.as_tuple()),
            "target": run.name,
            **versions(),
        }
        store_best(key, shape_class(shape, sms), record)

    on, jobs = run.places
    spread = on != "local" and not static
    with (
        goes_on_from(journal.path, run.fresh),
        TuneView(f"{run.name} for {shape} ({dtype})", as_json) as view,
        Worker(COMMAND) as worker,
        use_executor(on if spread else "local", jobs, view) as executor,
    ):
        device_of_search: Device | Bench = RemoteDevice(worker, job)
        if spread:
            named = {**job, "variant": make_absolute(variant), "origin": make_absolute(source)}
            device_of_search = ClusterBench(executor, named, versions()["device"])
        report = search(
            SearchTask(transferred.program, transferred.kernel, fixed, space),
            None if static else device_of_search,
            compile_settings,
            run.options,
            journal=journal,
            tell=view,
            keep=None if static else keep_best,
        )
    if not as_json:
        print_tuned(report, static, describe_consts(fixed))
    return _make_report_json(run.name, shape, dtype, fixed, key, report, static)


def _make_report_json(
    target: str, shape: Shape, dtype: str, fixed: Mapping[str, Const], key: Key, report: TuneReport, static: bool
) -> dict[str, object]:
    """Return a report as JSON data."""
    from ...checking.const_defaults import consts_as_json

    fits = report.count("fits") if static else report.count("timed")
    return {
        "ok": fits > 0,
        "target": target,
        "shape": list(shape.as_tuple()),
        "dtype": dtype,
        "consts": consts_as_json(fixed),
        "device": key.arch or None,
        "complete": report.complete,
        "seconds": round(report.seconds, 1),
        "best": report.best.as_json() if report.best else None,
        "candidates": [o.as_json() for o in report.outcomes],
    }
