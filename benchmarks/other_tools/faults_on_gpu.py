"""Run of the faulty kernels of faults.jsonl on a Hopper GPU, with compute-sanitizer's tools and without.

    python -m benchmarks.other_tools.faults_on_gpu --out FILE --jobs 16 --limit 240
    python -m benchmarks.other_tools.faults_on_gpu --table FILE

Results are compared where no tool runs. Each launch is in a separate process. A line of JSON is written as soon as a
fault has run under a tool; the same command continues from the file. launches.py launches, table.py counts.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuir.checking.checker import check
from cuir.cli.gpu_stage import around, find_sanitizer
from cuir.lowering import lower
from cuir.performance.timing.worker import Worker, WorkerLost
from cuir.runtime.nvcc import compile_cuda
from cuir.syntax.parser import parse
from cuir.text.diagnostics import CuirError
from cuir.text.jsontext import append_line, read_lines
from cuir.verification.on_gpu import make_diagnostics, read_reports

from .launches import ENDED, ERROR, HANGS
from .planted_faults import FILE, Fault, origin, read_faults
from .tools_table import REPORTS, RESULTS, TOOLS, find_kind_lines, list_unseen, markdown, outcomes_of, summary, with_table

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "benchmarks.other_tools.launches")
PREPARING = 120.0  # seconds of importing, nvcc and the context, under a tool too
LAUNCH, SANITIZED = 8.0, 40.0  # seconds of one launch; a tool slows it down by some hundreds
DEADLOCK = 4.0  # seconds after which racecheck calls a wait a deadlock, and goes on behind it
OPTIONS = (  # options that the installed tool knows are used; host frames tell nothing about a kernel
    ("--show-backtrace", "device"),
    ("--racecheck-deadlock-timeout", str(int(1000 * DEADLOCK))),
    ("--racecheck-num-workers", "2"),
)
PORTS = itertools.count()  # tools that run side by side use distinct ports, 16 each
RESULTS_LIMIT, TOOL_LIMIT = 90.0, 90.0  # of all launches of a fault
GRACE = 40.0  # seconds after the limit in which what has begun may end
SILENT, TIME_OUT, NOT_RUN = "silent", "time out", "not run"

Runner = Callable[[Fault, str, bool, "Clock"], dict[str, Any]]  # (fault, tool, whether it is known to hang, clock) -> record
Record = dict[str, Any]


@dataclass(frozen=True)
class Clock:
    """Limit of time after which nothing begins, and cut-off after that; in seconds from now."""

    limit: float
    begin: float = field(default_factory=time.monotonic)

    @property
    def over(self) -> bool:
        """True if nothing may begin."""
        return time.monotonic() - self.begin >= self.limit

    def at_most(self, seconds: float) -> float:
        """Return `seconds`, or the time until the cut-off if that is less."""
        return max(0.1, min(seconds, self.limit + GRACE - (time.monotonic() - self.begin)))

    @property
    def cut(self) -> bool:
        """True if running work is cut off."""
        return time.monotonic() - self.begin >= self.limit + GRACE - 1.0


def launch_fault(fault: Fault, under: str, hangs: bool, clock: Clock, sanitizer: str = "", command: Sequence[str] = COMMAND) -> Record:
    """Run a fault in a separate process, under a tool or (RESULTS) none.

    The record has outcome, problem, says, launches, and the lines of the tool's log that name kinds of errors.
    """
    tool = None if under == RESULTS else under
    env = {"PYTHONPATH": os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH")) if p)}
    if tool:
        env["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"  # each tensor is a separate allocation, with bounds that memcheck knows
    seconds_each, every = (LAUNCH, RESULTS_LIMIT) if tool is None else (SANITIZED, TOOL_LIMIT)
    if tool and hangs:
        seconds_each = 6 * DEADLOCK if tool == "racecheck" else LAUNCH
        every = seconds_each + 4.0
    options = [word for option in OPTIONS for word in option if option[0] in list_options(sanitizer)] if tool else []
    options += ["--port", str(49152 + 16 * (next(PORTS) % 1000))] if tool and "--port" in list_options(sanitizer) else []
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "sanitizer.txt"
        with Worker([*around(tool, sanitizer, log), *options, *command], env) as worker:
            try:
                worker.ask({"do": "prepare", "kernel": fault.kernel, "program": fault.program}, clock.at_most(PREPARING))
            except (CuirError, WorkerLost) as error:
                return {"outcome": NOT_RUN, "says": str(error)[:400], "log": _read(log)}
            try:
                answer = worker.ask({"do": "launches" if tool else "results", "seconds": seconds_each}, clock.at_most(every))
            except WorkerLost as lost:
                answer = {"outcome": HANGS if lost.status == "hangs" else ERROR, "problem": "", "says": str(lost)[:400], "launches": 0}
            except CuirError as error:  # before any launch
                return {"outcome": NOT_RUN, "says": str(error)[:400]}
            worker.finish(
                clock.at_most(5.0 if answer["outcome"] == HANGS else 60.0)
            )  # a tool writes what it has when the process has ended
        text = _read(log)
    return answer if tool is None else interpret_log(fault, answer, text, hangs)


def _read(log: Path) -> str:
    """Return the text of a log, "" without one."""
    return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""


@functools.cache
def list_options(sanitizer: str) -> frozenset[str]:
    """Return the options that a compute-sanitizer's help names."""
    return frozenset(re.findall(r"--[a-z-]+", _run_command(sanitizer, "--help")))


def _run_command(*command: str) -> str:
    """Return the output of a command, "" if it is missing."""
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return ""


def interpret_log(fault: Fault, answer: Record, log: str, hangs: bool) -> Record:
    """Interpret a tool's log.

    `answer` is that of the process under the tool; `hangs`: the launch hangs without the tool, too.
    """
    summary = re.search(r"SUMMARY: (\d+)", log)
    count = len(read_reports(log)) or len(re.findall("deadlock detected", log, re.I)) or int(summary[1] if summary else 0)
    process = {"process": answer["outcome"], "problem": answer["problem"], "launches": answer["launches"], "log": find_kind_lines(log)}
    if count:
        return {"outcome": REPORTS, "says": _in_words(fault, log), "reports": count, **process}
    if answer["outcome"] == HANGS:
        return {"outcome": HANGS if hangs else TIME_OUT, "says": answer["says"], **process}
    if summary is None:
        return {
            "outcome": NOT_RUN,
            "says": f"the tool wrote no summary; the process: {answer['outcome']} {answer['says']}"[:400],
            **process,
        }
    return {"outcome": SILENT if answer["outcome"] == ENDED else ERROR, "says": answer["says"], **process}


def _in_words(fault: Fault, log: str) -> str:
    """Return the first report and the line of the faulty program that it names."""
    of = origin(fault.kernel)
    checked = check(parse(fault.program, "mutant.cuir"), of.kernel, of.consts)
    first = next(iter(make_diagnostics(log, lower(checked).line_map, None, checked.origin.span)), None)
    if first is None:
        lines = [line.strip("= ") for line in log.splitlines()]
        return next((line for line in lines if line and line != "COMPUTE-SANITIZER"), "")[:400]
    line_text = f" (line {first.span.line}: {first.span.source.line(first.span.line).strip()})" if first.span else ""
    return (first.message + line_text)[:400]


def run_all(
    faults: Sequence[Fault],
    known_outcomes: Mapping[tuple[str, str], str],
    under: Sequence[str],
    runner: Runner,
    jobs: int,
    clock: Clock,
    keep: Callable[[Record], None],
) -> None:
    """Run every fault under every tool without a known outcome.

    The results of all come first, in their order; then the tools, fault by fault, those that hang last. `keep` gets
    each record, one at a time.
    """
    lock, outcomes = threading.Lock(), dict(known_outcomes)

    def run_one(fault: Fault, tool_name: str) -> None:
        """Run a fault under a tool, if time allows."""
        if (fault.id, tool_name) in outcomes or clock.over:
            return
        begin = time.monotonic()
        result = runner(fault, tool_name, _hangs(fault, outcomes), clock)
        if clock.cut and result["outcome"] in (HANGS, TIME_OUT, NOT_RUN, ERROR):
            return  # the limit of all ended it, not its own
        record = {
            "id": fault.id,
            "under": tool_name,
            "class": fault.fault,
            "kernel": fault.kernel,
            "operator": fault.operator,
            "what": fault.what,
            "stage": fault.stage,
            **result,
            "seconds": round(time.monotonic() - begin, 1),
        }
        with lock:
            outcomes[fault.id, tool_name] = result["outcome"]
            keep(record)

    runnable = [f for f in faults if not f.unrunnable]
    with ThreadPoolExecutor(jobs) as pool:
        if RESULTS in under:
            list(pool.map(lambda f: run_one(f, RESULTS), runnable))
        last = sorted(runnable, key=lambda f: _hangs(f, outcomes))
        list(pool.map(lambda pair: run_one(*pair), [(f, tool) for f in last for tool in under if tool != RESULTS]))


def _hangs(fault: Fault, outcomes: Mapping[tuple[str, str], str]) -> bool:
    """Return whether a fault hangs without a tool."""
    return outcomes.get((fault.id, RESULTS)) == HANGS


def read_outcomes(path: Path) -> dict[tuple[str, str], str]:
    """Return the outcomes of a file by a fault's id and the tool.

    Faults that were not run are left out, as are lines cut short. Raises OSError; ValueError for a file of other
    content.
    """
    records: list[Record] = []
    for number, line in enumerate(read_lines(path), 1):
        try:
            data = json.loads(line)
        except ValueError:  # an interruption cut it short
            continue
        if isinstance(data, dict) and "machine" in data:
            continue
        if not isinstance(data, dict) or not all(isinstance(data.get(k), str) for k in ("id", "under", "outcome")):
            raise ValueError(f"line {number} of {path} is no result of a fault")
        if data["outcome"] != NOT_RUN:
            records.append({"class": -1, "kernel": "", "says": "", **data})
    return outcomes_of(records)


def ran_on(path: Path) -> str:
    """Describe the machines that a file's lines name."""
    lines = [json.loads(line) for line in read_lines(path) if line.startswith('{"machine"')]
    machines = [f"{line['machine'] or 'no GPU'}, compute-sanitizer {line['compute-sanitizer'] or 'none'}" for line in lines]
    return f"Run on {'; '.join(dict.fromkeys(machines))}:" if machines else "Run on a machine that the file does not name:"


def compile_all(faults: Sequence[Fault], jobs: int, say: Callable[[str], None]) -> int:
    """Compile every fault into the cache of cubins (CUIR_CACHE); return how many the compiler refuses.

    It serves a machine whose time is short.
    """

    def compile_fault(fault: Fault) -> int:
        of = origin(fault.kernel)
        try:
            compiled = compile_cuda(lower(check(parse(fault.program, "mutant.cuir"), of.kernel, of.consts)))
            say(f"{fault.id} class {fault.fault} {fault.kernel}: {compiled.resources.summary()}")
        except CuirError as error:
            say(f"{fault.id} class {fault.fault} {fault.kernel}: {error.diagnostics[0].code}: {error.diagnostics[0].message}")
            return 1
        return 0

    with ThreadPoolExecutor(jobs) as pool:
        return sum(pool.map(compile_fault, (f for f in faults if not f.unrunnable)))


def machine(sanitizer: str) -> Record:
    """Return the GPU, its driver and the tool, for the record."""
    version = re.search(r"[Vv]ersion ([\d.]+)", _run_command(sanitizer, "--version")) if sanitizer else None
    return {
        "machine": _run_command("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"),
        "compute-sanitizer": version[1] if version else "",
    }


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--out", type=Path, help="runs what is not in this file of JSON lines yet, and adds it")
    action.add_argument("--table", type=Path, metavar="FILE", help="prints the Markdown of such a file")
    action.add_argument("--compile", action="store_true", help="only compiles, into the folder CUIR_CACHE")
    parser.add_argument("--page", type=Path, help="with --table: puts it between the marks of this page instead")
    parser.add_argument("--faults", type=Path, default=FILE)
    parser.add_argument("--jobs", type=_positive, default=os.cpu_count() or 1, help="processes side by side")
    parser.add_argument(
        "--limit", type=float, default=3600.0, help=f"seconds after which nothing new begins; {GRACE:g} later all is cut off"
    )
    parser.add_argument("--under", action="append", choices=(RESULTS, *TOOLS), help="several: again; left out: all")
    parser.add_argument(
        "--class", dest="classes", type=int, action="append", help="only faults of this class (0: no fault); several: again"
    )
    options = parser.parse_args()

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    try:
        faults = [f for f in read_faults(options.faults) if not options.classes or f.fault in options.classes]
        path = options.table or options.out
        outcomes = read_outcomes(path) if path is not None and (options.table or path.exists()) else {}
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if options.compile:
        return 1 if compile_all(faults, options.jobs, say) else 0
    if options.out is not None:
        under = options.under or [RESULTS, *TOOLS]
        try:
            sanitizer = find_sanitizer("racecheck") if set(under) & set(TOOLS) else ""
        except CuirError as error:
            parser.error(f"{error.diagnostics[0].message}: {error.diagnostics[0].hint}")
        options.out.parent.mkdir(parents=True, exist_ok=True)
        append_line(options.out, json.dumps(machine(sanitizer)))
        total = len([f for f in faults if not f.unrunnable]) * len(under)

        def keep(record: Record) -> None:
            append_line(options.out, json.dumps(record))
            if record["outcome"] != NOT_RUN:
                outcomes[record["id"], record["under"]] = record["outcome"]
            say(
                f"{len(outcomes):4d}/{total} {record['seconds']:5.1f} s  class {record['class']:2d} {record['kernel']}, {record['operator']}: "
                f"{record['under']}: {record['outcome']} {record['says'][:160]}"
            )

        def runner(fault: Fault, tool_name: str, hangs: bool, clock: Clock) -> Record:
            return launch_fault(fault, tool_name, hangs, clock, sanitizer)

        run_all(faults, dict(outcomes), under, runner, options.jobs, Clock(options.limit), keep)
        outcomes = read_outcomes(options.out)  # only now are the reports on the originals known
    text = "\n".join([*([f"{ran_on(path)}\n"] if path is not None else []), markdown(faults, outcomes), summary(faults, outcomes)])
    if options.page is not None:
        try:
            options.page.write_text(with_table(options.page.read_text(encoding="utf-8"), text + "\n"), encoding="utf-8")
        except (OSError, ValueError) as error:
            parser.error(str(error))
    else:
        print(text, "", "Right every time, and reported by no tool:", *list_unseen(faults, outcomes), sep="\n")
    return 0


def _positive(text: str) -> int:
    """Parse a positive integer."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"at least 1, found {text}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
