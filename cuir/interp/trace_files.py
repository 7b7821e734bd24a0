"""Files of a trace, by their ending: JSON for Perfetto and Chrome, pictures, a page.

Pictures need matplotlib.
"""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from ..text.diagnostics import CuirError
from ..text.figures import load_pyplot, save_figure
from .event_trace import Trace, find_flights, is_named

FORMATS = {".json": "for Perfetto and Chrome", ".png": "a picture", ".svg": "a picture", ".html": "a page that zooms and steps"}
ENGINES = ("tensor core", "copy engine")
COLORS = {
    "work": "#7aa6c2",
    "wait": "#e8e4dc",
    "product": "#c2694f",
    "copy": "#7d9b6a",
    "store": "#b39b4d",
    "blocked": "#a02c2c",
    "access": "#f08a24",
    "fault": "#e02020",
}
ROOM = 0.035  # fraction of the width that the name of a wait takes


def require_trace_format(path: str | Path) -> None:
    """Check the ending of a trace's file before anything runs.

    Raises CuirError U126 for an ending that names no format, U120 where matplotlib is needed and missing.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise CuirError.of(
            "U126",
            f"a trace is written by the ending of its file, found `{path}`",
            hint="; ".join(f"{ending}: {description}" for ending, description in FORMATS.items()),
        )
    if suffix not in (".json", ".html"):
        load_pyplot("cuir run ... --trace FILE", f"a trace as {suffix}")


def write_trace(trace: Trace, path: str | Path, title: str = "") -> None:
    """Write a trace in the format of the name's ending.

    Raises CuirError U126 and U120 as `require_trace_format`, U108.
    """
    require_trace_format(path)
    path, suffix = Path(path), Path(path).suffix.lower()
    if suffix in (".png", ".svg"):
        plot_trace(trace, path)
        return
    text = json.dumps(trace.chrome()) if suffix == ".json" else _make_page(trace, title or path.stem)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CuirError.of("U108", f"cannot write {path}: {error.strerror}", hint="name another file") from None


def plot_trace(trace: Trace, path: str | Path, start: float = 0.0, stop: float | None = None) -> None:
    """Draw workers and engines over time as PNG or SVG.

    Shows work, waits at barriers (named), products, copies and stores. start, stop: in cycles. Raises CuirError U120
    without matplotlib, U108 if the file cannot be written.
    """
    pyplot = load_pyplot("the same command", "a picture of a trace")
    save_figure(_draw_figure(pyplot, trace, start, stop, 14.0), Path(path), dpi=160)


def _draw_figure(pyplot: Any, trace: Trace, start: float, stop: float | None, width: float) -> Any:
    """Draw a figure with a row for each worker and engine.

    Thin bars show engines' work until it is waited for.
    """
    from matplotlib.patches import Patch

    events = [e for e in trace.events if e.start + e.length > start and (stop is None or e.start < stop)]
    tracks = sorted({e.track for e in events}, key=lambda t: (t in ENGINES, t))
    row = {track: number for number, track in enumerate(tracks)}
    end = stop if stop is not None else max((e.start + e.length for e in events), default=1.0)
    drawn_kinds = {e.kind for e in events}
    figure, axes = pyplot.subplots(figsize=(width, 0.6 * len(tracks) + 1.4))
    spans: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for e in events:
        spans.setdefault((e.track, e.kind), []).append((e.start, e.length))
        if e.kind in ("wait", "blocked") and e.length > ROOM * (end - start) * 14.0 / width:
            axes.text(
                e.start + e.length / 2,
                row[e.track],
                e.name.removeprefix("wait "),
                ha="center",
                va="center",
                fontsize=6,
                clip_on=True,
                color="white" if e.kind == "blocked" else "black",
            )
    for (track, kind), extents in spans.items():
        axes.broken_barh(extents, (row[track] - 0.4, 0.8), facecolors=COLORS[kind], edgecolor="white", linewidth=0.4)
    for f in find_flights(trace):
        finish = f.event.start + f.event.length
        if f.event.track in row and f.until > finish:
            axes.broken_barh([(finish, f.until - finish)], (row[f.event.track] + 0.2, 0.2), facecolors=COLORS[f.event.kind], alpha=0.5)
    faulty = [e for e in events if trace.fault is not None and is_named(e, trace.fault)]
    axes.barh([row[e.track] for e in faulty], [e.length for e in faulty], 0.8, [e.start for e in faulty], fc="none", ec="black", lw=1.5)
    axes.set_yticks(range(len(tracks)), tracks)
    axes.invert_yaxis()
    axes.set_xlim(start, end)
    axes.set_xlabel("cycles of the interpreter's cost model; thin bars: may still access memory, until waited for")
    axes.spines[["top", "right"]].set_visible(False)
    handles = [Patch(color=c, label=k) for k, c in COLORS.items() if k in drawn_kinds]
    axes.legend(handles=handles, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    figure.tight_layout()
    return figure


def _make_page(trace: Trace, title: str) -> str:
    """Return an HTML page with the notebook view of a trace."""
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body><h1>{html.escape(title)}</h1>{trace._repr_html_()}</body></html>\n'
