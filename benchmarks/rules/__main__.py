"""Rules that nobody tuned for, beside compiled FlexAttention, on a Hopper GPU.

    python -m benchmarks.rules --out rows.jsonl                    # every rule, head dims 64 and 128, 4096 tokens, 16 heads, batch 2, bf16
    python -m benchmarks.rules --only natten disc --dims 128       # some of them
    python -m benchmarks.rules --table rows.jsonl                  # no GPU: the table of what was measured

Both run the same mods, each with its block mask, in turns; results are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from . import RULES
from .rules_table import line_of, markdown
from .timing import FLEX, OURS, measure_cells


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rules", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", help="parts of RULE@DIM: natten, @64, natten@128")
    parser.add_argument("--dims", nargs="+", type=int, default=[128, 64])
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contenders", nargs="+", default=[OURS, FLEX], choices=[OURS, FLEX])
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--seconds", type=float, default=600.0, help="after which nothing more is compiled")
    parser.add_argument("--out", type=Path, help="lines of JSON, as they come")
    parser.add_argument("--table", type=Path, help="of lines that were written before")
    options = parser.parse_args()
    if options.table is not None:
        print(markdown([json.loads(line) for line in options.table.read_text(encoding="utf-8").splitlines()]))
        return 0
    from cuir.performance.timing.gpu import explain_missing_gpu

    if reason := explain_missing_gpu():
        print(f"nothing measured: {reason}", file=sys.stderr)
        return 1
    cells = [
        {
            "rule": r.name,
            "kind": r.kind,
            "head_dim": d,
            "length": options.length,
            "heads": options.heads,
            "batch": options.batch,
            "device": "cuda",
            "contenders": options.contenders,
        }
        for d in options.dims
        for r in RULES
        if options.only is None or any(part in f"{r.name}@{d}" for part in options.only)
    ]
    with open(options.out or os.devnull, "a", encoding="utf-8") as file:
        for row in measure_cells(
            cells, options.processes, options.rounds, options.seconds, lambda news: print(news, file=sys.stderr, flush=True)
        ):
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(line_of(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
