"""Table of verdicts of `cuir judge` on the solutions of this folder: `python -m benchmarks.judged [NAME ...]`."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from cuir.judge.judging import SolutionJudge
from cuir.judge.references import Reference
from cuir.ops.limits import list_architectures

from .cases import CASES, FOLDER, Case

SCHEDULES = 4


def judge(case: Case) -> tuple[str, str]:
    """Return the verdict on a case, and its reason."""
    with tempfile.TemporaryDirectory() as folder:
        launch = FOLDER / case.launch if case.launch else None
        reference = Reference(FOLDER / f"{case.reference}.py")
        made = SolutionJudge(reference, case.write(Path(folder)), launch, list_architectures("wgmma")[0], SCHEDULES)
        made.stops_at_fault = True
        found = made.run()
    reasons = [*(f"{f.kind}: {f.message} [{f.problem}]" for f in found.faults), *found.refused, found.reason]
    return found.verdict, next(filter(None, reasons), "")


def main() -> int:
    """Print a row for each case, and how many verdicts are right."""
    cases = [c for c in CASES if not sys.argv[1:] or c.name in sys.argv[1:]]
    alarms = missed = 0
    print("| solution | verdict | reason | seconds |\n|---|---|---|---|")
    for case in cases:
        began = time.process_time()
        verdict, reason = judge(case)
        is_right = verdict in case.verdicts
        is_good = case.verdicts[0] in ("right", "limited")
        alarms += is_good and not is_right
        missed += not is_good and verdict in ("right", "limited", "not judged")
        print(f"| {case.name} | {verdict}{'' if is_right else ' (!)'} | {reason} | {time.process_time() - began:.0f} |", flush=True)
    faulty = sum(c.verdicts[0] not in ("right", "limited") for c in cases)
    print(f"\n{len(cases)} solutions: {faulty - missed} of {faulty} faulty ones refused, {alarms} false alarms")
    return int(bool(alarms or missed))


if __name__ == "__main__":
    sys.exit(main())
