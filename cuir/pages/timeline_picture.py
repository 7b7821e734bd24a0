"""Picture of a trace: a row for each worker and engine, over the cycles of the cost model; a slider zooms."""

from __future__ import annotations

from html import escape

from ..interp.event_trace import Event, Trace
from ..interp.trace_files import COLORS, ENGINES

_ROW, _LABEL, _WIDTH = 26, 130, 1100
_MOST = 6000  # events drawn


def render_timeline(trace: Trace, marked_line: int | None = None) -> str:
    """Render a trace as SVG with a slider. marked_line: outline events of this line of the program."""
    events = trace.events[:_MOST]
    if not events:
        return "<p>No events were recorded.</p>"
    tracks = sorted({e.track for e in events}, key=lambda t: (t in ENGINES, t))
    end = max(e.start + e.length for e in events)
    rows = {track: i for i, track in enumerate(tracks)}
    labels = "".join(f'<div style="height:{_ROW}px;line-height:{_ROW}px">{escape(t)}</div>' for t in tracks)
    bars = "".join(_render_event(e, rows[e.track], end, e.line == marked_line) for e in events)
    height = _ROW * len(tracks)
    kinds = [k for k in COLORS if any(e.kind == k for e in events)]
    legend = " ".join(f'<span style="background:{COLORS[k]};padding:0 .8em"></span> {k}&nbsp;' for k in kinds)
    left_out = f" The first {_MOST} of {len(trace.events)} events." if len(trace.events) > _MOST else ""
    return (
        f'<div class="timeline"><p>{legend} {end:,.0f} cycles of the cost model.{left_out} Zoom '
        f'<input type="range" min="1" max="40" value="1" aria-label="zoom" '
        f"oninput=\"this.closest('.timeline').querySelector('svg').style.width=this.value*100+'%'\"></p>"
        f'<div style="display:flex"><div style="width:{_LABEL}px;flex:none;font-size:12px">{labels}</div>'
        f'<div style="overflow-x:auto;flex:auto"><svg xmlns="http://www.w3.org/2000/svg" role="img" preserveAspectRatio="none" '
        f'viewBox="0 0 {_WIDTH} {height}" style="width:100%;height:{height}px;display:block">{bars}</svg></div></div></div>'
    )


def _render_event(e: Event, row: int, end: float, is_marked: bool) -> str:
    x, width = e.start / end * _WIDTH, max(e.length / end * _WIDTH, 0.3)
    outline = ' stroke="#c1121f" stroke-width="2"' if is_marked else ""
    return (
        f'<rect x="{x:.2f}" y="{row * _ROW + 3}" width="{width:.2f}" height="{_ROW - 6}" fill="{COLORS[e.kind]}"{outline}>'
        f"<title>{escape(e.name)}, line {e.line}: {e.start:,.0f} to {e.start + e.length:,.0f}</title></rect>"
    )
