"""Pictures of docs/memory_and_barriers.md, drawn from a run of the page's program: `make picture`.

ring.svg: the stages and phases of a ring over time. order.svg: accesses of one stage, and the barriers and fences
between them. shared.svg: the bytes of shared memory, and the swizzle of a panel.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import cuir
from cuir.checking.checked import Checked
from cuir.interp import Trace, protocol, races
from cuir.interp.access_records import Actor, Record
from cuir.interp.barrier_state import Mbarrier
from cuir.interp.machine import Machine, Worker
from cuir.interp.memory import SharedRef
from cuir.text.figures import load_pyplot, save_figure

ROOT = Path(__file__).parent.parent
PAGE, DEVICE_FUNCTION = ROOT / "docs/memory_and_barriers.md", ROOT / "cuir/lowering/include/addresses.cuh"
USES = 5  # of the ring in ring.svg: its first stage comes to the third round
LEGIBLE = 250.0  # cycles of a bar that has room for a word
GENERIC, ASYNC, READ, FREE, IDLE = "#7aa6c2", "#c2694f", "#8f4a36", "#f1eee8", "#e8e4dc"
PALE_GENERIC, PALE_ASYNC = "#cfdfe9", "#ecc9bd"


@dataclass(frozen=True)
class Step:
    """A step of a run; `subject`: a barrier, or an array and its stage; `phase`: of the barrier, once it is complete."""

    kind: str  # arrive, land, wait, access, fence, mma_wait, store_wait
    party: str
    subject: str
    line: int
    time: float
    phase: int | None = None
    proxy: str = ""
    mode: str = ""
    issuer: str = ""  # of an access by an engine: the worker that issued it


class Recorder(Trace):
    """A trace that also keeps the steps at barriers, the fences, and the accesses to shared memory, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Step] = []

    def record_wait(self, track: str, start: float, end: float, name: str, line: int) -> None:
        super().record_wait(track, start, end, name, line)
        if name in ("mma_wait", "store_wait"):
            self.steps.append(Step(name, track, "", line, end))

    @contextlib.contextmanager
    def observe(self) -> Iterator[None]:
        """Keep the steps of runs inside the context."""
        with contextlib.ExitStack() as stack:
            for owner, name, wrapper in (
                (protocol, "arrive", self._arrive),
                (protocol, "land", self._land),
                (protocol, "wait", self._wait),
                (races, "access", self._access),
                (Worker, "fence", self._fence),
            ):
                stack.enter_context(mock.patch.object(owner, name, wrapper(getattr(owner, name))))
            yield

    def _arrive(self, original: Any) -> Any:
        def arrive(m: Machine, bar: Mbarrier, w: Worker, span: Any, expect: int = 0) -> None:
            before = bar.phase
            original(m, bar, w, span, expect)
            self.steps.append(Step("arrive", w.label, bar.text, span.line, w.time, before if bar.phase > before else None))

        return arrive

    def _land(self, original: Any) -> Any:
        def land(m: Machine, bar: Mbarrier, nbytes: int, actor: Actor, time: float) -> Any:
            event = original(m, bar, nbytes, actor, time)
            complete = event[1] if bar.phase > event[1] else None
            self.steps.append(Step("land", "copy engine", bar.text, actor.span.line, time, complete))
            return event

        return land

    def _wait(self, original: Any) -> Any:
        def wait(m: Machine, bar: Mbarrier, w: Worker, parity: int, span: Any) -> int | None:
            phase: int | None = original(m, bar, w, parity, span)
            if phase is None:
                self.steps.append(Step("wait", w.label, bar.text, span.line, max(w.time, bar.seen_time), bar.phase - 1))
            return phase

        return wait

    def _access(self, original: Any) -> Any:
        def access(m: Machine, actor: Actor, ref: SharedRef, mode: str, proxy: str, *rest: Any) -> Record:
            stage = (ref.intervals[0][0] - ref.alloc.offset) // (ref.alloc.nbytes // ref.alloc.dims[0]) if len(ref.alloc.dims) > 2 else None
            subject = ref.alloc.name if stage is None else f"{ref.alloc.name}[{stage}]"
            party = actor.label if proxy == "generic" else "tensor core" if actor.label.startswith("product") else "copy engine"
            issuer = actor.label.rpartition(" by ")[2] if proxy == "async" else ""
            self.steps.append(Step("access", party, subject, actor.span.line, m.workers[actor.worker].time, None, proxy, mode, issuer))
            record: Record = original(m, actor, ref, mode, proxy, *rest)
            return record

        return access

    def _fence(self, original: Any) -> Any:
        def fence(w: Worker, tensors: bool) -> None:
            original(w, tensors)
            self.steps.append(Step("fence", w.label, "", 0, w.time))

        return fence


def read_program() -> str:
    """Return the program of the page."""
    match = re.search(r"<!-- file: ring\.cuir -->\n```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    assert match is not None
    return match[1]


def record(uses: int) -> tuple[Recorder, Checked]:
    """Run one tile of the page's program, with this many uses of its ring."""
    checked, recorder = cuir.check(cuir.parse(read_program(), "ring.cuir")), Recorder()
    a, b = torch.randn(64, 64 * uses).half(), torch.randn(64 * uses, 64).half()
    with recorder.observe():
        cuir.run(checked, {"A": a, "B": b, "C": torch.empty(64, 64, dtype=torch.float16)}, grid=1, trace=recorder)
    return recorder, checked


def find_phases(steps: list[Step], barrier: str) -> list[float]:
    """Return the times at which the phases of a barrier are complete."""
    return [s.time for s in steps if s.subject == barrier and s.kind in ("arrive", "land") and s.phase is not None]


def find_holders(steps: list[Step], stage: int) -> list[tuple[str, float, float]]:
    """Return who may touch a stage, with start and end: the copy engine, then the consumer, then nobody.

    A copy holds it from its issue until the phase of `full` is complete, the consumer until that of `empty` is.
    """
    issues = [s.time for s in steps if s.kind == "access" and s.subject == f"a[{stage}]" and s.mode == "write"]
    landed, released = find_phases(steps, f"full[{stage}]"), find_phases(steps, f"empty[{stage}]")
    holders = []
    for issue, full, empty in zip(issues, landed, released, strict=True):
        holders += [("copy engine", issue, full), ("compute", full, empty)]
    return holders


# ---- ring.svg
def draw_ring(path: Path) -> None:
    """Draw workers, engines, stages and phases over the cycles of the cost model."""
    pyplot = load_pyplot("make picture")
    recorder, _ = record(USES)
    end = next(e.start + e.length for e in recorder.events if e.kind == "work")  # the store of the product
    rows = ["load[0]", "copy engine", "stage 0", "stage 1", "tensor core", "compute[0]", "full[0]", "empty[0]", "full[1]", "empty[1]"]
    figure, axes = pyplot.subplots(figsize=(11, 4.6))

    def draw(row: str, start: float, stop: float, color: str, words: str = "", ink: str = "black") -> None:
        axes.broken_barh([(start, stop - start)], (rows.index(row) - 0.4, 0.8), facecolors=color, edgecolor="white", linewidth=0.5)
        if words and stop - start > LEGIBLE:
            axes.text((start + stop) / 2, rows.index(row), words, ha="center", va="center", fontsize=8, color=ink)

    for e in recorder.events:
        if e.start < end:
            color = IDLE if e.kind == "wait" else GENERIC if e.kind == "work" else READ if e.kind == "product" else ASYNC
            draw(e.track, e.start, min(e.start + e.length, end), color, e.name if e.kind == "wait" else "")
    for stage in (0, 1):
        draw(f"stage {stage}", 0, end, FREE)
        for use, (holder, start, stop) in enumerate(find_holders(recorder.steps, stage)):
            is_copy = holder == "copy engine"
            draw(
                f"stage {stage}",
                start,
                stop,
                ASYNC if is_copy else READ,
                f"copies of use {use // 2 * 2 + stage}" if is_copy else "",
                "white",
            )
        for barrier in (f"full[{stage}]", f"empty[{stage}]"):
            edges = [0.0, *find_phases(recorder.steps, barrier), end]
            for phase, (start, stop) in enumerate(itertools.pairwise(edges)):
                draw(barrier, start, stop, (PALE_GENERIC, "#b3c8d6")[phase % 2], f"phase {phase}, parity {phase % 2}")
            for time in edges[1:-1]:
                extent = [rows.index(f"stage {stage}") - 0.45, rows.index(barrier) + 0.42]
                axes.plot([time, time], extent, color="#555555", linewidth=0.6, linestyle=":")
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.5, -0.6)
    axes.set_xlim(0, end)
    axes.set_xlabel("cycles of the interpreter's cost model")
    axes.spines[["top", "right"]].set_visible(False)
    keys = {"the copy engine writes": ASYNC, "the tensor core reads": READ, "a worker waits": IDLE, "a worker computes": GENERIC}
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=color) for color in keys.values()]
    axes.legend(handles, list(keys), ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False, fontsize=9)
    save(figure, path)


# ---- order.svg
def select_steps(steps: list[Step]) -> list[Step]:
    """Return the steps of stage 0 up to its second filling, and those of the epilogue; reads of one product are one step."""
    stage = ("full[0]", "empty[0]", "a[0]", "b[0]")
    selection: list[Step] = []
    for before, s in itertools.pairwise([steps[0], *steps]):
        if s.mode == before.mode == "read" and s.line == before.line and selection[-1].mode == "read":
            selection[-1] = replace(selection[-1], subject=f"{selection[-1].subject}, {s.subject}")
        elif s.subject in stage or (s.kind == "mma_wait" and selection[-1].mode == "read"):
            selection.append(s)
    writes = [i for i, s in enumerate(selection) if s.mode == "write"]
    begin = next(i for i, s in enumerate(steps) if s.subject == "c")
    return [*selection[: writes[3] + 1], *(s for s in steps[begin:] if s.kind in ("fence", "store_wait") or s.subject == "c")]


COLUMNS = {"load[0]": 0.0, "a[0], b[0]": 1.3, "copy engine": 2.6, "tensor core": 4.0, "compute[0]": 5.4, "c": 9.4}
ENGINES = ("copy engine", "tensor core")


def draw_order(path: Path) -> None:
    """Draw the steps of one stage as a sequence: a column for each party and array, an arrow for each order."""
    pyplot = load_pyplot("make picture")
    recorder, _ = record(3)
    steps, lines = select_steps(recorder.steps), read_program().splitlines()
    figure, axes = pyplot.subplots(figsize=(11, 0.36 * len(steps) + 1.0))
    last = len(steps) - 0.4
    for name, x in COLUMNS.items():
        color, proxy = (ASYNC, "async proxy") if name in ENGINES else (GENERIC, "generic proxy")
        if name in ("a[0], b[0]", "c"):
            color, proxy = "#333333", "shared memory"
        else:
            axes.plot([x, x], [-0.4, last], color=color, linewidth=1)
        axes.text(x, -1.45, name, ha="center", va="center", fontsize=9, fontweight="bold", color=color)
        axes.text(x, -0.85, proxy, ha="center", va="center", fontsize=8, color=color)
    for name, begin, end, words, color in find_bands(steps):
        axes.broken_barh([(COLUMNS[name] - 0.52, 1.04)], (begin - 0.5, end - begin), facecolors=color, edgecolor="white", zorder=0)
        axes.text(COLUMNS[name], (begin + end) / 2 - 0.5, words, ha="center", va="center", fontsize=7.5)
    for number, s in enumerate(steps):
        for party, words in describe_step(s, lines):
            x, is_left = COLUMNS[party], party == "load[0]" or (party in ENGINES and s.mode == "read")
            axes.plot(x, number, "o", color=ASYNC if party in ENGINES else GENERIC, markersize=5)
            raised, align = 0.3 if s.kind == "land" else 0.0, "right" if is_left else "left"  # an arrow begins where a copy has landed
            text = axes.text(x + (-0.1 if is_left else 0.1), number - raised, words, ha=align, va="center", fontsize=7.5, zorder=3)
            text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.8})
    for start, first, stop, second in find_orders(steps):
        head, tail = (COLUMNS[second], stop), (COLUMNS[first], start)
        axes.annotate("", head, tail, arrowprops={"arrowstyle": "->", "color": "#333333", "linewidth": 0.9, "shrinkA": 3, "shrinkB": 3})
    axes.set_ylim(last, -1.8)
    axes.set_xlim(-2.9, 10.0)
    axes.axis("off")
    save(figure, path)


def describe_step(s: Step, lines: list[str]) -> list[tuple[str, str]]:
    """Return the parties of a step, each with its words: statements of workers, and what engines do."""
    text = lines[s.line - 1].strip() if s.line else "fence_async()"
    if s.kind == "land":
        return [(s.party, "has landed" if s.phase is None else f"has landed: {s.subject} completes phase {s.phase}")]
    if s.issuer:
        return [(s.issuer, text), (s.party, f"{s.mode}s {s.subject}")]
    return [(s.party, text if s.kind != "arrive" or s.phase is None else f"{text}: {s.subject} completes phase {s.phase}")]


def find_orders(steps: list[Step]) -> list[tuple[int, str, int, str]]:
    """Return the pairs of steps of two parties that synchronisation orders, each with its party: issue, completion, wait."""
    orders = []
    for number, s in enumerate(steps):
        later = list(enumerate(steps))[number + 1 :]
        if s.kind in ("arrive", "land") and s.phase is not None:
            waits = [(i, t) for i, t in later if t.kind == "wait" and (t.subject, t.phase) == (s.subject, s.phase)]
            orders += [(number, s.party, i, t.party) for i, t in waits[:1]]
        elif s.issuer:
            orders.append((number, s.issuer, number, s.party))
            if s.mode == "read":
                waits = [(i, t) for i, t in later if t.kind == ("mma_wait" if s.party == "tensor core" else "store_wait")]
                orders += [(number, s.party, i, t.party) for i, t in waits[:1]]
    return orders


def find_bands(steps: list[Step]) -> list[tuple[str, float, float, str, str]]:
    """Return who may touch an array from which step to which: name, first, end, words, colour."""
    landed = next(i for i, s in enumerate(steps) if s.kind == "land" and s.phase is not None)
    released = next(i for i, s in enumerate(steps) if s.kind == "arrive" and s.subject == "empty[0]")
    fill, _, refill, _ = (i for i, s in enumerate(steps) if s.mode == "write" and s.issuer)
    stored = next(i for i, s in enumerate(steps) if s.kind == "access" and s.subject == "c")
    fence, waited = (next(i for i, s in enumerate(steps) if s.kind == kind) for kind in ("fence", "store_wait"))
    return [
        ("a[0], b[0]", 0, fill, "free", FREE),
        ("a[0], b[0]", fill, landed + 1, "copy engine\nwrites", PALE_ASYNC),
        ("a[0], b[0]", landed + 1, released + 1, "tensor core\nmay read", PALE_ASYNC),
        ("a[0], b[0]", released + 1, refill, "free", FREE),
        ("a[0], b[0]", refill, stored, "copy engine\nwrites", PALE_ASYNC),
        ("c", stored, fence + 1, "compute\nwrites", PALE_GENERIC),
        ("c", fence + 1, waited + 1, "copy engine\nmay read", PALE_ASYNC),
    ]


# ---- shared.svg
def read_swizzle() -> str:
    """Return the expression by which device code addresses a byte of a panelled array."""
    match = re.search(r"uint32_t at\(uint32_t base, int row, int byte\) \{\n  return (.*?);", DEVICE_FUNCTION.read_text(encoding="utf-8"))
    assert match is not None
    return match[1]


def place_chunk(row: int, chunk: int, rows: int) -> int:
    """Return the byte at which a chunk of 16 bytes of a row lies."""
    return int(eval(read_swizzle(), {"base": 0, "row": row, "byte": 16 * chunk, "ROWS": rows}))


def draw_shared(path: Path) -> None:
    """Draw the map of shared memory, and eight rows of a panel without and with the swizzle."""
    pyplot = load_pyplot("make picture")
    from matplotlib.colors import ListedColormap

    _, checked = record(1)
    figure = pyplot.figure(figsize=(11, 4.9))
    grid = figure.add_gridspec(2, 2, height_ratios=[0.75, 4], hspace=0.62, wspace=0.12)
    strip = figure.add_subplot(grid[0, :])
    end = max(a.offset + a.nbytes for a in checked.shared.values())
    for alloc in checked.shared.values():
        stages = alloc.dims[0] if len(alloc.dims) > 2 else 1
        size = alloc.nbytes // stages
        for stage in range(stages):
            start = alloc.offset + stage * size
            strip.broken_barh([(start, size)], (0, 1), facecolors=(GENERIC if stages == 1 else ASYNC), edgecolor="white", linewidth=2)
            label = alloc.name if stages == 1 else f"{alloc.name}[{stage}]"
            strip.text(start + size / 2, 0.5, f"{label}: 64 rows of 128 bytes", ha="center", va="center", fontsize=8, color="white")
    strip.set_xlim(0, end)
    strip.set_xticks(sorted({a.offset + s * 8192 for a in checked.shared.values() for s in range(a.nbytes // 8192)} | {end}))
    strip.set_yticks([])
    strip.set_title("Shared memory of a CTA, in bytes", fontsize=10, loc="left")
    strip.spines[["top", "right", "left"]].set_visible(False)
    for column, title in enumerate(("row by row: chunk 0 of 8 rows lies in 4 banks", "swizzled: chunk 0 of 8 rows lies in all 32 banks")):
        axes = figure.add_subplot(grid[1, column])
        chunks = [[0] * 8 for _ in range(8)]
        for row in range(8):
            for chunk in range(8):
                chunks[row][(place_chunk(row, chunk, 64) - 128 * row) // 16 if column else chunk] = chunk
        axes.pcolormesh([[c == 0 for c in row] for row in chunks], cmap=ListedColormap([FREE, ASYNC]), edgecolors="white", linewidth=2)
        for row, places in enumerate(chunks):
            for place, chunk in enumerate(places):
                axes.text(place + 0.5, row + 0.5, str(chunk), ha="center", va="center", fontsize=9, color="black" if chunk else "white")
        axes.set_xlim(0, 8)
        axes.set_ylim(8, 0)
        axes.set_xticks([i + 0.5 for i in range(8)], [f"{4 * i}-{4 * i + 3}" for i in range(8)], fontsize=8)
        axes.set_yticks([i + 0.5 for i in range(8)], [str(i) for i in range(8)])
        axes.set_xlabel("banks of 4 bytes")
        axes.set_ylabel("row" if column == 0 else "")
        axes.tick_params(length=0)
        axes.set_title(title, fontsize=10, loc="left")
        axes.spines[:].set_visible(False)
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    """Write an SVG whose bytes do not change from run to run."""
    import matplotlib

    settings: dict[Any, Any] = {"svg.hashsalt": "cuir", "svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"]}
    with matplotlib.rc_context({**settings, "savefig.bbox": "tight", "savefig.facecolor": "white"}):
        save_figure(figure, path)
    if path.suffix == ".svg":
        text = path.read_text(encoding="utf-8")
        path.write_text(re.sub(r"\n *<dc:date>.*?</dc:date>", "", text), encoding="utf-8")


PICTURES = {"ring.svg": draw_ring, "order.svg": draw_order, "shared.svg": draw_shared}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    torch.manual_seed(0)
    for name, draw in PICTURES.items():
        draw(folder / name)


if __name__ == "__main__":
    main()
