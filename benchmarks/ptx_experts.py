"""Expert kernels of others in the machine for PTX: results, findings, seconds. `python -m benchmarks.ptx_experts FOLDER [NAME...]`.

FOLDER holds the repositories, unpacked: those of `expert_cases.COMMITS`; and tilelang/site and triton/site, where `pip install --target` put
these compilers. A host program of benchmarks/experts makes each launch, as the repository's own does; experts/capture.cpp stands for the
runtime and writes launches down.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from benchmarks.expert_cases import COMMITS, Case, Expert, list_experts
from cuir.campaigns.campaign import Executor, run_tasks
from cuir.campaigns.executors import make_executor
from cuir.campaigns.tasks import Json, Result, make_task
from cuir.cuda import LoadedModule, Report, Struct
from cuir.ptx.module import read_module
from cuir.text.markdown import table

HERE = Path(__file__).parent / "experts"
FLAGS = ("-O3", "-lineinfo", "--expt-relaxed-constexpr", "--expt-extended-lambda", "-DNDEBUG", "-w", "-diag-suppress=780")
MARK = 0x5EED0000  # upper half of a pointer that stands for a tensor: experts/tensors.h


@dataclass(frozen=True)
class CapturedLaunch:
    """A launch that a host program made."""

    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    cluster: tuple[int, ...]
    shared: int
    arguments: tuple[bytes, ...]

    def run(self, module: LoadedModule, tensors: Sequence[torch.Tensor], schedule: str, detect: bool = True) -> Report:
        arguments = [_point(data, tensors) for data in self.arguments]
        return module[self.name](
            self.grid, self.block, *arguments, shared=self.shared, cluster=self.cluster, schedule=schedule, detect=detect, raises=False
        )


def _point(data: bytes, tensors: Sequence[torch.Tensor]) -> Struct:
    """Return a struct whose marked words point into tensors."""
    plain, pointers = bytearray(data), []
    for offset in range(0, len(data) - 7, 8):
        upper = int.from_bytes(data[offset + 4 : offset + 8], "little")
        if MARK <= upper < MARK + len(tensors):
            plain[offset + 4 : offset + 8] = bytes(4)
            pointers.append((offset, tensors[upper - MARK]))
    return Struct(bytes(plain), tuple(pointers))


def build(expert: Expert, folder: Path, out: Path) -> tuple[LoadedModule, Path]:
    """Return the kernels of an expert, and the host program that launches them."""
    program, kept = out / expert.name, out / f"{expert.name}.keep"
    if not program.exists():
        kept.mkdir(parents=True, exist_ok=True)
        if expert.source.endswith(".py"):
            _build_with_compiler(expert, folder, kept)
            program.touch()
        else:
            _build_with_host_program(expert, folder, program, kept)
    (text,) = kept.glob(f"{Path(expert.source).stem}*.ptx")
    return LoadedModule(read_module(text.read_text(encoding="utf-8")), text), program


def _build_with_host_program(expert: Expert, folder: Path, program: Path, kept: Path) -> None:
    """Compile the kernels of an expert and their host program."""
    include = [HERE, *(folder / i for i in expert.include), Path(torch.__file__).parent / "include"]
    if expert.cut is not None:
        whole = folder / expert.cut[0]
        (kept / whole.name).write_text(whole.read_text(encoding="utf-8").split(f"\n{expert.cut[1]}\n")[0], encoding="utf-8")
        include.append(kept)
    defines = [f"-D{n}={v}" for n, v in expert.defines.items()]
    code = f"arch=compute_{expert.arch},code=compute_{expert.arch}"
    sources = [str(HERE / expert.source), str(HERE / "capture.cpp")]
    flags = [*FLAGS, f"-std={expert.standard}", *defines, *(x for i in include for x in ("-I", str(i)))]
    command = ["nvcc", "-gencode", code, "--keep", "--keep-dir", str(kept), "-cudart", "none", *flags, *sources, "-o", str(program)]
    subprocess.run(command, check=True)


def _build_with_compiler(expert: Expert, folder: Path, kept: Path) -> None:
    """Let a compiler of Python kernels write PTX, or CUDA text that nvcc compiles."""
    stem = Path(expert.source).stem
    compiler = stem.partition("_")[0]
    text = kept / f"{stem}.{'cu' if expert.include else 'ptx'}"
    environment = {**os.environ, "PYTHONPATH": str(folder / compiler / "site"), "TRITON_CACHE_DIR": str(kept)}
    subprocess.run([sys.executable, HERE / expert.source, text, *map(str, expert.cases[0]().arguments)], check=True, env=environment)
    if expert.include:
        include = [x for i in expert.include for x in ("-I", str(folder / i))]
        flags = [f"-arch=sm_{expert.arch}", f"-std={expert.standard}", *FLAGS]
        subprocess.run(["nvcc", "-ptx", *flags, *include, str(text), "-o", str(text.with_suffix(".ptx"))], check=True)


def capture(module: LoadedModule, program: Path, arguments: Sequence[int]) -> list[CapturedLaunch]:
    """Return the launches that a host program makes."""
    entries = [f for f in module.module.functions.values() if f.is_entry]
    sizes = ";".join(f"{f.name}:{','.join(str(v.size) for v in f.parameters)}" for f in entries)
    with tempfile.TemporaryDirectory() as place:
        written = Path(place) / "launches"
        subprocess.run([program, *map(str, arguments)], check=True, env={**os.environ, "LAUNCHES": str(written), "SIZES": sizes})
        lines = written.read_text(encoding="utf-8").splitlines()

    def read(line: str) -> CapturedLaunch:
        name, grid, block, cluster, shared, *data = line.split()
        x, y, z = (tuple(int(n) for n in t.split(",")) for t in (grid, block, cluster))
        return CapturedLaunch(name, x, y, z, int(shared), tuple(bytes.fromhex(d) for d in data))

    return [read(line) for line in lines]


def _run(case: Case, module: LoadedModule, program: Path, schedule: str) -> list[Report]:
    """Run the launches of a case."""
    if case.call is not None:
        call = case.call
        return [module[module.names[0]](call.grid, call.block, *call.arguments, shared=call.shared, schedule=schedule, raises=False)]
    return [launch.run(module, case.tensors, schedule) for launch in capture(module, program, case.arguments)]


def measure_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference, relative where numbers are above 1."""
    return float(((found - expected) / expected.abs().clamp(min=1)).nan_to_num(nan=9e9, posinf=9e9, neginf=9e9).abs().max())


class Outcome(NamedTuple):
    """Result of a case under one schedule.

    Attributes:
        told: Its findings, as they are shown.
    """

    schedule: str
    error: float
    findings: dict[str, int]
    told: tuple[str, ...]
    lanes: int
    seconds: float
    coverage: float


@dataclass(frozen=True)
class Row:
    """Result of a case under all schedules.

    Attributes:
        error: The largest of all.
        findings: How many schedules have a finding of a code that is not expected.
        known: The same of expected ones.
        rate: Million lane instructions a second of CPU time.
    """

    expert: str
    arguments: tuple[int, ...]
    schedules: int
    error: float
    findings: dict[str, int]
    known: dict[str, int]
    lanes: float
    seconds: float
    rate: float
    coverage: float


def list_schedules(text: str) -> list[str]:
    """Return schedules: a number of them, or their names with commas between."""
    if not text.isdecimal():
        return text.split(",")
    return ["together", "first", "last", *(f"random:{i}" for i in range(1, int(text) - 2))][: int(text)]


@functools.cache
def _load(name: str, folder: Path) -> tuple[Expert, LoadedModule, Path]:
    (expert,) = (e for e in list_experts() if e.name == name)
    return expert, *build(expert, folder, folder / "built")


def check(name: str, folder: Path, number: int, schedule: str) -> Outcome:
    """Run a case of an expert, by its number, under a schedule."""
    expert, module, program = _load(name, folder)
    case = expert.cases[number]()
    start = time.process_time()
    reports = _run(case, module, program, schedule)
    seconds = time.process_time() - start
    error = max(measure_error(found, expected) for found, expected in case.results())
    findings = [d for r in reports for d in (*r.findings, *r.warnings)]
    lanes = sum(r.lane_instructions for r in reports)
    return Outcome(schedule, error, dict(Counter(d.code for d in findings)), tuple(map(str, findings)), lanes, seconds, reports[0].coverage)


def summarise(expert: Expert, number: int, outcomes: Sequence[Outcome]) -> Row:
    """Return the row of the outcomes of a case."""
    codes = Counter(code for o in outcomes for code in o.findings)
    seconds, lanes = sum(o.seconds for o in outcomes), sum(o.lanes for o in outcomes)
    return Row(
        expert.name,
        expert.cases[number]().arguments,
        len(outcomes),
        max(o.error for o in outcomes),
        {c: n for c, n in sorted(codes.items()) if c not in expert.known},
        {c: n for c, n in sorted(codes.items()) if c in expert.known},
        round(lanes / len(outcomes) / 1e6, 2),
        round(seconds / len(outcomes), 2),
        round(lanes / max(seconds, 1e-9) / 1e6, 1),
        max(o.coverage for o in outcomes),
    )


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of a file: what ran, the command, and a row for each case."""
    head, *rest = rows

    def tell(found: Mapping[str, int]) -> str:
        return ", ".join(f"{code} ({count})" for code, count in found.items()) or "none"

    columns = [
        "kernel",
        "problem",
        "schedules",
        "error",
        "findings",
        "known findings",
        "M lane instructions",
        "CPU seconds",
        "code that ran",
    ]
    lines = [
        [
            r["expert"],
            " ".join(map(str, r["arguments"])),
            str(r["schedules"]),
            f"{r['error']:.1e}",
            tell(r["findings"]),
            tell(r["known"]),
            str(r["lanes"]),
            str(r["seconds"]),
            f"{r['coverage']:.0%}",
        ]
        for r in rest
    ]
    of = "; ".join(head["sources"].values())
    introduction = f"Kernels of {of}. Errors are relative where numbers are above 1. Behind a finding: the schedules that have it."
    command = f"    python -m benchmarks.ptx_experts FOLDER --schedules {head['schedules']}{' --small' if head['small'] else ''} --out FILE"
    return "\n".join(["# Expert kernels in the machine for PTX", "", introduction, "", command, "", *table(columns, lines), ""])


def check_as_task(name: str, folder: str, number: int, schedule: str) -> Json:
    """Run a case of an expert as a task; see `check`."""
    return check(name, Path(folder), number, schedule)._asdict()


def _run_all(
    experts: Sequence[Expert], folder: Path, schedules: Sequence[str], executor: Executor, small: bool
) -> Iterator[tuple[Expert, int, list[Outcome]]]:
    """Yield the outcomes of each case, in the order of the experts; at Ctrl-C those that are there, before KeyboardInterrupt."""
    for expert in experts:
        _load(expert.name, folder)  # compiles; tasks find what is built
    for expert in experts:
        for number in range(len(expert.cases))[-1 if small else 0 :]:
            tasks = [make_task(check_as_task, expert.name, str(folder), number, s) for s in schedules]
            found: dict[str, Outcome] = {}

            def take(result: Result, name: str = expert.name, found: dict[str, Outcome] = found) -> None:
                if result.error is not None:
                    raise result.error
                found[result.key] = Outcome(**{**cast(Any, result.value), "told": tuple(cast(Any, result.value)["told"])})
                print(f"\r{name} {len(found)}/{len(schedules)}", end="", file=sys.stderr, flush=True)

            try:
                run_tasks(tasks, executor, take)
            except KeyboardInterrupt:
                if found:
                    yield expert, number, [found[t.key] for t in tasks if t.key in found]
                raise
            yield expert, number, [found[t.key] for t in tasks]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="parts of names; all without")
    parser.add_argument("--schedules", default="3", help="how many, or which, with commas between")
    parser.add_argument("--small", action="store_true", help="the last case of each kernel alone, which is the smallest")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--on", default="local", help="where tasks run: local, ray, or ray:HOST:PORT")
    parser.add_argument("--out", type=Path, help="file of JSON lines for benchmarks.shown")
    options = parser.parse_intermixed_args()
    experts = [e for e in list_experts() if not options.names or any(n in e.name for n in options.names)]
    lines = [json.dumps({"suite": "ptx_experts", "sources": COMMITS, "schedules": options.schedules, "small": options.small})]
    executor = make_executor(options.on, options.jobs)
    try:
        for expert, number, outcomes in _run_all(experts, options.folder, list_schedules(options.schedules), executor, options.small):
            row = summarise(expert, number, outcomes)
            lines.append(json.dumps(asdict(row)))
            print(f"\r{row}", flush=True)
            unknown = [o for o in outcomes if set(o.findings) - set(expert.known)]
            for told in unknown[0].told[:3] if unknown else ():
                print(f"under {unknown[0].schedule}: {told}", flush=True)
            if options.out is not None:
                options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    from benchmarks.ptx_experts import main as run_main  # tasks name their function by its module

    run_main()
