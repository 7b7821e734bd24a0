"""The scenarios of PyTorch's tests of FlexAttention, and of attention-gym, with this package's functions in the place of PyTorch's.

python -m tests.peer                                            # all, interpreted; `make peer-tests`
python -m tests.peer --backend native -j 8                      # on a Hopper GPU, at the sizes of the originals
python -m tests.peer -k 'kv_batch_broadcast' --out rows.jsonl   # those whose name holds this
python -m tests.peer --table rows.jsonl --page docs/notes/peer_tests.md   # nothing runs: tables of outcomes, into a page
python -m tests.peer --part gradients                           # what the forward part leaves out
python -m tests.peer --backend pytorch                          # do the scenarios ask for what PyTorch does? its functions in the place of ours

Each scenario is written anew under the name of its original, with a case for each combination of parameters that the original has on a GPU. A case runs both
implementations and compares ours with PyTorch's eager result as PyTorch's tests do: in float64, with PyTorch's error in the inputs' dtype as the yardstick.
Outcomes: pass; refused, by a code of ours; wrong, numbers differ; differs, something else than numbers does; crash, another exception or a death of the
process; hang, not done within --limit. Exit code 1 if a case is wrong, differs, crashed or hung.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.peer import report
from tests.peer.cases import FILES, load
from tests.peer.running import OUTCOMES, PASS, Outcome, Setting, run


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    cases = load()
    if options.table:
        outcomes = in_order([Outcome(**json.loads(line)) for line in options.table.read_text(encoding="utf-8").splitlines()])
        print(report.tables(outcomes))
        if options.page:
            options.page.write_text(report.with_tables(options.page.read_text(encoding="utf-8"), outcomes), encoding="utf-8")
        return 0
    native, gradients = options.backend == "native", options.part == "gradients"
    chosen = [
        case
        for case in cases.values()
        if all(word in case.name for word in options.k)
        and options.file in ("", case.file)
        and options.theme in ("", case.theme)
        and (native or not case.native_only)
        and (case.gradients or not gradients)
    ][max(0, options.begin - 1) :]
    if options.list:
        print("\n".join(case.name for case in chosen))
        return 0
    if not chosen:
        print("no case has such a name, file and theme; --list shows all", file=sys.stderr)
        return 2
    setting = Setting(options.backend, options.verify, options.part)
    outcomes = []
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with open(options.out or os.devnull, "w", encoding="utf-8") as out:
        for ended in run(chosen, load, setting, workers=options.j, limit=options.limit or (600 if native else 60)):
            outcomes.append(ended)
            out.write(json.dumps(ended.row()) + "\n")
            out.flush()
            if ended.outcome != PASS and not options.quiet:
                print(
                    f"{ended.outcome:8} {ended.code:5} {ended.name}: {ended.message}{f' ({ended.place})' if ended.place else ''}",
                    flush=True,
                )
    outcomes = in_order(outcomes)
    counts = Counter(o.outcome for o in outcomes)
    print(f"\n{time.monotonic() - start:.0f} s: " + ", ".join(f"{counts[kind]} {kind}" for kind in OUTCOMES if counts[kind]))
    if options.tables:
        print(f"\n{report.tables(outcomes)}")
    return int(any(o.outcome in report.BAD for o in outcomes))


def in_order(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Sort cases by the order of scenarios in their files."""
    order = {name: i for i, name in enumerate(load())}
    return sorted(outcomes, key=lambda o: order.get(o.name, len(order)))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(prog="python -m tests.peer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-k", action="append", default=[], metavar="WORD", help="cases whose name holds WORD; several: all of them")
    p.add_argument("--file", choices=("", *FILES), default="", help="cases of one of the originals")
    p.add_argument("--theme", default="", help="cases of one group of the table")
    p.add_argument(
        "--backend", choices=("interpret", "native", "pytorch"), default="interpret", help="pytorch: its own functions in the place of ours"
    )
    p.add_argument("--verify", choices=("quick", "full", "off"), default="quick", help="asked of kernels before they run on a GPU")
    p.add_argument("--part", choices=("forward", "gradients"), default="forward")
    p.add_argument("-j", type=int, default=os.cpu_count() or 1, metavar="N", help="worker processes")
    p.add_argument("--from", dest="begin", type=int, default=1, metavar="N", help="begin with the N-th of these cases, as --list has them")
    p.add_argument("--limit", type=float, default=0.0, metavar="SECONDS", help="of one case; 60 interpreted, 600 native")
    p.add_argument("--out", type=Path, metavar="FILE", help="one line of JSON for each case")
    p.add_argument("--table", type=Path, metavar="FILE", help="the tables of what --out wrote")
    p.add_argument("--page", type=Path, metavar="FILE", help="with --table: write the tables into a page, between its marks")
    p.add_argument("--tables", action="store_true", help="print the tables when all is done")
    p.add_argument("--list", action="store_true", help="the names of the cases, and nothing else")
    p.add_argument("-q", "--quiet", action="store_true", help="do not print cases as they fail")
    options = p.parse_args(arguments)
    for path in (options.table, options.page):
        if path and not path.is_file():
            p.error(f"there is no file {path}")
    return options


if __name__ == "__main__":
    sys.exit(main())
