"""A kernel's PTX as a reading: its calls with names and lines of the sources. Owns names and places; what is called is calls.py's."""

from __future__ import annotations

import functools
import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cuir.text.diagnostics import CuirError
from cuir.text.source import Source, Span

from ..reading import Array, LowCall, Reading
from .calls import Event, Region, Ring, bits, events_of, lies_over, regions_of, rings_of
from .module import Chain, Entry, Frame
from .threads import Threads

LIBRARY = re.compile(r"/(cute|cutlass|cuda[^/]*|nvidia|crt)/")  # whose lines say less than those that call them
WRAPPER = re.compile(r"/(cute/(arch|atom|algorithm|numeric|util)|cutlass/(arch|detail|numeric\w*|pipeline)|cuda[^/]*|crt)/")
WORDS = re.compile(r"[A-Za-z_]\w*")
ABOUT = re.compile(r"(?i)bar|pipe|full|empty|ready|free|mbar|sem|turn|done")
GENERIC = frozenset(
    [
        "pipeline",
        "barrier",
        "barriers",
        "bar",
        "mbar",
        "mbarrier",
        "full",
        "empty",
        "Barrier",
        "barrier_",
        "full_barrier",
        "empty_barrier",
        "full_barrier_ptr_",
        "empty_barrier_ptr_",
        "barrier_token",
        "ClusterBarrier",
        "ClusterTransactionBarrier",
        "TransactionBarrier",
        "return",
        "pipelines",
    ]
)
STATES = re.compile(
    r"smem_pipe_\w+|pipeline_params\w*|\w+_state|conditional_\w+|\w+_arv_cnt|get_\w+|init\w*_\w+|barrier_ptr_|(full|empty)_barriers?(_ptr)?_?|\w+_addr\w*"
)  # what several pipelines share, or each has
TILE = re.compile(r"\b(?:t[A-Za-z]+?)?s(d?[A-Z]\w*)")  # CuTe's and most people's names of tiles in shared memory: sK, tQsQ, tdSsdS
MOST_BYTES = 1 << 22  # of a source that is shown


@dataclass
class Compiled(Reading):
    """places: what a call's `at` stands for."""

    places: list[Chain] = field(default_factory=list)
    found: tuple[tuple[str, Span], ...] = ()
    not_known: tuple[str, ...] = ()
    not_certain: frozenset[str] = frozenset()
    own: tuple[str, ...] = ()
    code: Mapping[str, frozenset[int]] = field(default_factory=dict)  # of each file the lines that instructions come from

    by = "compiler"

    @property
    def more(self) -> tuple[tuple[str, Span], ...]:
        return self.found

    @property
    def unknown(self) -> tuple[str, ...]:
        return self.not_known

    @property
    def uncertain(self) -> frozenset[str]:
        return self.not_certain

    @property
    def sources(self) -> tuple[Source, ...]:
        return tuple(dict.fromkeys([self.source, *(self.place(c.at)[0] for c in self.calls)]))

    def with_code(self, source: Source) -> frozenset[int] | None:
        lines = [n for path, n in self.code.items() if source_of(path, self.own[0]) == source]
        return frozenset().union(*lines) if lines else None

    def place(self, at: int) -> tuple[Source, int]:
        frame = shown(self.places[at], self.own)
        return (source_of(frame.path, self.own[0]), frame.line) if frame is not None else (self.source, 1)

    def calling(self, at: int) -> list[tuple[Source, int]]:
        own = [(source_of(f.path, self.own[0]), f.line) for f in self.places[at] if f.path.startswith(self.own) and f.line]
        return own or [self.place(at)]

    def span(self, at: int) -> Span:
        return span_of(self.places[at], self.own, self.source)


def span_of(chain: Chain, own: Sequence[str], source: Source) -> Span:
    """The line that says most of a chain, with the calls that it was inlined through."""
    frame = shown(chain, own)
    if frame is None:
        return Span(source, 1, 1, 1, 2)
    outer = chain[chain.index(frame) + 1 :]
    via = None
    for f in reversed(outer):
        via = _span(f, via, own[0])
    return _span(frame, via, own[0])


def _span(frame: Frame, via: Span | None, root: str) -> Span:
    source = source_of(frame.path, root)
    text = source.line(frame.line)
    start = len(text) - len(text.lstrip()) + 1
    return Span(source, frame.line, start, frame.line, max(len(text) + 1, start + 1), via)


def shown(chain: Chain, own: Sequence[str]) -> Frame | None:
    """The innermost place in sources of the user's own; else the innermost that is no wrapper of an instruction."""
    for test in (lambda f: f.path.startswith(tuple(own)), lambda f: not WRAPPER.search(f.path), lambda f: True):
        for frame in chain:
            if frame.line and test(frame):
                return frame
    return None


@functools.lru_cache(256)
def source_of(path: str, root: str) -> Source:
    """A source by its path, named as seen from a folder; empty if it cannot be read."""
    try:
        text = Path(path).read_bytes()[:MOST_BYTES].decode("utf-8", "replace") if path else ""
    except OSError:
        text = ""
    name = os.path.relpath(path, root) if path else ""
    return Source(name if not name.startswith("../../..") else "/".join(["...", *Path(path).parts[-3:]]), text)


def reading_of(
    entry: Entry, kernel: str, source: Path, own: Sequence[str], threads: int | None = None, cluster: tuple[int, int, int] | None = None
) -> Compiled:
    """What a kernel's PTX shows. own: folders of the user's sources. Raises CuirError O122 if the number of threads is not known."""
    shape = (threads, 1, 1) if threads is not None else entry.threads
    if shape is None or not 0 < shape[0] * shape[1] * shape[2] <= 1024:
        raise CuirError.of("O122", f"how many threads a CTA of `{kernel}` has must be known, found {threads}",
                           hint="--threads N, `threads` of the launch description, or a __launch_bounds__")  # fmt: skip
    own = tuple(str(Path(o).resolve()) + "/" for o in own)
    analysed = Threads(entry, shape, cluster or entry.cluster)
    events = events_of(analysed)
    rings = [r for r in rings_of(events) if any(e.kind != "init" and set(e.barriers) & set(r.addresses) for e in events)]
    regions = regions_of(events, rings)
    names = _Names(events, rings, regions, own)
    code: dict[str, set[int]] = defaultdict(set)
    for frame in {f for x in analysed.instructions for f in x.chain}:
        code[frame.path].add(frame.line)
    reading = Compiled(
        source_of(str(source.resolve()), own[0]), kernel, analysed.count, [], {}, own=own, code={p: frozenset(n) for p, n in code.items()}
    )
    _arrays(reading, rings, regions, names)
    calls: dict[tuple[object, ...], LowCall] = {}
    made: set[str] = set()
    for e in events:
        about = names.about(e)
        if e.kind == "init":
            for name in (n for n in about if n not in made):
                made.add(name)
                ring = names.ring[name]
                calls["init", name] = LowCall("init", e.instruction.op, "", _at(reading, ring.chain), bits(e.threads), (name,), ring.count, (), (), _via(e.chain, own),
                                              e.in_loop, len(ring.addresses), str(ring.count))  # fmt: skip
            continue
        key = (e.kind, e.chain, about, e.number, tuple(i for i, _ in e.ids))
        if (before := calls.get(key)) is not None:
            ids = tuple((i, m | n) for (i, m), (_, n) in zip(before.ids, e.ids))
            calls[key] = LowCall(
                **{**before.__dict__, "threads": before.threads | bits(e.threads), "ids": ids, "in_loop": before.in_loop or e.in_loop}
            )
        else:
            calls[key] = LowCall(e.kind, e.instruction.op, e.instruction.op, _at(reading, e.chain), bits(e.threads), about, e.number, e.ids, (), _via(e.chain, own),
                                 e.in_loop, 1, "" if e.number is None else str(e.number))  # fmt: skip
    reading.calls = list(calls.values())
    reading.not_known = _not_known(events, own, reading.source, regions)
    reading.not_certain = frozenset(e.kind for e in events if e.unknown and not e.barriers)
    reading.found = _further(analysed, events, names, own, reading.source)
    return reading


def _at(reading: Compiled, chain: Chain) -> int:
    reading.places.append(chain)
    return len(reading.places) - 1


def _via(chain: Chain, own: Sequence[str]) -> tuple[str, ...]:
    """The functions that a call was inlined through, from the place that is shown outwards."""
    frame = shown(chain, own)
    if frame is None:
        return ()
    rest = chain[chain.index(frame) :]
    return tuple(plain_name(f.function) for f in rest[::-1] if f.function)[-3:]


def plain_name(mangled: str) -> str:
    """The last name in a mangled one: enough to find the function."""
    if mangled.startswith("_ZZ"):
        return "a lambda"
    parts, at = [], mangled.find("N") + 1 if mangled.startswith("_ZN") else 2 if mangled.startswith("_Z") else -1
    if at < 0:
        return mangled
    while match := re.compile(r"K?(\d+)").match(mangled, at):
        size = int(match[1])
        parts.append(mangled[match.end() : match.end() + size])
        at = match.end() + size
    names = [p for p in parts if not p.startswith("_INTERNAL")]
    return names[-1] if names else mangled


class _Names:
    """Names of barriers and arrays, taken from the lines that use them."""

    def __init__(self, events: Sequence[Event], rings: Sequence[Ring], regions: Sequence[Region], own: Sequence[str]):
        self.own = own
        self.ring: dict[str, Ring] = {}
        self.region: dict[str, Region] = {}
        self.of_address: dict[int, str] = {}
        said: dict[Ring, Counter[str]] = {r: Counter() for r in rings}
        everywhere: Counter[str] = Counter()
        for r in rings:
            for e in events:
                if set(e.barriers) & set(r.addresses) and e.kind != "bulk_load":
                    said[r].update(set(_words(e.chain, own)))
            most = max(said[r].values(), default=0)  # places that nvcc made one are said to be one of them: few lines may be another's
            said[r] = Counter({w: n for w, n in said[r].items() if 2 * n >= most})
            everywhere.update(said[r].keys())
        carries = {r for r in rings if any(e.kind in ("expect", "bulk_load") and set(e.barriers) & set(r.addresses) for e in events)}
        chosen = {r: self._name(said[r], everywhere) for r in rings}
        for r in rings:
            pair = [other for other in rings if chosen[other] == chosen[r]]
            name = chosen[r] or f"barrier_{r.addresses[0]}"
            if len(pair) == 2 and len(carries & set(pair)) == 1 and not re.search("(?i)full|empty|ready|free", name):
                name = f"{name}_{'full' if r in carries else 'empty'}"
            name = self._free(name, self.ring)
            self.ring[name] = r
            self.of_address |= dict.fromkeys(r.addresses, name)
        self.over = lies_over(events)
        shared = Counter(g.ring for g in regions)
        for g in regions:
            base = _tile(g.chain, own) if g.ring is None or shared[g.ring] > 1 else ""
            if g.ring is not None and not base:
                base = re.sub(r"(?i)_?(full|ready|pipeline|pipe|bar(rier)?s?)_?", "", self.of_address[g.ring.addresses[0]]).strip("_")
            name = self._free(f"smem_{base}" if base and not base.isdigit() else f"smem_{g.starts[0]}", self.region)
            self.region[name] = g

    @staticmethod
    def _name(said: Counter[str], everywhere: Counter[str]) -> str:
        """The word that fewest other barriers share, and most uses have."""
        rated = sorted((everywhere[w], -n, w) for w, n in said.items() if w not in GENERIC)
        return rated[0][2] if rated else ""

    @staticmethod
    def _free(name: str, taken: dict[str, object] | dict[str, Ring] | dict[str, Region]) -> str:
        number, free = 2, name
        while free in taken:
            free, number = f"{name}_{number}", number + 1
        return free

    def about(self, e: Event) -> tuple[str, ...]:
        """What a call is about: the array that is copied first, then the barrier; of a named barrier the constant that names it."""
        if e.kind in ("named_sync", "named_arrive"):
            return tuple(_constants(e.chain, self.own)[:1])
        arrays = (
            [n for n, g in self.region.items() if g.meets(self.over.get(e.index, e.memory))]
            if e.kind in ("bulk_load", "bulk_store", "cp_async", "ldmatrix", "stmatrix")
            else []
        )
        barriers = dict.fromkeys(self.of_address[a] for a in e.barriers if a in self.of_address)
        return (*arrays, *barriers)


def _words(chain: Chain, own: Sequence[str]) -> list[str]:
    """The names of barriers, most likely, in the lines of a chain: of the innermost line that has any."""
    for test in (lambda f: f.path.startswith(tuple(own)), lambda f: not LIBRARY.search(f.path), lambda f: True):
        for frame in chain:
            if test(frame):
                found = [
                    w
                    for w in WORDS.findall(source_of(frame.path, own[0]).line(frame.line))
                    if ABOUT.search(w) and w not in GENERIC and not STATES.fullmatch(w) and w[0].islower()
                ]
                if found:
                    return found
    return []


def _tile(chain: Chain, own: Sequence[str]) -> str:
    """What a statement calls the tile in shared memory that it fills or takes: the last such name of the innermost of the user's own, else of a library's that
    is no wrapper; empty if none has one."""
    for test in (lambda f: f.path.startswith(tuple(own)), lambda f: not WRAPPER.search(f.path)):
        for frame in chain:
            if test(frame) and (found := TILE.findall(_statement(frame, own))):
                return str(found[-1])
    return ""


def _statement(frame: Frame, own: Sequence[str]) -> str:
    """The text from a place to the end of its statement, or of its third line."""
    source, lines = source_of(frame.path, own[0]), list[str]()
    for n in range(frame.line, frame.line + 3):
        lines.append(source.line(n))
        if lines[-1].rstrip().endswith((";", "{", "}")):
            break
    return " ".join(lines)


def _constants(chain: Chain, own: Sequence[str]) -> list[str]:
    """Names of constants in the lines of a chain, of the innermost line of the user's own that has any: they name named barriers."""
    for frame in chain:
        if frame.path.startswith(tuple(own)):
            line = _statement(frame, own)
            found = re.findall(r"Barriers?::(?!sync|arrive)(\w+)", line) or [
                w for w in re.findall(r"\b[A-Z][A-Z0-9_]{2,}\b", line) if "THREADS" not in w
            ]
            if found:
                return found
    return []


def _arrays(reading: Compiled, rings: Sequence[Ring], regions: Sequence[Region], names: _Names) -> None:
    for name, ring in names.ring.items():
        reading.arrays[name] = Array(name, "uint64_t", (len(ring.addresses),), _at(reading, ring.chain))
    for name, region in names.region.items():
        reading.arrays[name] = Array(name, "uint8_t", (region.stages, region.nbytes), _at(reading, region.chain))


def _not_known(events: Sequence[Event], own: Sequence[str], source: Source, regions: Sequence[Region]) -> tuple[str, ...]:
    """What does not follow from the PTX, each with its line."""
    said = [
        f"{e.unknown} of {e.instruction.op.split('.shared')[0]} at {span_of(e.chain, own, source)}"
        for e in events
        if e.unknown and e.kind not in ("ldmatrix", "stmatrix")
    ]
    said += [f"the bytes of the array at {g.starts[0]}, filled at {span_of(g.chain, own, source)}" for g in regions if g.nbytes is None]
    return tuple(dict.fromkeys(said))


def _further(threads: Threads, events: Sequence[Event], names: _Names, own: Sequence[str], source: Source) -> tuple[tuple[str, Span], ...]:
    """Shapes of products, bytes of phases, multicast, clusters, stores over arrays, tile counters, persistent loops."""
    found: dict[str, Chain] = {}
    for e in events:
        op = e.instruction.op
        if e.kind in ("wgmma", "mma"):
            shape = re.search(r"\.(m\d+n\d+k\d+)((?:\.\w+)*)", op)
            if shape:
                found.setdefault(f"products {e.kind} {shape[1]}{shape[2]}", e.chain)
        if e.kind in ("expect", "expect_bytes"):
            for name in names.about(e):
                found.setdefault(f"{name}: {'?' if e.number is None else f'{e.number:,}'} bytes a phase", e.chain)
        if e.kind == "bulk_load" and "multicast" in op:
            found.setdefault(f"copies to several CTAs of a cluster (multicast) complete on {', '.join(names.about(e)[-1:])}", e.chain)
        if e.kind == "bulk_store":
            for name in names.about(e):
                found.setdefault(f"output is stored from where {name} lies", e.chain)
        if e.kind == "arrive" and {n for n, _ in e.ids} - {0}:
            found.setdefault(f"arrivals at {', '.join(names.about(e))} of other CTAs of the cluster", e.chain)
        if e.kind == "fence_async":
            found.setdefault("fence.proxy.async before the copy engine reads", e.chain)
    for i, x in enumerate(threads.instructions):
        inside = threads.flow.inside(threads.flow.of[i])
        if x.op.startswith("atom.") and ".add" in x.op and ".shared" not in x.op and inside and threads.at(i).sum() == 1:
            found.setdefault("tiles are handed out by a counter in global memory (atom.add by one thread)", x.chain)
        if x.op.startswith("add") and inside and any(_is_grid(threads, o) for o in x.operands[1:]):
            found.setdefault("persistent: a loop goes on by the number of CTAs", x.chain)
    return tuple((text + f"; {span_of(chain, own, source)}", span_of(chain, own, source)) for text, chain in found.items())


def _is_grid(threads: Threads, operand: object) -> bool:
    place = threads.writer.get(operand) if isinstance(operand, str) else None
    return operand == "%nctaid.x" or (place is not None and threads.instructions[place].operands[1:] == ("%nctaid.x",))
