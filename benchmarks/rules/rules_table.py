"""Tables of measured rules."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from cuir.text.markdown import table

Row = Mapping[str, Any]


def ratio(row: Row) -> float | None:
    """Return FlexAttention's milliseconds over ours: the median over the rounds; None if one did not run."""
    ms = row.get("ms", {})
    if "ours" not in ms or "flex" not in ms:
        return None
    return statistics.median(flex_ms / mine for mine, flex_ms in zip(ms["ours"], ms["flex"], strict=True))


def line_of(row: Row) -> str:
    """Format a row as a line."""
    ms = "  ".join(f"{name} {statistics.median(samples):.3f} ms" for name, samples in row.get("ms", {}).items())
    off = "  ".join(f"{name} off {off:.1e}" for name, off in row.get("off", {}).items())
    quotient = ratio(row)
    return (
        f"{row['rule']:32} {row['head_dim']:4}  {'' if quotient is None else f'{quotient:5.2f} x'}  {ms}  {off}  {row.get('failed') or ''}"
    )


def mean(ratios: Sequence[float]) -> float:
    """Return the geometric mean."""
    return math.exp(statistics.fmean(map(math.log, ratios)))


def summary(rows: Sequence[Row]) -> list[str]:
    """Return a table of each head dim and kind of rule: how many, geometric mean, the smallest."""
    lines = []
    for dim in sorted({r["head_dim"] for r in rows}):
        for kind in [None, *dict.fromkeys(r["kind"] for r in rows)]:
            quotients = {r["rule"]: x for r in rows if r["head_dim"] == dim and kind in (None, r["kind"]) and (x := ratio(r)) is not None}
            if quotients:
                least = min(quotients, key=lambda name: quotients[name])
                lines.append(
                    [
                        str(dim),
                        kind or "all",
                        str(len(quotients)),
                        f"{mean(list(quotients.values())):.2f}",
                        f"{quotients[least]:.2f} (`{least}`)",
                    ]
                )
    return table(["head dim", "rules", "how many", "geometric mean", "the smallest"], lines)


def markdown(rows: Sequence[Row]) -> str:
    """Return the page: command, means, and a line for each rule with times and their quotient."""
    dims = sorted({r["head_dim"] for r in rows})
    columns = ["rule", "kind", *(f"{label}, {d}" for d in dims for label in ("ours", "FlexAttention", "quotient"))]
    lines = []
    for name, kind in dict.fromkeys((r["rule"], r["kind"]) for r in rows):
        line = [f"`{name}`", kind]
        for dim in dims:
            row = next((r for r in rows if r["rule"] == name and r["head_dim"] == dim), {})
            ms, quotient = row.get("ms", {}), ratio(row)
            line += [f"{statistics.median(ms[c]):.3f}" if c in ms else "" for c in ("ours", "flex")]
            line.append("" if quotient is None else f"{quotient:.2f}")
        lines.append(line)
    first = rows[0]
    introduction = (
        f"Milliseconds in bf16, batch {first['batch']}, {first['heads']} heads, {first['length']} tokens, with the settings that a first call takes; "
        "FlexAttention's over ours: above 1 ours is faster."
    )
    head = ["# Rules that nobody tuned for", "", introduction, "", "    python -m benchmarks.rules --out FILE", ""]
    return "\n".join([*head, *summary(rows), "", *table(columns, lines), ""])
