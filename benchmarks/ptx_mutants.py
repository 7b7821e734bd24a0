"""Mutants of expert kernels' PTX in the machine: how many it refuses. `python -m benchmarks.ptx_mutants FOLDER [NAME...] --json FILE`.

FOLDER is that of `benchmarks.ptx_experts`. Each mutant changes one statement that the kernel's problem runs. It is refused by
a finding under a schedule, by wrong results, or by a run that takes ten times as long.
"""

from __future__ import annotations

import argparse
import json
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import torch

from benchmarks.expert_cases import Case, Expert, list_experts
from benchmarks.ptx_experts import CapturedLaunch, build, capture
from cuir.cuda import KernelCall, LoadedModule, Report
from cuir.mutation.ptx_mutants import KINDS, PtxMutant, choose_ptx_mutants
from cuir.ptx.launch.kernel_launch import KernelRun, LoadedKernel
from cuir.ptx.module import read_module
from cuir.text.diagnostics import CuirError
from cuir.text.markdown import table

NAMES = (
    "learn_cuda_v5",
    "flash_attention_2_d64_causal",
    "flash_attention_2_d64_full",
    "flash_attention_3_d64_causal",
    "cutlass_pingpong",
    "cutlass_cooperative",
    "flash_attention_3_varlen",
    "flash_attention_3_backward_d64",
    "cutlass_fmha_full",
    "thunder_kittens",
    "deep_gemm_1",
    "flash_mla",
    "tilelang_gemm",
)
SCHEDULES = ("together", "last", "random:1", "random:2", "first")
COUNT, ALLOWED, LEAST_SECONDS = 30, 5e-3, 20


class Row(TypedDict):
    """A mutant and its verdict, as results keep them; harmless: why nothing can tell it from the kernel."""

    kernel: str
    kind: str
    change: str
    line: int
    old: str
    refused_by: str
    schedule: str
    told: str
    harmless: str


class WatchedModule(LoadedModule):
    """A module that keeps the runs of its kernels."""

    def __init__(self, text: str, path: Path):
        super().__init__(read_module(text), path)
        self.runs: list[KernelRun] = []

    def __getitem__(self, name: str) -> LoadedKernel:
        return WatchedKernel(self, name)


class WatchedKernel(LoadedKernel):
    """A kernel of a WatchedModule."""

    def __call__(self, grid, block, *arguments, shared=0, schedule="together", detect=True, raises=True, cluster=None) -> Report:  # type: ignore[no-untyped-def]
        run = KernelRun(self, KernelCall(grid, block, *arguments, shared=shared, cluster=cluster), schedule, detect)
        assert isinstance(self.module, WatchedModule)
        self.module.runs.append(run)
        try:
            run.execute()
        except CuirError:
            if not run.findings.diagnostics:
                raise
        return run.make_report()


@dataclass(frozen=True)
class Verdict:
    """Verdict on a mutant: the finding's code, "wrong results" or "hangs" if refused, else ""; and the findings."""

    refused_by: str
    schedule: str = ""
    told: str = ""


class Bench:
    """An expert kernel with its problem."""

    def __init__(self, expert: Expert, folder: Path):
        module, program = build(expert, folder, folder / "built")
        self.text, self.path, self.make_case, self.known = module.module.text, module.path, expert.cases[0], expert.known
        self.launches: list[CapturedLaunch] | None = None
        case = self.make_case()
        if case.call is None:
            self.launches = capture(module, program, case.arguments)

    def _list_runs(self, module: LoadedModule, case: Case, schedule: str) -> Iterator[Report]:
        """Run the launches of a case one by one."""
        if self.launches is None:
            call = case.call
            assert call is not None
            yield module[module.names[0]](call.grid, call.block, *call.arguments, shared=call.shared, schedule=schedule, raises=False)
            return
        for launch in self.launches:
            yield launch.run(module, case.tensors, schedule)

    def run(self, text: str, schedule: str) -> tuple[Verdict, set[int]]:
        """Run the problem; return what is wrong, and the lines of the PTX that ran."""
        case, ran = self.make_case(), set[int]()
        try:
            module = WatchedModule(text, self.path)
            for report in self._list_runs(module, case, schedule):
                ran |= {module.runs[-1].program.instructions[i][0].line for i in module.runs[-1].list_ran()}
                told = [d for d in (*report.findings, *report.warnings) if d.code not in self.known]
                if told:
                    return Verdict(told[0].code, schedule, str(told[0]).splitlines()[0][:200]), ran
        except CuirError as refusal:
            return Verdict("refused", schedule, str(refusal).splitlines()[0][:200]), ran
        error = max(measure_error(found, expected) for found, expected in case.results())
        return Verdict("wrong results" if error > ALLOWED else "", schedule, f"{error:.1e}"), ran

    def judge(self, mutant: PtxMutant, seconds: float) -> Verdict:
        """Run a mutant under all schedules, until one refuses it."""
        verdict = Verdict("")
        for schedule in SCHEDULES:
            signal.setitimer(signal.ITIMER_VIRTUAL, max(LEAST_SECONDS, 10 * seconds))
            try:
                verdict, _ = self.run(mutant.apply(self.text), schedule)
            except TimeoutError:
                verdict = Verdict("hangs", schedule)
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            if verdict.refused_by:
                break
        return verdict


def measure_expert(expert: Expert, folder: Path, out: Path) -> None:
    """Judge the mutants of a kernel; append a line for each to a file, and leave out those that stand there."""
    bench, start = Bench(expert, folder), time.process_time()
    verdict, ran = bench.run(bench.text, SCHEDULES[0])
    assert not verdict.refused_by, (expert.name, verdict)
    seconds = time.process_time() - start
    done = {(r["kernel"], r["line"], r["change"]) for r in read_rows(out)}
    for mutant in choose_ptx_mutants(bench.text, ran, COUNT):
        if (expert.name, mutant.line, mutant.change) in done:
            continue
        v = bench.judge(mutant, seconds)
        row: Row = {
            "kernel": expert.name,
            "kind": mutant.kind,
            "change": mutant.change,
            "line": mutant.line,
            "old": " ".join(mutant.old.split()),
            "refused_by": v.refused_by,
            "schedule": v.schedule,
            "told": v.told,
            "harmless": "",
        }
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(expert.name, mutant.line, mutant.change, "|", row["old"], "->", v.refused_by or "NOT REFUSED", v.schedule, v.told, flush=True)


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file of results; none if there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def format_rows(rows: Sequence[Row]) -> list[str]:
    """Return a page: how many mutants of each kernel and kind are refused, and those that are not."""
    lines = []
    for name in dict.fromkeys(r["kernel"] for r in rows):
        mine = [r for r in rows if r["kernel"] == name]
        of_kinds = [[r for r in mine if r["kind"] == k] for k in KINDS] + [mine]
        lines.append([name, *(f"{sum(bool(r['refused_by']) for r in part)} of {len(part)}" if part else "" for part in of_kinds)])
    left = [[r["kernel"], str(r["line"]), r["change"], r["harmless"]] for r in rows if not r["refused_by"]]
    introduction = "Mutants that the machine for PTX refuses, by what they change; then those that it does not, and why they do no harm."
    command = "    python -m benchmarks.ptx_mutants FOLDER --json FILE"
    tables = [*table(["kernel", *KINDS, "all"], lines), "", *table(["kernel", "line", "change", "why it does no harm"], left)]
    return ["# Mutants of expert kernels' PTX", "", introduction, "", command, "", *tables, ""]


def measure_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference, relative where numbers are above 1."""
    return float(((found - expected) / expected.abs().clamp(min=1)).nan_to_num(nan=9e9, posinf=9e9, neginf=9e9).abs().max())


def _stop(signum: int, frame: object) -> None:
    raise TimeoutError


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="parts of names; all without")
    parser.add_argument("--json", type=Path, default=Path("ptx-mutants.jsonl"), help="file of results, to which rows are added")
    options = parser.parse_args()
    signal.signal(signal.SIGVTALRM, _stop)
    for expert in list_experts():
        if expert.name in NAMES and (not options.names or any(n in expert.name for n in options.names)):
            measure_expert(expert, options.folder, options.json)
    print("\n".join(format_rows(read_rows(options.json))))


if __name__ == "__main__":
    main()
