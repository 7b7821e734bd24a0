"""Mutants of expert kernels' PTX in the machine: how many it refuses. `python -m benchmarks.ptx_mutants FOLDER [NAME...] --json FILE`.

FOLDER is that of `benchmarks.ptx_experts`. Each mutant changes one statement that the kernel's problem runs. It is refused by
a finding that the kernel has not, under a schedule, by wrong results, or by a run that takes ten times as long.
A mutant that the smallest problem does not refuse runs on the largest too.
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

from benchmarks.expert_cases import Case, Expert, list_experts
from benchmarks.ptx_experts import CapturedLaunch, build, capture, measure_error
from cuir.cuda import KernelCall, LoadedModule, Report
from cuir.mutation.ptx_mutants import KINDS, PtxMutant, choose_ptx_mutants
from cuir.ptx.launch.kernel_launch import KernelRun, LoadedKernel
from cuir.ptx.module import read_module
from cuir.text.diagnostics import CuirError, Diagnostic
from cuir.text.markdown import table

SCHEDULES = ("together", "last", "random:1", "random:2", "first", "random:3")
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


def identify_finding(finding: Diagnostic) -> str:
    """Return a finding's code and places, which say whether two are the same."""
    return " ".join([finding.code, str(finding.span), *(str(n.span) for n in finding.notes if n.span)])


class Bench:
    """An expert kernel with one of its problems.

    Attributes:
        known: The findings of the kernel itself, by `identify_finding`; those of codes that are not expected of it end the benchmark.
        ran: Lines of the PTX that ran.
        seconds: CPU seconds of a run.
    """

    def __init__(self, expert: Expert, folder: Path, number: int):
        module, program = build(expert, folder, folder / "built")
        self.text, self.path, self.make_case = module.module.text, module.path, expert.cases[number]
        self.launches: list[CapturedLaunch] | None = None
        case = self.make_case()
        if case.call is None:
            self.launches = capture(module, program, case.arguments)
        self.known, self.ran, start = set[str](), set[int](), time.process_time()
        for schedule in SCHEDULES if expert.known else SCHEDULES[:1]:
            runs = list(self._list_runs(self.text, case := self.make_case(), schedule))
            told = [d for _, report in runs for d in (*report.findings, *report.warnings)]
            self.known |= {identify_finding(d) for d in told}
            self.ran |= {run.program.instructions[i][0].line for run, _ in runs for i in run.list_ran()}
            assert all(d.code in expert.known for d in told) and measure_errors(case) <= ALLOWED, (expert.name, schedule)
        self.seconds = time.process_time() - start

    def _list_runs(self, text: str, case: Case, schedule: str) -> Iterator[tuple[KernelRun, Report]]:
        """Run the launches of a case one by one."""
        module = WatchedModule(text, self.path)
        if self.launches is None:
            call = case.call
            assert call is not None
            report = module[module.names[0]](call.grid, call.block, *call.arguments, shared=call.shared, schedule=schedule, raises=False)
            yield module.runs[-1], report
            return
        for launch in self.launches:
            report = launch.run(module, case.tensors, schedule)
            yield module.runs[-1], report

    def run(self, text: str, schedule: str) -> Verdict:
        """Run the problem with a changed text; return what is wrong."""
        case = self.make_case()
        try:
            for _, report in self._list_runs(text, case, schedule):
                told = [d for d in (*report.findings, *report.warnings) if identify_finding(d) not in self.known]
                if told:
                    return Verdict(told[0].code, schedule, str(told[0]).splitlines()[0][:200])
        except CuirError as refusal:
            return Verdict("refused", schedule, str(refusal).splitlines()[0][:200])
        error = measure_errors(case)
        return Verdict("wrong results" if error > ALLOWED else "", schedule, f"{error:.1e}")

    def judge(self, mutant: PtxMutant) -> Verdict:
        """Run a mutant under all schedules, until one refuses it."""
        verdict = Verdict("")
        for schedule in SCHEDULES if mutant.line in self.ran else ():
            signal.setitimer(signal.ITIMER_VIRTUAL, max(LEAST_SECONDS, 10 * self.seconds))
            try:
                verdict = self.run(mutant.apply(self.text), schedule)
            except TimeoutError:
                verdict = Verdict("hangs", schedule)
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            if verdict.refused_by:
                break
        return verdict


def measure_expert(expert: Expert, folder: Path, out: Path) -> None:
    """Judge the mutants of a kernel; append a line for each to a file, and leave out those that stand there."""
    benches = [Bench(expert, folder, number) for number in reversed(range(len(expert.cases)))]
    done = {(r["kernel"], r["line"], r["change"]) for r in read_rows(out)}
    for mutant in choose_ptx_mutants(benches[-1].text, benches[-1].ran, COUNT):
        if (expert.name, mutant.line, mutant.change) in done:
            continue
        for bench in benches:
            v = bench.judge(mutant)
            if v.refused_by:
                break
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


def measure_errors(case: Case) -> float:
    """Return the largest error of a case's results."""
    return max(measure_error(found, expected) for found, expected in case.results())


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
        if not options.names or any(n in expert.name for n in options.names):
            measure_expert(expert, options.folder, options.json)
    print("\n".join(format_rows(read_rows(options.json))))


if __name__ == "__main__":
    main()
