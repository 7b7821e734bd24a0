"""A recording of what workers and engines did over logical time, for Chrome's or Perfetto's viewer and for pictures. Never changes a run.

Cost model, in cycles of a multiprocessor of an H200 (NVIDIA's tuning guide and programming guide give the rates): a product takes R*C*K / 2048 (multiply-adds) on the tensor cores;
a bulk copy takes 600 and its bytes / 32 on the copy engine; elementwise work on a tile takes elements / 128 an operation, exp2, log2 and tanh elements / 16.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..checking.checked import Checked
from ..ops.expressions import traits
from ..syntax.nodes import Binary, Call, Expr, Unary
from ..syntax.types import TileType
from ..syntax.walk import walk

PRODUCT_RATE, COPY_RATE, COPY_LATENCY, LANE_RATE, SPECIAL_RATE = 2048, 32, 600, 128, 16


@dataclass(frozen=True)
class Event:
    """`start` and `length` in cycles; `kind`: work, wait, product, copy or store."""

    track: str
    name: str
    kind: str
    start: float
    length: float
    line: int


@dataclass
class Trace:
    """Events of the first batch of a run, in the order they were recorded. Give one to `run(..., trace=Trace())`."""

    events: list[Event] = field(default_factory=list)
    idle_since: dict[str, float] = field(default_factory=dict)  # where each worker's current stretch of work began

    # ---- recording
    def waited(self, track: str, start: float, end: float, name: str, line: int) -> None:
        """A worker waited from `start` to `end`, and worked since it waited before."""
        since = self.idle_since.get(track, 0.0)
        if start > since:
            self.events.append(Event(track, "work", "work", since, start - since, line))
        if end > start:
            self.events.append(Event(track, name, "wait", start, end - start, line))
        self.idle_since[track] = end

    def busy(self, engine: str, name: str, kind: str, start: float, length: float, line: int) -> None:
        """An engine was busy."""
        self.events.append(Event(engine, name, kind, start, length, line))

    # ---- output
    def chrome(self) -> dict[str, Any]:
        """The trace in Chrome's JSON format: a cycle is shown as a nanosecond."""
        tracks = list(dict.fromkeys(e.track for e in self.events))
        names = [{"ph": "M", "pid": 0, "tid": i, "name": "thread_name", "args": {"name": t}} for i, t in enumerate(tracks)]
        spans = [
            {
                "ph": "X",
                "pid": 0,
                "tid": tracks.index(e.track),
                "name": e.name,
                "cat": e.kind,
                "ts": e.start / 1000,
                "dur": e.length / 1000,
                "args": {"line": e.line},
            }
            for e in self.events
        ]
        return {"traceEvents": names + spans, "displayTimeUnit": "ns"}

    def save(self, path: str | Path) -> None:
        """Writes the JSON that https://ui.perfetto.dev and chrome://tracing open."""
        Path(path).write_text(json.dumps(self.chrome()))


def expression_cost(e: Expr, checked: Checked) -> float:
    """Cycles of the elementwise work of an expression."""
    total = 0.0
    for n in walk(e):
        if not isinstance(n, (Binary, Unary, Call)):
            continue
        of = traits(n)
        t = checked.find_type(n.args[0] if (of.reduction or of.column_reduction) and isinstance(n, Call) and n.args else n)
        if isinstance(t, TileType) and (of.elementwise or of.reduction or of.column_reduction):
            total += t.rows * t.cols / (SPECIAL_RATE if of.special and isinstance(n, Call) else LANE_RATE)
    return total


_COLORS = {"work": "#7aa6c2", "wait": "#e8e4dc", "product": "#c2694f", "copy": "#7d9b6a", "store": "#b39b4d"}


def plot_trace(trace: Trace, path: str | Path, start: float = 0.0, stop: float | None = None) -> None:
    """Draws workers and engines over time: work, waits at barriers (named), products, copies and stores. Needs matplotlib; the suffix of `path` says the format."""
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    events = [e for e in trace.events if e.start + e.length > start and (stop is None or e.start < stop)]
    engines = ("tensor core", "copy engine")
    tracks = sorted({e.track for e in events}, key=lambda t: (t in engines, t))
    end = stop if stop is not None else max((e.start + e.length for e in events), default=1.0)
    shown = {e.kind for e in events}
    figure, axes = pyplot.subplots(figsize=(14, 0.6 * len(tracks) + 1.4))
    for e in events:
        y = tracks.index(e.track)
        axes.barh(y, e.length, left=e.start, height=0.8, color=_COLORS[e.kind], edgecolor="white", linewidth=0.4)
        if e.kind == "wait" and e.length > 0.035 * (end - start):  # room for its name
            axes.text(e.start + e.length / 2, y, e.name.removeprefix("wait "), ha="center", va="center", fontsize=6, clip_on=True)
    axes.set_yticks(range(len(tracks)), tracks)
    axes.invert_yaxis()
    axes.set_xlim(start, end)
    axes.set_xlabel("cycles of the interpreter's cost model")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        handles=[Patch(color=c, label=k) for k, c in _COLORS.items() if k in shown],
        ncols=5,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        frameon=False,
    )
    figure.tight_layout()
    figure.savefig(path, dpi=160)
    pyplot.close(figure)
