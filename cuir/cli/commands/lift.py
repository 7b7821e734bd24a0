"""Command `lift`: expert CUDA to CuIR. The pass is llm/passes/lift.py; here are options and output."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from ...ops.limits import list_architectures
from ...text.diagnostics import CuirError
from ..completion import complete_cuda, complete_words
from ..conversations_view import as_data, print_drift
from ..model_options import (
    ASKING,
    Asking,
    Attempts,
    Cache,
    Model,
    ModelOptions,
    Money,
    Record,
    Replay,
    Samples,
    Temperature,
    Timeout,
    Tokens,
    open_model,
)
from ..options import Consts, GivenDtype, HeadDim, Json, Level, Parameters, read_level
from ..output import print_errors, print_json, stderr, stdout
from ..process_setup import configure_process

if TYPE_CHECKING:
    from llm.expert_source import ExpertSource
    from llm.passes.lift import Lifted, Step
    from llm.ptx.compile_source import Build
    from llm.reading import Reading

    from ...checking.checked import Const
    from ...spec.function_specification import AnySpecification

READING = "Reading the source"  # panel of the help


def lift(
    source: Annotated[
        str, typer.Argument(help="the CUDA source: a file, or a name out of corpus/cuda", autocompletion=complete_cuda, show_default=False)
    ],
    spec: Annotated[
        str | None,
        typer.Option(
            "--spec",
            help="what it computes: a variant or function of `cuir corpus`, or FILE.py:FUNCTION",
            show_default="what its launch description says",
        ),
    ] = None,
    param: Parameters = None,
    model: Model = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="write the annotated source, and show the orchestration; without a model this is all")
    ] = False,
    samples: Samples = 1,
    attempts: Attempts = 5,
    budget: Money = None,
    tokens: Tokens = None,
    temperature: Temperature = None,
    timeout: Timeout = 600,
    define: Annotated[
        list[str] | None,
        typer.Option(
            "-D",
            "--define",
            metavar="MACRO",
            help="a macro that the source is compiled with: -D HEAD_DIM=64",
            show_default=False,
            rich_help_panel=READING,
        ),
    ] = None,
    include: Annotated[
        list[Path] | None,
        typer.Option("-I", "--include", metavar="FOLDER", help="a folder of headers", show_default=False, rich_help_panel=READING),
    ] = None,
    kernel: Annotated[
        str | None,
        typer.Option(
            "--kernel",
            metavar="NAME",
            help="which kernel of the source: its name, a part of its full name, or a regular expression",
            show_default="the only one",
            rich_help_panel=READING,
        ),
    ] = None,
    instantiate: Annotated[
        str | None,
        typer.Option(
            "--instantiate",
            metavar="TEXT",
            help="text behind the source: 'template __global__ void name<64>(int*);'",
            show_default=False,
            rich_help_panel=READING,
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads",
            min=1,
            max=1024,
            metavar="N",
            help="threads of a CTA, where no __launch_bounds__ says",
            show_default=False,
            rich_help_panel=READING,
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="N",
            help="CTAs of a cluster, where the source does not say: 2, or 2,2 along x and y",
            show_default=False,
            rich_help_panel=READING,
        ),
    ] = None,
    flag: Annotated[
        list[str] | None,
        typer.Option("--flag", help="a further option of nvcc: --flag=-std=c++20", show_default=False, rich_help_panel=READING),
    ] = None,
    read: Annotated[
        str,
        typer.Option(
            "--read",
            metavar="HOW",
            help="auto, compiler or text: auto reads what nvcc makes of the source, and its text if that fails",
            autocompletion=complete_words("auto", "compiler", "text"),
            rich_help_panel=READING,
        ),
    ] = "auto",
    arch: Annotated[
        str | None,
        typer.Option(
            "--arch", help="sm_80 or sm_90a", show_default="the launch description's, else what the calls show", rich_help_panel=READING
        ),
    ] = None,
    settle: Annotated[
        Path | None,
        typer.Option(
            "--settle", metavar="FILE", help="differences from the source in which the program is right, with reasons", show_default=False
        ),
    ] = None,
    dtype: GivenDtype = None,
    head_dim: HeadDim = None,
    const: Consts = None,
    level: Level = "quick",
    time_limit: Annotated[
        float, typer.Option("--time-limit", min=1, metavar="SECONDS", help="processor time to judge one answer", rich_help_panel=ASKING)
    ] = 240,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="folder for the program and reports", show_default="out/NAME")
    ] = None,
    record: Record = None,
    replay: Replay = None,
    cache: Cache = None,
    as_json: Json = False,
) -> int:
    """Turn expert CUDA into a CuIR program.

    Its roles and barriers are read off, a model writes its workers, and all is verified.

    Examples:
        cuir lift flash_fwd_sm90 --explain
        cuir lift mine.cu --spec causal --model PROVIDER/NAME
    """
    from llm.ptx.compile_source import Build

    from ...checking.const_defaults import parenthesise_consts
    from ...performance.search.space import plain as plain_consts
    from ..command_inputs import output_folder, read_attention, read_specification

    configure_process()
    effort, consts = read_level(level), read_attention(dtype, head_dim, const or ())
    expert, place = _source(source)
    build = Build(
        arch or (expert.arch if expert is not None else list_architectures(*_NEEDS.values())[0]),
        tuple(map(str, include or ())),
        {},
        kernel,
        instantiate or "",
        threads,
        _cluster(cluster),
        tuple(flag or ()),
    )
    annotated, reading_note = _read(expert, place, consts, define or (), build, read)
    specification_name = spec or (expert.spec if expert is not None else None)
    folder = output_folder(out if out is not None else Path("out") / place.stem, place.stem, source)
    target = arch or (expert.arch if expert is not None else _arch(annotated))
    if explain:
        _explain(annotated, reading_note, place, folder, as_json and model is None and replay is None)
        if model is None and replay is None:
            return 0
    if specification_name is None:
        raise CuirError.of(
            "U130",
            f"`{source}` is a CUDA source: what does it compute?",
            hint="--spec VARIANT (`cuir corpus` lists them), or --spec FILE.py with `def reference(...)`",
        )
    load = partial(read_specification, specification_name, tuple(param or ()))
    specification = load()
    task = {
        "pass": "lift",
        "source": source,
        "spec": specification_name,
        "parameters": list(param or ()),
        "consts": plain_consts(consts),
        "arch": target,
        "level": effort,
        "samples": samples,
        "attempts": attempts,
        "temperature": temperature,
    }
    import corpus

    asking = open_model(
        task, ModelOptions(model, record, replay, cache, temperature, timeout, budget, tokens), withheld=source not in corpus.cuda()
    )

    from llm.limited_processes import LimitedProcesses
    from llm.loop import Session
    from llm.passes.lift import job_of
    from llm.passes.lift import lift as run_lift
    from llm.settled_differences import read_settled

    job = job_of(annotated, place.stem, target, load, consts, effort, read_settled(settle, annotated) if settle is not None else ())
    with LimitedProcesses() as processes:
        view = _View(f"{source} -> CuIR, by {asking.asks.model}{parenthesise_consts(consts)}", as_json)
        try:
            session = Session(asking.asks, asking.budget, samples, attempts, view, asking.recorder)
            lifted = run_lift(job, annotated, session, processes, time_limit, view.step)
        finally:
            view.close()
    comparison = _compare_with_source(lifted, expert, specification, consts, as_json)
    files = _write_files(lifted, annotated, place.stem, folder)
    ok = lifted.ok and not (comparison or {}).get("diagnostics")
    if as_json:
        steps = [as_data(outcome, asking.asks) | {"step": title} for title, outcome in lifted.steps]
        data = {"ok": ok, "steps": steps, "beside_source": comparison, "model": asking.asks.model, "files": files}
        print_json({**as_data(lifted.last, asking.asks), **data})
    else:
        _print(lifted, reading_note, asking, folder, files, comparison)
    return 0 if ok else 1


def _source(name: str) -> tuple[ExpertSource | None, Path]:
    """Find a source by its name in the corpus or its path, with its launch description if it has one.

    Raises CuirError U101, U201, O120.
    """
    import corpus
    from llm.expert_source import description_of, read_expert_source

    from ..command_inputs import suggestion

    if name in corpus.cuda():
        expert = read_expert_source(corpus.launch_of(name))
        return expert, expert.path
    path = Path(name)
    if not path.is_file():
        if "/" not in name and "." not in name:
            raise CuirError.of("U101", f"no CUDA source is called `{name}`", hint=suggestion(name, corpus.cuda(), "corpus/cuda has"))
        raise CuirError.of(
            "U201", f"no file `{path}`", hint=f"the path is relative to the current folder; corpus/cuda has {', '.join(corpus.cuda())}"
        )
    return (read_expert_source(path) if description_of(path).is_file() else None), path


def _read(
    expert: ExpertSource | None, place: Path, consts: Mapping[str, Const], macros: list[str] | tuple[str, ...], build: Build, reader: str
) -> tuple[Reading, str]:
    """Read a CUDA source by the chosen reader; return its orchestration and a note on how it was read."""
    from llm.reading_source import READERS, read_source

    from ..command_inputs import read_defines

    if reader not in READERS:
        raise CuirError.of("U103", f"--read takes {', '.join(READERS)}, found {reader}")
    head_dim = cast(int, consts["D"])
    defines: dict[str, str] = {n: str(v) for n, v in expert.compute_macros(head_dim).items()} if expert is not None else {}
    defines |= read_defines(macros)
    build = replace(build, defines=defines)
    if expert is not None:
        threads = expert.number_of_threads(head_dim) if build.threads is None else build.threads
        build = replace(
            build,
            include=(*build.include, *expert.include),
            flags=(*expert.flags, *build.flags),
            instantiate=build.instantiate or expert.instantiate,
            threads=threads,
            cluster=build.cluster or expert.cluster,
        )
    whole = {n: int(v or 1) for n, v in defines.items() if not v or v.lstrip("-").isdigit()}
    return read_source(place, build, reader, expert.kernel if expert is not None else None, whole)


def _cluster(text: str | None) -> tuple[int, int, int] | None:
    """Parse the sides of a cluster. Raises CuirError U103."""
    from llm.expert_source import sides_of

    if text is None:
        return None
    sizes = [int(n) if n.strip().isdecimal() else 0 for n in text.split(",")]
    sides = sides_of(sizes)
    if sides is None:
        raise CuirError.of(
            "U103", f"--cluster takes a number of CTAs, or up to three, along x, y and z, 16 in all, found {text}", hint="--cluster 2,2"
        )
    return sides


def _arch(annotated: Reading) -> str:
    """Return the first architecture with the instructions that a source uses."""
    return list_architectures(*{_NEEDS[c.kind] for c in annotated.calls if c.kind in _NEEDS})[0]


# kind of a call of a source -> the feature that it uses
_NEEDS = {
    "bulk_load": "bulk_copies",
    "bulk_store": "bulk_copies",
    "wgmma": "wgmma",
    "registers": "register_reallocation",
    "expect": "mbarriers",
}


def _explain(annotated: Reading, reading_note: str, place: Path, folder: Path, as_json: bool) -> None:
    """Write the annotated source, and print its orchestration."""
    from llm.orchestration_of_source import explain, of_source

    path = folder / f"{place.stem}.annotated.cu"
    _write(path, explain(annotated))
    lines = of_source(annotated).lines()
    if as_json:
        print_json(
            {
                "ok": True,
                "diagnostics": [],
                "kernel": annotated.kernel,
                "threads": annotated.threads,
                "read": annotated.by,
                "how": reading_note,
                "unknown": list(annotated.unknown),
                "orchestration": lines,
                "files": {path.name: str(path)},
            }
        )
        return
    console = stdout() if not as_json else stderr()
    console.print(
        f"{place.name}: kernel {annotated.kernel}, {annotated.threads} threads, {len(annotated.calls)} low-level calls",
        style="bold",
    )
    console.print(f"  {reading_note}", soft_wrap=True)
    for line in lines:
        console.print(f"    {line}", soft_wrap=True)
    console.print(f"  in {path}", soft_wrap=True)


class _View:
    """View of the conversations of one step after another."""

    def __init__(self, title: str, quiet: bool):
        self.title, self.quiet = title, quiet
        self.view: Any = None

    def step(self, step: Step) -> None:
        """Begin a step."""
        from ..conversations_view import Conversations

        self.close()
        self.view = Conversations(f"{self.title}: {step.title}", quiet=self.quiet)
        self.view.__enter__()

    def __call__(self, event: Any) -> None:
        self.view(event)

    def close(self) -> None:
        """End the view of a step."""
        if self.view is not None:
            view, self.view = self.view, None
            view.__exit__(*sys.exc_info())  # an interruption, if there is one


def _compare_with_source(
    lifted: Lifted, expert: ExpertSource | None, spec: AnySpecification, consts: Mapping[str, Const], quiet: bool
) -> dict[str, Any] | None:
    """Compare the lifted kernel with the source on a GPU, if there is one; else return why not."""
    from ...performance.timing.gpu import explain_missing_gpu
    from ...spec.specification import Specification

    verdict = lifted.last.verdict
    if not lifted.ok or verdict is None or verdict.program is None:
        return None
    (arch, *_) = {kernel.arch for kernel in verdict.program.kernels().values()}
    why_not = explain_missing_gpu(arch) or ("" if expert is not None else "the source has no launch description (NAME.launch.toml)")
    why_not = why_not or ("" if str(consts["T"]) == "f16" else "sources are launched with f16")
    if why_not or expert is None or not isinstance(spec, Specification):
        return {"skipped": why_not or "the specification is a function of all inputs, not of a mask and scores"}
    from llm.source_comparison import beside_source

    if not quiet:
        stderr().print("  beside the source kernel on the GPU")
    return beside_source(verdict.program, consts, expert, spec)


def _write(path: Path, text: str) -> None:
    """Write a file. Raises CuirError U108."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CuirError.of("U108", f"cannot write {path}: {error.strerror}", hint="name another folder with --out") from None


def _write_files(lifted: Lifted, annotated: Reading, name: str, folder: Path) -> dict[str, str]:
    """Write the programs of all steps, the annotated source and the reports; a wrong program is named so."""
    from llm.orchestration_of_source import explain

    from ...text.jsontext import to_json

    texts = {f"{name}.annotated.cu": explain(annotated)}
    for number, (_, outcome) in enumerate(lifted.steps, 1):
        verdict = outcome.verdict
        if verdict is None or verdict.program is None:
            continue
        last = number == len(lifted.steps)
        stem = name if last and lifted.ok else f"{name}.wrong" if last else f"{name}.step{number}"
        texts[f"{stem}.cuir"] = verdict.text
        if last:
            texts |= {
                f"{key}.json": to_json(verdict.extra[key]) + "\n" for key in ("orchestration", "verification") if key in verdict.extra
            }
    for file, text in texts.items():
        _write(folder / file, text)
    return {file: str(folder / file) for file in texts}


def _print(
    lifted: Lifted, reading_note: str, asking: Asking, folder: Path, files: Mapping[str, str], comparison: Mapping[str, Any] | None
) -> None:
    """Print attempts, verification, orchestration and the comparison with the source."""
    from ..tables import print_table

    console, verdict = stdout(), lifted.last.verdict
    rows = [
        (
            title,
            f"{a.sample}.{a.number}",
            a.verdict.stage,
            " ".join(dict.fromkeys(d.code for d in a.verdict.diagnostics)),
            f"{a.answer.tokens:,}",
            f"{a.answer.seconds:.1f} s",
        )
        for title, outcome in lifted.steps
        for s in outcome.samples
        for a in s.attempts
    ]
    if rows:
        print_table("attempts", ("step", "sample", "stage", "codes", "tokens", "answered in"), rows)
    if verdict is not None and lifted.ok:
        stages = [s for s in verdict.extra.get("verification", {}).get("stages", []) if s["verdict"] != "skipped"]
        print_table("verification", ("question", "verdict", "why"), [(s["name"], s["verdict"], s["reason"]) for s in stages])
        facts = verdict.extra.get("orchestration", {})
        console.print(f"orchestration: as in the CUDA source, {reading_note}", soft_wrap=True)
        for text in facts.get("not_compared", ()):
            console.print(f"  not known, and not compared: {text}", soft_wrap=True)
        for s in facts.get("settled", ()):
            console.print(f"  settled by {s['by']}: {s['message']}; {s['reason']}", soft_wrap=True)
        for text in facts.get("settled_without_effect", ()):
            console.print(f"  settled, but there was no such difference: {text}", soft_wrap=True)
    if comparison is not None:
        console.print(
            "beside the source kernel: " + (f"skipped, {comparison['skipped']}" if "skipped" in comparison else comparison["summary"]),
            soft_wrap=True,
        )
    summary = f"{lifted.last.why}; {asking.budget.summary()}"
    console.print(summary, style="bold green" if lifted.ok else "bold red", soft_wrap=True)
    print_drift(asking.asks)
    console.print(f"  in {folder}: {', '.join(files)}", soft_wrap=True)
    if verdict is not None and not verdict.ok:
        print_errors(verdict.diagnostics, False)
