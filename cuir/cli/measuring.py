"""Commands that need a GPU to be of full use: tune and bench. The work is in the library."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..text.diagnostics import CuirError
from .asking import Attempts, Cache, Model, Money, Record, Replay, Samples, Temperature, Timeout, Tokens
from .command_defaults import EXPERT
from .completion import SUITES, complete_suite, complete_target
from .jobs import Consts, Dtype, GivenDtype, Json, Origin, Parameters
from .output import print_json, stderr

if TYPE_CHECKING:
    from ..checking.checked import Const
    from ..performance.search import Outcome, Space, TuneReport
    from ..performance.search.cache import Key
    from ..performance.suites.reference import Reference
    from ..performance.timing.problem import Shape
    from ..variants import TransferResult

Limit = Annotated[float, typer.Option("--limit", min=0, help="seconds after which nothing new begins; the same command later goes on")]
Jobs = Annotated[
    int | None, typer.Option("--jobs", min=1, help="compilers at a time (left out: one a core, as far as memory goes)", show_default=False)
]
SECONDS = 600.0  # of a search, if nobody says otherwise
Fresh = Annotated[bool, typer.Option("--fresh", help="forget what an earlier run has found")]


def tune(
    targets: Annotated[list[str], typer.Argument(help="variants to adapt --origin to, or kernels to tune as they stand; with --variant the kernel to adapt", autocompletion=complete_target, show_default=False)],
    variant: Annotated[list[str] | None, typer.Option("--variant", help="what the kernel is adapted to and tuned for; several allowed", show_default=False)] = None,
    shape: Annotated[list[str] | None, typer.Option("--shape", help="B,H,HK,M,N,D; several allowed", show_default="2,32,32,8192,8192 with the file's D, else 128")] = None,
    param: Parameters = None, origin: Origin = EXPERT, dtype: GivenDtype = None, const: Consts = None,
    space: Annotated[Path | None, typer.Option("--space", help="values worth trying, as JSON (left out: NAME.tune.json beside the kernel)", show_default=False)] = None,
    limit: Annotated[float | None, typer.Option("--limit", min=0, help="seconds after which nothing new begins; the same command later goes on", show_default="600; none with --model")] = None,
    jobs: Jobs = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="of timing, all candidates in turns")] = 3,
    exhaustive: Annotated[bool, typer.Option("--exhaustive", help="every combination, instead of axis after axis around the best")] = False,
    choice: Annotated[bool, typer.Option("--choice", help="only say which setting a call of each shape gets, and why")] = False,
    gpu: Annotated[str | None, typer.Option("--gpu", help="with --choice: a GPU that is not here, as its maker calls it", show_default=False)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only list candidates, and why others do not fit")] = False,
    fresh: Fresh = False, model: Model = None, samples: Samples = 1, attempts: Attempts = 5, budget: Money = None, tokens: Tokens = None,
    temperature: Temperature = None, timeout: Timeout = 600,
    proposal: Annotated[list[str] | None, typer.Option("--proposal", help="a program to time beside the kernel, as a model's would be; several allowed", show_default=False)] = None,
    out: Annotated[Path | None, typer.Option("--out", help="with --model: folder for programs (left out: out/TARGET-tuned)", show_default=False)] = None,
    record: Record = None, replay: Replay = None, cache: Cache = None, as_json: Json = False,
) -> int:  # fmt: skip
    """Find the fastest values of const parameters for a shape, and keep them for bridge, run and the Python API; with --model, faster programs."""
    from ..checking.const_defaults import USUAL_DTYPE
    from ..performance.timing.gpu import explain_missing_gpu
    from ..performance.timing.problem import Shape as ShapeType
    from .asking import asked
    from .command_inputs import expert_for
    from .proposing import tune_programs

    shapes = [ShapeType.parse(s) for s in shape or ()]
    missing = "" if dry_run else explain_missing_gpu()
    if variant and (len(targets) != 1 or origin not in (EXPERT, targets[0])):
        named = f"`{' '.join(targets)}`" + (f" and --origin {origin}" if origin != EXPERT else "")
        raise CuirError.of(
            "U100", f"with --variant one kernel is adapted, found {named}", hint=f"cuir tune {targets[0]} --variant {variant[0]}"
        )
    origin = expert_for(origin, dtype or USUAL_DTYPE)
    kernel = targets[0] if variant else origin
    if model is not None or replay is not None or proposal:
        tuned_targets = variant or targets
        if len(tuned_targets) != 1 or len(shapes) > 1 or dry_run or exhaustive:
            raise CuirError.of(
                "U100",
                "programs are tuned for one target and one shape, without --dry-run and --exhaustive",
                hint="--model, --replay and --proposal stand for another search",
            )
        variant_name, source, known_space = _target(tuned_targets[0], kernel, space, bool(variant))
        shapes, dtype = _problems(source, shapes, dtype)
        task = {
            "pass": "tune",
            "target": tuned_targets[0],
            "variant": variant_name,
            "parameters": list(param or ()),
            "origin": source,
            "shape": list(shapes[0].as_tuple()),
            "dtype": dtype,
            "const": list(const or ()),
        }
        asking = (
            asked(task, model, record, replay, cache, temperature, timeout, budget, tokens)
            if model is not None or replay is not None
            else None
        )
        if asking is not None:
            asking.budget.seconds = limit
        return tune_programs(
            tuned_targets[0],
            variant_name,
            source,
            known_space,
            shapes[0],
            list(param or ()),
            dtype,
            list(const or ()),
            rounds,
            jobs,
            missing,
            list(proposal or ()),
            asking,
            samples,
            attempts,
            out if out is not None else Path("out") / f"{Path(tuned_targets[0]).stem}-tuned",
            as_json,
        )
    if record is not None or cache is not None or out is not None:
        raise CuirError.of("U100", "--record, --cache and --out are for schedules that a model proposes", hint="--model names one")
    if choice or gpu is not None:
        from .choosing import show_choices

        if not choice:
            raise CuirError.of("U100", "--gpu names the GPU of a choice that is shown", hint="--choice --gpu 'NVIDIA H200'")
        for target in variant or targets:
            variant_name, source, known_space = _target(target, kernel, space, bool(variant))
            problems, of = _problems(source, shapes, dtype)
            show_choices(target, variant_name, source, problems, list(param or ()), of, list(const or ()), gpu, known_space, as_json)
        return 0
    reports = []
    for target in variant or targets:
        problems, of = _problems(_target(target, kernel, space, bool(variant))[1], shapes, dtype)
        for problem in problems:
            reports.append(
                _tune_one(
                    target,
                    problem,
                    list(param or ()),
                    kernel,
                    bool(variant),
                    of,
                    list(const or ()),
                    space,
                    SECONDS if limit is None else limit,
                    jobs,
                    rounds,
                    exhaustive,
                    dry_run or bool(missing),
                    fresh,
                    as_json,
                )
            )
    if as_json:
        print_json({"ok": all(r["ok"] for r in reports), "diagnostics": [], "missing": missing or None, "tuned": reports})
    elif missing:
        stderr().print(
            f"left out: {missing}. A Hopper GPU would compile the candidates that fit, check each against float64, time them and keep the best.",
            soft_wrap=True,
        )
    return 0 if all(r["ok"] for r in reports) else 1


def _problems(source: str, shapes: Sequence[Shape], dtype: str | None) -> tuple[list[Shape], str]:
    """Return shapes and dtype of the command line.

    Without shapes it is one shape, with the head dim and the dtype that the file's kernel has by default.
    """
    from ..checking.const_defaults import USUAL_DTYPE, USUAL_HEAD_DIM, with_defaults
    from ..performance.timing.problem import Shape as ShapeType
    from ..verification.problems import is_attention
    from .command_inputs import read_program

    kernels = [k for k in read_program(source).kernels().values() if is_attention(k)]
    kernel_defaults = with_defaults(kernels[0], {}) if kernels else {}
    D = kernel_defaults.get("D", USUAL_HEAD_DIM)
    assert isinstance(D, int)
    return list(shapes) or [ShapeType(2, 32, 32, 8192, 8192, D)], dtype or str(kernel_defaults.get("T", USUAL_DTYPE))


def _tune_one(
    target: str,
    shape: Shape,
    param: list[str],
    origin: str,
    adapts: bool,
    dtype: str,
    const: list[str],
    space_file: Path | None,
    limit: float,
    jobs: int | None,
    rounds: int,
    exhaustive: bool,
    static: bool,
    fresh: bool,
    as_json: bool,
) -> dict[str, Any]:
    """Search the settings of one target and shape; return the report as JSON data."""
    from ..bridging import attention_consts
    from ..performance.search import compile_all, shape_class
    from ..performance.search import tune as search
    from ..performance.search.cache import Journal, Key, device, store_best
    from ..performance.search.candidate_runs import RemoteDevice
    from ..performance.search.space import plain
    from ..performance.timing.worker import Worker
    from .command_inputs import agreeing, read_consts, read_program
    from .interruption import goes_on_from
    from .measuring_view import TuneView, print_tuned
    from .worker_process import COMMAND

    variant, source, space = _target(target, origin, space_file, adapts)
    transferred = _transferred(variant, param, source)
    space.check_names(read_program(source), transferred.kernel)
    space = space.restrict(transferred.program, transferred.kernel)
    fixed = agreeing(attention_consts(dtype, shape.D, shape.DV), read_consts(const), f"--dtype {dtype} and --shape {shape}")
    arch, sms = device()
    key = Key.of(arch, transferred.program, dtype, shape, fixed)
    journal = Journal(None) if static else Journal.of(key, shape)
    if fresh:
        journal.clear()
    job = {
        "variant": variant,
        "parameters": param,
        "origin": source,
        "kernel": transferred.kernel,
        "shape": list(shape.as_tuple()),
        "dtype": dtype,
    }

    def compiled(settings: Sequence[Any]) -> Any:
        """Compile settings."""
        return compile_all([(transferred.text, transferred.kernel, s) for s in settings], jobs)

    def keep_best(best: Outcome) -> None:
        """Store the best setting in the cache."""
        from ..performance.timing.gpu import versions

        record = {
            "consts": plain(best.consts),
            "milliseconds": best.median,
            "shape": list(shape.as_tuple()),
            "target": target,
            **versions(),
        }
        store_best(key, shape_class(shape, sms), record)

    with goes_on_from(journal.path, fresh), TuneView(f"{target} for {shape} ({dtype})", as_json) as view, Worker(COMMAND) as worker:
        report = search(
            transferred.program,
            transferred.kernel,
            fixed,
            space,
            None if static else RemoteDevice(worker, job),
            compiled,
            journal=journal,
            limit=limit,
            rounds=rounds,
            exhaustive=exhaustive,
            tell=view,
            keep=None if static else keep_best,
        )
    if not as_json:
        print_tuned(report, static)
    return _tuned_json(target, shape, dtype, fixed, key, report, static)


def _tuned_json(
    target: str, shape: Shape, dtype: str, fixed: Mapping[str, Const], key: Key, report: TuneReport, static: bool
) -> dict[str, Any]:
    """Return a report as JSON data."""
    from ..checking.const_defaults import consts_as_json

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


def _target(name: str, origin: str, space_file: Path | None, adapts: bool = False) -> tuple[str, str, Space]:
    """Return variant, kernel to start from, and space of a target: a variant, or a kernel as it stands.

    `adapts`: it is a variant for sure. Raises CuirError.
    """
    import corpus

    from ..performance.search import Space
    from .command_inputs import read_program

    is_kernel = not adapts and (name in corpus.kernels() or name.endswith(".cuir"))
    source = name if is_kernel else origin
    if space_file is not None:
        place: Any = space_file
    elif source in corpus.spaces():
        place = corpus.spaces()[source]
    else:
        place = Path(source).with_suffix(".tune.json")
    try:
        text = place.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        read_program(source)  # a missing file is reported rather than its missing space
        raise CuirError.of(
            "U115",
            f"nothing says which values are worth trying for {source}: {place.name} cannot be read",
            hint="--space names a file; docs/tuning.md shows one",
        ) from None
    space = Space.parse(text, place.name)
    if is_kernel and not space.computes:
        raise CuirError.of(
            "U115",
            f"{place.name} does not say which variant {name} computes",
            hint='"computes": "causal", or give the variant and --origin',
        )
    return (space.computes if is_kernel else name), source, space


def _transferred(variant: str, param: Sequence[str], origin: str) -> TransferResult:
    """Transfer a kernel to a variant."""
    from ..variants import transfer
    from .command_inputs import read_program, read_variant

    return transfer(read_program(origin), read_variant(variant, param))


def bench(
    context: typer.Context,
    suite: Annotated[str, typer.Argument(help=f"{', '.join(SUITES[:-1])} or {SUITES[-1]}", autocompletion=complete_suite)] = "smoke",
    origin: Origin = EXPERT, dtype: Dtype = "f16", const: Consts = None,
    only: Annotated[list[str] | None, typer.Option("--only", help="a variant, a model or a length: leave out other cells; several allowed", show_default=False)] = None,
    peer: Annotated[list[str] | None, typer.Option("--peer", help="cudnn, fa2, fa3, fa4, cudnn_flex, dense, flex, compiled, otherwise, (of backward passes) deterministic or (of decode and varlen) flashinfer, settings, varlen_attn, instead of the suite's own; several allowed", show_default=False)] = None,
    reference: Annotated[Path | None, typer.Option("--reference", help="a folder with a kernel of your own (bench_ref.py) to time beside ours", show_default=False)] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", min=1, help="of timing (left out: the suite's)", show_default=False)] = None,
    limit: Limit = 3600.0, jobs: Jobs = None,
    out: Annotated[Path | None, typer.Option("--out", help="the results file (left out: benchmarks/results/SUITE-DEVICE-DATE.jsonl)", show_default=False)] = None,
    show: Annotated[bool, typer.Option("--show", help="measure nothing: the results in --out, with table and plot where there are none yet")] = False,
    fresh: Fresh = False, as_json: Json = False,
) -> int:  # fmt: skip
    """Time kernels of the corpus, the backward pass of `cuir.attention`, or calls of serving, beside cuDNN, FlashAttention, FlashInfer, FlexAttention and compiled PyTorch; every result is checked."""
    from ..bridging import attention_consts
    from ..performance.suites import Results
    from ..performance.suites import suite as find_suite
    from ..performance.suites.peers import check_peers, not_installed
    from ..performance.suites.reference import Reference
    from ..performance.suites.results import read
    from ..performance.timing.gpu import require_gpu, versions
    from .command_inputs import agreeing, expert_for, read_consts, results_file
    from .interruption import goes_on_from
    from .measuring_view import finish_bench
    from .option_conflicts import not_beside

    chosen = find_suite(suite)
    attention_consts(dtype, 128)
    origin = expert_for(origin, dtype)
    kind = chosen.kind
    absent = {} if peer else {n: why for n in chosen.peers if (why := not_installed(n, kind))}
    peers = tuple(peer) if peer else tuple(n for n in chosen.peers if n not in absent)
    check_peers(peers, kind)
    if kind != "forward":
        not_beside(context, "suite", "times what a call gets", "origin", "const", "reference", "jobs")
    if show:
        if out is None:
            raise CuirError.of("U100", "--show needs the results file", hint="--out FILE")
        not_beside(
            context, "show", "measures nothing", "origin", "dtype", "const", "only", "peer", "reference", "rounds", "limit", "jobs", "fresh"
        )
        head, rows = read(out)
        if head["suite"] != suite:
            raise CuirError.of(
                "U119",
                f"{out} holds results of the suite {head['suite']}, not of {suite}",
                hint=f"cuir bench {head['suite']} --show --out {out}",
            )
        return finish_bench(head, rows, out, True, as_json, anew=False)
    cells = _only(chosen.cells(), only or ())
    named_consts = read_consts(const or ())
    for cell in cells:
        agreeing(attention_consts(dtype, cell.shape.D), named_consts, f"--dtype {dtype} and the problem {cell.shape} of the suite")
    outside = Reference(reference) if reference is not None else None
    if out is not None:
        results_file(out)
    require_gpu(
        "a benchmark times compiled kernels: it needs a Hopper GPU and nvcc; without them, --show --out FILE shows the results in a file"
    )
    device_versions = versions()
    path = results_file(
        out or Path("benchmarks") / "results" / f"{suite}-{_slug(device_versions['device'])}-{device_versions['date']}.jsonl"
    )
    of = {"origin": origin} if kind == "forward" else {"pass": kind}
    head = {"suite": suite, **device_versions, "dtype": dtype, **of, "command": _command(sys.argv[1:])}
    results = Results(path, head, fresh)
    if results.head["suite"] != suite:
        raise CuirError.of(
            "U119",
            f"{path} holds results of the suite {results.head['suite']}, not of {suite}",
            hint="--out names another file, --fresh starts it anew",
        )
    with goes_on_from(path, fresh):
        left_out = [f"{name} is left out: {why}; {needs}" for name, (why, needs) in absent.items()]
        if kind != "forward":
            complete = _bench_calls(kind, cells, results, dtype, peers, left_out, rounds or chosen.rounds, limit, as_json)
        else:
            complete = _bench_cells(
                cells,
                results,
                origin,
                dtype,
                list(const or ()),
                peers,
                left_out,
                reference,
                outside,
                rounds or chosen.rounds,
                limit,
                jobs,
                as_json,
            )
    return finish_bench(results.head, results.rows, path, complete, as_json, rows_shown=not as_json)


def _bench_cells(
    cells: Any,
    results: Any,
    origin: str,
    dtype: str,
    const: list[str],
    peers: Sequence[str],
    left_out: Sequence[str],
    folder: Path | None,
    reference: Reference | None,
    rounds: int,
    limit: float,
    jobs: int | None,
    as_json: bool,
) -> bool:
    """Time cells of kernels; return whether all are done.

    Settings of a cell are those of the command line, else what a call gets; where nothing is known of such calls, every
    start of the kernel's space. `left_out`: see `_bench_calls`.
    """
    from ..bridging import attention_consts
    from ..performance.search import compile_all
    from ..performance.search.compiling import default_jobs
    from ..performance.selection import choose
    from ..performance.suites.priming import primed, requests
    from ..performance.suites.running import Planned, run_cells
    from ..performance.timing.worker import Worker
    from .command_inputs import read_consts
    from .measuring_view import BenchView
    from .worker_process import COMMAND, transferred

    named_consts = read_consts(const)
    space = _target(origin, origin, None)[2] if not named_consts else None

    def plan(cell: Any) -> Planned:
        """Return the settings of a cell."""
        result = transferred(cell.variant, tuple(cell.arguments), origin)
        base = attention_consts(dtype, cell.shape.D)
        if named_consts:
            settings = [named_consts]
        else:
            near = space.restrict(result.program, result.kernel).narrow({"DV": cell.shape.DV, **base}) if space else None
            starts: list[dict[str, Const]] = [dict(s) for s in near.starts] if near else [{}]
            exact = near is not None and near.exact
            chosen = choose(
                result.program,
                base,
                cell.shape.lengths,
                numbers=result.numbers,
                mask=result.mask,
                starts=starts,
                exact=exact,
                kernel=result.kernel,
            )
            settings = starts if chosen.source == "start" else [chosen.setting]
        return Planned(cell, result.text, result.kernel, tuple({**base, **s} for s in settings))

    processes, place = jobs or default_jobs(), str(folder) if folder else None

    def prime(missing: Sequence[Any]) -> Any:
        """Prepare peers and references for cells."""
        plain = {(c.shape.D, c.variant == "causal") for c in missing if c.variant in ("full", "causal")}
        names = [n for dim, causal in sorted(plain) for n in reference.fitting(dim, causal)] if reference and dtype == "f16" else []
        return primed(requests(missing, dtype, peers, place, names, processes), lambda: Worker(COMMAND), processes)

    with BenchView(f"{len(cells)} cells", as_json) as view, Worker(COMMAND) as worker:
        for line in left_out:
            view.note(line)
        return run_cells(
            cells,
            results,
            plan,
            lambda work: compile_all(work, jobs),
            prime,
            lambda request, seconds: worker.ask({"origin": origin, **request}, seconds),
            dtype=dtype,
            peers=peers,
            reference=place,
            rounds=rounds,
            limit=limit,
            tell=view,
        )


def _bench_calls(
    kind: str, cells: Any, results: Any, dtype: str, peers: Sequence[str], left_out: Sequence[str], rounds: int, limit: float, as_json: bool
) -> bool:
    """Time suites in which ours is a call; return whether all are done.

    `left_out` are notes on contenders that are left out.
    """
    from ..performance.suites.running import run_calls
    from ..performance.timing.worker import Worker
    from .measuring_view import BenchView
    from .worker_process import COMMAND

    with BenchView(f"{len(cells)} cells", as_json) as view, Worker(COMMAND) as worker:
        for line in left_out:
            view.note(line)
        return run_calls(
            cells,
            results,
            lambda request, seconds: worker.ask(request, seconds),
            do=kind,
            dtype=dtype,
            peers=peers,
            rounds=rounds,
            limit=limit,
            tell=view,
        )


def _only(cells: list[Any], words: Sequence[str]) -> list[Any]:
    """Return the cells that fit every kind of word (variant, model, length) of which one is given."""
    kinds = [{c.variant for c in cells}, {c.model for c in cells}, {str(c.shape.N) for c in cells}]
    unknown = [w for w in words if not any(w in kind for kind in kinds)]
    if unknown:
        raise CuirError.of(
            "U100",
            f"--only is a variant, a model or a length of the suite, found `{unknown[0]}`",
            hint="; ".join(", ".join(sorted(k)) for k in kinds),
        )
    selected = [kind & set(words) or kind for kind in kinds]
    return [c for c in cells if all(x in w for x, w in zip((c.variant, c.model, str(c.shape.N)), selected))]


def _command(words: Sequence[str]) -> str:
    """Return the command line without options that do not matter to the figures.

    These are output files and formats, and the place of a reference.
    """
    relevant: list[str] = []
    for word, before in zip(words, ("", *words)):
        if before == "--reference" or word.startswith("--reference="):
            relevant += ["DIR"] if before == "--reference" else ["--reference", "DIR"]
        elif word not in ("--out", "--fresh", "--json") and not word.startswith("--out=") and before != "--out":
            relevant.append(word)
    return shlex.join(["cuir", *relevant])


def _slug(device: str | None) -> str:
    """Return a device's name as part of a file name."""
    return (device or "gpu").lower().replace("nvidia", "").strip().replace(" ", "-")
