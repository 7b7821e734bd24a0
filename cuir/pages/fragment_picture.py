"""Picture of a fragment layout: which lane holds an element, in which register; colours are lanes."""

from __future__ import annotations

import colorsys
from html import escape

from ..lowering.layouts.layouts import LANES
from ..lowering.layouts.tile_layouts import Fragment
from ..text.phrases import count_noun

_CELL = 22
_COLUMNS = 32  # drawn; groups of 8 columns repeat


def render_fragment_layout(layout: Fragment) -> str:
    """Render the first slab of a tile, at most 32 columns: a cell names lane and element of a thread."""
    rows, columns = min(layout.rows, layout.slab), min(layout.cols, _COLUMNS)
    owners = {layout.element(t, i): (t, i) for t in range(layout.threads) for i in range(layout.count)}
    cells = []
    for row in range(rows):
        for column in range(columns):
            thread, i = owners[row, column]
            lane, warp = thread % LANES, thread // LANES
            x, y = column * _CELL, row * _CELL
            cells.append(
                f'<g><rect x="{x}" y="{y}" width="{_CELL - 1}" height="{_CELL - 1}" fill="{_color(lane)}"/>'
                f'<text x="{x + _CELL / 2 - 0.5}" y="{y + 10}" font-size="8" text-anchor="middle">{lane}</text>'
                f'<text x="{x + _CELL / 2 - 0.5}" y="{y + 18}" font-size="7" text-anchor="middle" fill="#555">{i}</text>'
                f"<title>row {row}, column {column}: lane {lane} of warp {warp}, element {i} of the thread</title></g>"
            )
    lines = "".join(
        f'<line x1="0" x2="{columns * _CELL}" y1="{y * _CELL}" y2="{y * _CELL}" stroke="#22303c" stroke-width="2"/>'
        for y in range(16, rows, 16)
    )
    left_out = [f"{count_noun(layout.slabs - 1, 'more slab')} of {layout.slab} rows"] * (layout.slabs > 1) + ["the other columns"] * (
        layout.cols > columns
    )
    note = f" Alike: {' and '.join(left_out)}." if left_out else ""
    text = (
        f"{layout.rows} x {layout.cols} elements over {layout.threads} threads, {layout.count} in each. "
        f"A cell has its lane, and below it the element's number in the thread; lines divide warps.{note}"
    )
    return (
        f'<p>{escape(text)}</p><div class="wide"><svg xmlns="http://www.w3.org/2000/svg" role="img" width="{columns * _CELL}" '
        f'height="{rows * _CELL}" font-family="sans-serif"><title>fragment layout</title>{"".join(cells)}{lines}</svg></div>'
    )


def _color(lane: int) -> str:
    """Return a colour: the hue of a group of 4 lanes, which hold a row, and a shade for the lane in it."""
    red, green, blue = colorsys.hls_to_rgb(lane // 4 / 8, 0.9 - 0.08 * (lane % 4), 0.55)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"
