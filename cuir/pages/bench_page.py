"""Page of a benchmark: bars of our kernels beside their peers.

It shows bars for each row, the means, the machine and the protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from ..performance.suites.cell_benchmark import OURS, family
from ..performance.suites.result_rows import Row
from ..performance.suites.results import best, describe_row_consts, means, names_of_peers, place, rate, summary, unit
from .html_table import Html, render_fields, render_table
from .page import Section, render_page

COLORS = ("#2f6f9f", "#c2694f", "#7d9b6a", "#b39b4d", "#8a6fa8", "#5f9ea0", "#999999", "#b0607f")  # ours, then peers
PROTOCOL = "medians with a cold L2 cache"  # of files that name none
_WIDTH = 420  # pixels of the longest bar


def render_bench_page(head: Mapping[str, object], rows: Sequence[Row], complete: bool = True) -> str:
    """Render the page of a results file."""
    names = [OURS, *names_of_peers(rows)]
    color = {name: COLORS[i % len(COLORS)] for i, name in enumerate(names)}
    state = "" if complete else "; not all rows are measured yet"
    sections = [
        Section("Rows", _render_legend(color, rows) + _render_rows(rows, names, color)),
        Section("Means", _render_means(rows)),
        Section("Measurement", _render_measurement(head, rows)),
    ]
    return render_page(f"cuir bench {head['suite']}", f"{len(rows)} rows on {head.get('device', 'a GPU')}{state}", sections)


def _render_legend(color: Mapping[str, str], rows: Sequence[Row]) -> str:
    marks = " ".join(f'<span class="swatch" style="background:{c}"></span> {escape(name)}' for name, c in color.items())
    return f'<p class="legend">{marks}</p><p>Bars are {escape(unit(rows))}: longer is faster. The ratio is {OURS} / peer.</p>'


def _render_rows(rows: Sequence[Row], names: Sequence[str], color: Mapping[str, str]) -> str:
    top = max((rate(c) or 0.0 for r in rows for c in r.get("contenders", {}).values()), default=0.0) or 1.0
    lines = [(place(r), Html(_render_bars(r, names, color, top)), _name_setting(r)) for r in rows]
    return render_table(("row", "figures", "setting"), lines, "bars")


def _render_bars(row: Row, names: Sequence[str], color: Mapping[str, str], top: float) -> str:
    """Render a bar for each contender of a row, or why it has none."""
    if "failed" in row:
        return f'<span class="bad">failed: {escape(row["failed"])}</span>'
    mine = best(row, OURS)
    parts = []
    for name in names:
        fastest = best(row, name)
        if fastest is None:
            why = [c.get("wrong") or c.get("failed") for n, c in row.get("contenders", {}).items() if family(n) == name]
            if reason := next((w for w in why if w), None):
                parts.append(f'<div class="bar"><span class="bad">{escape(name)}: {escape(str(reason))}</span></div>')
            continue
        figure = rate(fastest[1]) or 0.0
        share = f" ({(rate(mine[1]) or 0.0) / figure:.2f} x)" if mine and name != OURS and figure else ""
        milliseconds = fastest[1].get("milliseconds")
        title = f"{fastest[0]}: {figure:,.1f}" + (f", {milliseconds:.4g} ms" if milliseconds is not None else "")
        parts.append(
            f'<div class="bar" title="{escape(title)}"><i style="width:{figure / top * _WIDTH:.0f}px;background:{color[name]}"></i>'
            f"{escape(name)} {figure:,.0f}{share}</div>"
        )
    return "".join(parts)


def _name_setting(row: Row) -> str:
    mine = best(row, OURS)
    return mine[0].removeprefix(OURS).strip() if mine else ""


def _render_means(rows: Sequence[Row]) -> str:
    peers, by_group = names_of_peers(rows), means(rows)
    table = render_table(("rows", *peers), [(group, *(of[n].text if n in of else "" for n in peers)) for group, of in by_group.items()])
    lines = "".join(f"<li>{escape(text)}</li>" for text in summary(rows))
    return f"<p>Geometric means of {OURS} / peer, and the smallest.</p>{table}<ul>{lines}</ul>"


def _render_measurement(head: Mapping[str, object], rows: Sequence[Row]) -> str:
    bound = max((r["bound"] for r in rows if "bound" in r), default=None)
    return render_fields(
        (
            ("machine", head.get("device")),
            ("driver", head.get("driver")),
            ("CUDA", head.get("cuda")),
            ("PyTorch", head.get("torch")),
            ("date", head.get("date")),
            ("protocol", f"{head.get('protocol', PROTOCOL)}; contenders take turns"),
            ("results", "each is checked against float64" + (f"; the largest error allowed is {bound:.1e}" if bound is not None else "")),
            ("consts", describe_row_consts(head, rows)),
            ("command", head.get("command")),
        )
    )
