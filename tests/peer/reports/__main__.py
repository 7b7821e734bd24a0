"""Run the public reports and write their table.

python -m tests.peer.reports                                       # forward, interpreted
python -m tests.peer.reports --part gradients --out rows.jsonl     # backward
python -m tests.peer.reports --backend native -j 8                 # on a Hopper GPU
python -m tests.peer.reports --table forward.jsonl gradients.jsonl --page docs/public_reports.md --list tests/peer/reports/README.md

Each report is rebuilt small, and its result compared with float64, eager and compiled. Exit code 1 if one is wrong, differs, crashed or hung.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.peer.cases import load_reports
from tests.peer.report import BAD
from tests.peer.reports import table
from tests.peer.running import OUTCOMES, PASS, Outcome, Setting, run


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.table:
        rows = [Outcome(**json.loads(line)) for path in options.table for line in path.read_text(encoding="utf-8").splitlines()]
        text = table.make_table(rows)
        print(text)
        if options.page:
            options.page.write_text(table.replace_table(options.page.read_text(encoding="utf-8"), text), encoding="utf-8")
        if options.list:
            options.list.write_text(table.replace_table(options.list.read_text(encoding="utf-8"), table.make_list(rows)), encoding="utf-8")
        return 0
    gradients = options.part == "gradients"
    chosen = [case for case in load_reports().values() if options.k in case.name and (case.gradients or not gradients)]
    outcomes = []
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
    with open(options.out or os.devnull, "w", encoding="utf-8") as out:
        setting = Setting(options.backend, options.verify, options.part)
        for ended in run(chosen, load_reports, setting, workers=options.j, limit=options.limit):
            outcomes.append(ended)
            out.write(json.dumps(ended.row()) + "\n")
            out.flush()
            if ended.outcome != PASS:
                print(f"{ended.outcome:8} {ended.code:5} {ended.name}: {ended.message} {ended.place}", flush=True)
    counts = Counter(o.outcome for o in outcomes)
    print(", ".join(f"{counts[kind]} {kind}" for kind in OUTCOMES if counts[kind]))
    return int(any(o.outcome in BAD for o in outcomes))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(
        prog="python -m tests.peer.reports", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("-k", default="", metavar="WORD", help="reports whose name holds WORD")
    p.add_argument("--backend", choices=("interpret", "native", "pytorch"), default="interpret")
    p.add_argument("--verify", choices=("quick", "full", "off"), default="quick", help="asked of kernels before they run on a GPU")
    p.add_argument("--part", choices=("forward", "gradients"), default="forward")
    p.add_argument("-j", type=int, default=os.cpu_count() or 1, metavar="N", help="worker processes")
    p.add_argument("--limit", type=float, default=120.0, metavar="SECONDS", help="of one report")
    p.add_argument("--out", type=Path, metavar="FILE", help="one line of JSON for each case")
    p.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="the table of what --out wrote")
    p.add_argument("--page", type=Path, metavar="FILE", help="with --table: write it into a page, between its marks")
    p.add_argument("--list", type=Path, metavar="FILE", help="with --table: write a row for each report into a page, between its marks")
    return p.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
