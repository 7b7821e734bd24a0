"""Picture of a trace: a row for each worker, engine and barrier over the cycles of the cost model.

It zooms and pans.

Rows of a timeline for barriers: their phases over time.

They have a tick for each arrival and each copy that lands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from ..interp.event_trace import Event, Flight, SyncStep, Trace, find_flights, is_named
from ..interp.trace_files import COLORS, ENGINES
from .html_table import render_table
from .schedule_steps import BarrierState, sort_key


@dataclass
class BarrierRow:
    """Row of an mbarrier.

    Attributes:
        phases: First and last cycle of each phase; the last one may still be under way.
        ticks: Cycle and description of what arrived or landed.
    """

    name: str
    phases: list[tuple[float, float]] = field(default_factory=list)
    ticks: list[tuple[float, str, int]] = field(default_factory=list)


def make_barrier_rows(steps: Sequence[SyncStep], end: float) -> list[BarrierRow]:
    """Return a row for each mbarrier that is used, in the order of names. end: last cycle of the picture."""
    rows: dict[str, BarrierRow] = {}
    states: dict[str, BarrierState] = {}
    begun: dict[str, float] = {}
    for step in steps:
        if step.kind not in ("arrive", "land"):
            continue
        row = rows.setdefault(step.target, BarrierRow(step.target))
        before = states.get(step.target, BarrierState())
        after = states[step.target] = before.after(step)
        row.ticks.append((step.cycle, f"{step.actor} {'arrives' if step.kind == 'arrive' else 'lands'}, phase {before.phase}", step.line))
        if after.phase != before.phase:
            start = begun.get(step.target, 0.0)
            row.phases.append((start, max(step.cycle, start)))
            begun[step.target] = max(step.cycle, start)
    for name, row in rows.items():
        row.phases.append((begun.get(name, 0.0), max(end, begun.get(name, 0.0))))
    return sorted(rows.values(), key=lambda row: sort_key(row.name))


ROW, WIDTH = 26, 1100  # of the picture's coordinates
FINDING = "#111111"  # outline
_LABEL = 130
_MOST = 6000  # events drawn
_BARRIERS = 40  # rows
_PHASES = ("#d9d2e9", "#efeaf7")  # even and odd
_ORDER = (
    "Bars are times of a cost model, not measured ones. A race is an order that is missing: two accesses may conflict "
    "though their bars do not overlap. A thin bar lasts until a wait for that copy, store or product."
)
_BUTTONS = (
    ("in", "+", "zoom in"),
    ("out", "&minus;", "zoom out"),
    ("left", "&larr;", "earlier"),
    ("right", "&rarr;", "later"),
    ("all", "all", "the whole run"),
)


def render_timeline(trace: Trace, marked_line: int | None = None) -> str:
    """Render a trace as SVG with buttons for zoom.

    marked_line: outline events of this line of the program.
    """
    events = trace.events[:_MOST]
    if not events:
        return "<p>No events were recorded.</p>"
    tracks = sorted({e.track for e in events}, key=lambda t: (t in ENGINES, t))
    end = max(e.start + e.length for e in events)
    rows = {track: i for i, track in enumerate(tracks)}
    barriers = make_barrier_rows(trace.sync_steps[:_MOST], end)[:_BARRIERS]
    names = [*tracks, *(b.name for b in barriers)]
    labels = "".join(f'<div style="height:{ROW}px;line-height:{ROW}px">{escape(name)}</div>' for name in names)
    marked_events = find_marked(trace, marked_line)
    bars = "".join(_render_event(e, rows[e.track], end, e in marked_events) for e in events)
    flights = [f for f in find_flights(trace) if f.event.track in rows and f.until > f.event.start + f.event.length]
    bars += "".join(_render_flight(f, rows[f.event.track], end, f.event in marked_events) for f in flights)
    bars += "".join(_render_barrier(b, len(tracks) + i, end) for i, b in enumerate(barriers))
    height = ROW * len(names)
    kinds = [k for k in COLORS if any(e.kind == k for e in events)]
    legend = " ".join(f'<span class="swatch" style="background:{COLORS[k]}"></span> {k}' for k in kinds)
    if barriers:
        swatches = "".join(f'<span class="swatch" style="background:{c};margin-right:0"></span>' for c in _PHASES)
        legend += f" {swatches} phases of a barrier, with arrivals"
    marked = f' <span class="swatch" style="outline:2px solid {FINDING}"></span> the finding' if f'stroke="{FINDING}"' in bars else ""
    left_out = f" The first {_MOST} of {len(trace.events)} events." if len(trace.events) > _MOST else ""
    buttons = " ".join(f'<button type="button" data-zoom="{name}" title="{title}">{mark}</button>' for name, mark, title in _BUTTONS)
    marker = (
        f'<line class="marker" y1="0" y2="{height}" x1="-9" x2="-9" stroke="#c1121f" stroke-width="2" vector-effect="non-scaling-stroke"/>'
    )
    return (
        f'<div class="timeline" data-cycles="{end:.0f}" data-tracks="{escape("|".join(tracks))}"><p>{legend}{marked}{left_out}</p><p>{_ORDER}</p>'
        f'<p>{buttons} <span class="range">cycles 0 to {end:,.0f} of the cost model</span>; drag moves, Ctrl with the wheel zooms, a click shows the line.</p>'
        f'<div style="display:flex"><div style="width:{_LABEL}px;flex:none;font-size:12px">{labels}</div>'
        f'<div style="flex:auto;min-width:0"><svg xmlns="http://www.w3.org/2000/svg" role="img" preserveAspectRatio="none" '
        f'viewBox="0 0 {WIDTH} {height}" style="width:100%;height:{height}px;display:block;cursor:grab">{bars}{marker}</svg></div></div>{_render_totals(trace, tracks)}</div>'
    )


def find_marked(trace: Trace, line: int | None) -> set[Event]:
    """Return the events of the finding: both accesses of a race, else those of a line of the program."""
    named = {e for e in trace.events if trace.fault is not None and is_named(e, trace.fault)}
    return named or {e for e in trace.events if e.line == line}


def _render_totals(trace: Trace, tracks: Sequence[str]) -> str:
    """Render the cycles of each row by kind, folded."""
    totals = Counter[tuple[str, str]]()
    for e in trace.events:
        totals[e.track, e.kind] += round(e.length)
    kinds = [kind for kind in COLORS if any((track, kind) in totals for track in tracks)]
    rows = [(track, *(f"{totals[track, kind]:,}" if (track, kind) in totals else "" for kind in kinds)) for track in tracks]
    return f"<details><summary>cycles of each row</summary>{render_table(('', *kinds), rows)}</details>"


def _render_barrier(barrier: BarrierRow, row: int, end: float) -> str:
    y, scale = row * ROW, WIDTH / end
    phases = "".join(
        f'<rect class="phase" x="{a * scale:.2f}" y="{y + 8}" width="{max((b - a) * scale, 0):.2f}" height="{ROW - 16}" fill="{_PHASES[n % 2]}">'
        f"<title>{escape(barrier.name)}, phase {n}: {a:,.0f} to {b:,.0f}</title></rect>"
        for n, (a, b) in enumerate(barrier.phases)
    )
    ticks = "".join(
        f'<line x1="{x * scale:.2f}" x2="{x * scale:.2f}" y1="{y + 5}" y2="{y + ROW - 5}" stroke="#5e4b8b" stroke-width="2" '
        f'vector-effect="non-scaling-stroke" data-line="{line}"><title>{escape(text)}, line {line}</title></line>'
        for x, text, line in barrier.ticks
    )
    return phases + ticks


def _render_event(e: Event, row: int, end: float, is_marked: bool) -> str:
    x, width = e.start / end * WIDTH, max(e.length / end * WIDTH, 0.3)
    outline = f' stroke="{FINDING}" stroke-width="3" vector-effect="non-scaling-stroke"' if is_marked else ""
    return (
        f'<rect x="{x:.2f}" y="{row * ROW + 3}" width="{width:.2f}" height="{ROW - 6}" fill="{COLORS[e.kind]}" data-line="{e.line}"{outline}>'
        f"<title>{escape(e.name)}, line {e.line}: {e.start:,.0f} to {e.start + e.length:,.0f}</title></rect>"
    )


def _render_flight(flight: Flight, row: int, end: float, is_marked: bool) -> str:
    """Render the time from the end of an engine's work to the wait for it as a thin bar."""
    x, last = (flight.event.start + flight.event.length) / end * WIDTH, flight.until / end * WIDTH
    outline = f' stroke="{FINDING}" stroke-width="1.5" vector-effect="non-scaling-stroke"' if is_marked else ""
    return (
        f'<rect class="flight" x="{x:.2f}" y="{row * ROW + ROW - 8}" width="{max(last - x, 0):.2f}" height="5" fill="{COLORS[flight.event.kind]}" '
        f'fill-opacity="0.6" data-line="{flight.event.line}"{outline}><title>{escape(flight.describe())}</title></rect>'
    )
