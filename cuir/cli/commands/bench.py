"""Command `bench`: suites of kernels and calls, timed beside other libraries."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...text.diagnostics import CuirError
from ..command_defaults import EXPERT
from ..completion import SUITES, complete_suite
from ..options import Consts, Dtype, Fresh, HtmlReport, Jobs, Json, Limit, On, Origin
from ..tuning_targets import read_target

if TYPE_CHECKING:
    from concurrent.futures import Future
    from contextlib import AbstractContextManager

    from ...checking.checked import Const
    from ...performance.search import Space
    from ...performance.suites.cell_benchmark import Cell
    from ...performance.suites.reference import Reference
    from ...performance.suites.result_rows import Row
    from ...performance.suites.suite_run import SuiteRun
    from ...performance.timing.worker import Worker
    from ..measurement_views import BenchView


def bench(
    context: typer.Context,
    suite: Annotated[str, typer.Argument(help=f"{', '.join(SUITES[:-1])} or {SUITES[-1]}", autocompletion=complete_suite)] = "smoke",
    origin: Origin = EXPERT, dtype: Dtype = "f16", const: Consts = None,
    only: Annotated[list[str] | None, typer.Option("--only", metavar="WORD", help="a variant, a model or a length: leave out other cells; several allowed", show_default=False)] = None,
    peer: Annotated[list[str] | None, typer.Option("--peer", metavar="NAME", help="what to time beside: cudnn, fa2, fa3, fa4, cudnn_flex, dense, flex, compiled, otherwise; of backward passes deterministic; of decode and varlen flashinfer, settings, varlen_attn; several allowed", show_default="the suite's")] = None,
    reference: Annotated[Path | None, typer.Option("--reference", metavar="FOLDER", help="a folder with a kernel of your own (bench_ref.py) to time beside ours", show_default=False)] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", min=1, metavar="N", help="rounds of timing", show_default="the suite's")] = None,
    limit: Limit = 3600.0, jobs: Jobs = None, on: On = "local",
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="the results file", show_default="benchmarks/results/SUITE-DEVICE-DATE.jsonl")] = None,
    show: Annotated[bool, typer.Option("--show", help="measure nothing: the results in --out, with table and plot where there are none yet")] = False,
    fresh: Fresh = False, page: HtmlReport = None, as_json: Json = False,
) -> int:  # fmt: skip
    """Time kernels of the corpus, the backward pass of `cuir.attention`, or calls of serving.

    They run beside cuDNN, FlashAttention, FlashInfer, FlexAttention and compiled PyTorch; every result is checked.

    Examples:
        cuir bench smoke
        cuir bench masks --only sliding_window --peer flex
        cuir bench --show --out results.jsonl
    """
    from ...attn.kernels.card_kernels import choose_target, get_current_device
    from ...bridging import attention_consts
    from ...performance.suites import Results
    from ...performance.suites import suite as find_suite
    from ...performance.suites.peers import check_peers, not_installed
    from ...performance.suites.reference import Reference
    from ...performance.suites.results import read
    from ...performance.suites.suite_run import SuiteRun, run_calls
    from ...performance.timing.gpu import require_gpu, versions
    from ...performance.timing.worker import Worker
    from ..bench_tasks import spread_over
    from ..command_inputs import agreeing, expert_for, read_consts, results_file
    from ..measurement_views import BenchView, finish_bench
    from ..options import not_beside
    from ..process_setup import goes_on_from
    from ..task_places import use_executor
    from ..worker_process import COMMAND

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
            context,
            "show",
            "measures nothing",
            "origin",
            "dtype",
            "const",
            "only",
            "peer",
            "reference",
            "rounds",
            "limit",
            "jobs",
            "on",
            "fresh",
        )
        head, rows = read(out)
        if head["suite"] != suite:
            raise CuirError.of(
                "U119",
                f"{out} holds results of the suite {head['suite']}, not of {suite}",
                hint=f"cuir bench {head['suite']} --show --out {out}",
            )
        _write_page(page, head, rows)
        return finish_bench(head, rows, out, True, as_json, anew=False)
    cells = _only(chosen.cells(), only or ())
    named_consts = read_consts(const or ())
    for cell in cells:
        agreeing(attention_consts(dtype, cell.shape.D), named_consts, f"--dtype {dtype} and the problem {cell.shape} of the suite")
    outside = Reference(reference) if reference is not None else None
    if out is not None:
        results_file(out)
    require_gpu(
        "a benchmark times compiled kernels: it needs a GPU that `cuir doctor` names kernels for, and a compiler; without them, --show --out FILE shows the results in a file",
        choose_target(get_current_device()).arch,
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
    if on != "local":
        not_beside(context, "on", "measures on the GPUs of a cluster", "limit", "jobs")
    run = SuiteRun(cells, results, dtype, peers, rounds or chosen.rounds, limit, str(reference) if reference else None)
    space = read_target(origin, origin, None).space if kind == "forward" and not named_consts else None
    with (
        goes_on_from(path, fresh),
        BenchView(f"{len(cells)} cells", as_json) as view,
        Worker(COMMAND) as worker,
        use_executor(on, jobs, view) as executor,
    ):
        if on != "local":
            run = replace(run, spread=spread_over(executor, device_versions["device"], origin))
        for name, (cause, needs) in absent.items():
            view.warn(f"{name} is left out: {cause}; {needs}")
        if kind != "forward":
            complete = run_calls(run, kind, worker.ask, view)
        else:
            complete = _bench_cells(run, origin, named_consts, space, outside, jobs, worker, view)
    _write_page(page, results.head, results.rows, complete)
    return finish_bench(results.head, results.rows, path, complete, as_json, rows_shown=view.shown)


def _write_page(page: Path | None, head: Mapping[str, object], rows: Sequence[Row], complete: bool = True) -> None:
    """Write the page of --html, if it is requested. Raises CuirError U108."""
    if page is not None:
        from ...pages.bench_page import render_bench_page
        from ...pages.page import write_page

        write_page(page, render_bench_page(head, rows, complete))


def _bench_cells(
    run: SuiteRun,
    origin: str,
    named_consts: Mapping[str, Const],
    space: Space | None,
    reference: Reference | None,
    jobs: int | None,
    worker: Worker,
    view: BenchView,
) -> bool:
    """Time cells of kernels; return whether all are done.

    Settings of a cell are those of the command line, else what a call gets; where nothing is known of such calls, every
    start of the kernel's space.
    """
    from ...bridging import attention_consts
    from ...performance.search import compile_all
    from ...performance.search.compiling import default_jobs
    from ...performance.selection import Evidence, choose
    from ...performance.suites.suite_run import Planned, answer_ahead, requests, run_cells
    from ...performance.timing.worker import Worker as Process
    from ..worker_process import COMMAND, transfer_variant

    def plan(cell: Cell) -> Planned:
        """Return the settings of a cell."""
        result = transfer_variant(cell.variant, tuple(cell.arguments), origin)
        base = attention_consts(run.dtype, cell.shape.D)
        if named_consts:
            settings = [dict(named_consts)]
        else:
            near = space.restrict(result.program, result.kernel).narrow({"DV": cell.shape.DV, **base}) if space else None
            starts: list[dict[str, Const]] = [dict(s) for s in near.starts] if near else [{}]
            exact = near is not None and near.exact
            chosen = choose(
                result.program,
                base,
                cell.shape.lengths,
                Evidence(starts, exact),
                numbers=result.numbers,
                mask=result.mask,
                kernel=result.kernel,
            )
            settings = starts if chosen.source == "start" else [chosen.setting]
        return Planned(cell, result.text, result.kernel, tuple({**base, **s} for s in settings))

    processes = jobs or default_jobs()

    def prime(missing: Sequence[Cell]) -> AbstractContextManager[Sequence[Future[str]]]:
        """Prepare peers and references for cells."""
        plain = {(c.shape.D, c.variant == "causal") for c in missing if c.variant in ("full", "causal")}
        names = [n for dim, causal in sorted(plain) for n in reference.fitting(dim, causal)] if reference and run.dtype == "f16" else []
        return answer_ahead(requests(missing, run.dtype, run.peers, run.reference, names, processes), lambda: Process(COMMAND), processes)

    return run_cells(
        run,
        plan,
        lambda work: compile_all(work, jobs),
        prime,
        lambda request, seconds: worker.ask({"origin": origin, **request}, seconds),
        view,
    )


def _only(cells: list[Cell], words: Sequence[str]) -> list[Cell]:
    """Return the cells that match the words of --only: variants, models and lengths.

    A cell matches if it has one of the words of each kind that is given.
    """
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
    """Return the command line without options that do not affect the measurements.

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
