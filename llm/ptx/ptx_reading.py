"""Reading of a kernel from its PTX: its calls with names and lines of the sources."""

from __future__ import annotations

import functools
import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cuir.ptx.module import Chain, Entry, Frame
from cuir.text.diagnostics import CuirError
from cuir.text.source import Source, Span

from ..reading import Array, LowCall, Reading
from .calls import Event, Region, Ring, bits, events_of, lies_over, regions_of, rings_of
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
    """Reading of compiled code.

    Attributes:
        places: Chains of places, indexed by a call's `at`.
        findings: Findings beyond roles, barriers, arrays and groups.
        own_folders: Folders of the user's sources.
        code: Lines of each file that instructions come from.
    """

    places: list[Chain] = field(default_factory=list)
    findings: tuple[tuple[str, Span], ...] = ()
    not_known: tuple[str, ...] = ()
    not_certain: frozenset[str] = frozenset()
    own_folders: tuple[str, ...] = ()
    code: Mapping[str, frozenset[int]] = field(default_factory=dict)

    by = "compiler"

    @property
    def more(self) -> tuple[tuple[str, Span], ...]:
        """Findings beyond roles, barriers, arrays and groups, each with its place."""
        return self.findings

    @property
    def unknown(self) -> tuple[str, ...]:
        """Facts that do not follow from the PTX, in words."""
        return self.not_known

    @property
    def uncertain(self) -> frozenset[str]:
        """Kinds of calls that the PTX does not fully determine, as by an unknown address."""
        return self.not_certain

    @property
    def sources(self) -> tuple[Source, ...]:
        """Sources that calls lie in, the kernel's first."""
        return tuple(dict.fromkeys([self.source, *(self.place(c.at)[0] for c in self.calls)]))

    def with_code(self, source: Source) -> frozenset[int] | None:
        """Return the lines of a source that instructions come from."""
        lines = [n for path, n in self.code.items() if source_of(path, self.own_folders[0]) == source]
        return frozenset().union(*lines) if lines else None

    def place(self, at: int) -> tuple[Source, int]:
        """Return the source and line of a call."""
        frame = choose_frame(self.places[at], self.own_folders)
        return (source_of(frame.path, self.own_folders[0]), frame.line) if frame is not None else (self.source, 1)

    def calling(self, at: int) -> list[tuple[Source, int]]:
        """Return the lines in the user's sources that a call was inlined through."""
        user_lines = [
            (source_of(f.path, self.own_folders[0]), f.line) for f in self.places[at] if f.path.startswith(self.own_folders) and f.line
        ]
        return user_lines or [self.place(at)]

    def span(self, at: int) -> Span:
        """Return the span of a call."""
        return span_of(self.places[at], self.own_folders, self.source)


def span_of(chain: Chain, folders: Sequence[str], source: Source) -> Span:
    """Return the most telling line of a chain, with the calls that it was inlined through."""
    frame = choose_frame(chain, folders)
    if frame is None:
        return Span(source, 1, 1, 1, 2)
    outer = chain[chain.index(frame) + 1 :]
    via = None
    for f in reversed(outer):
        via = _span(f, via, folders[0])
    return _span(frame, via, folders[0])


def _span(frame: Frame, via: Span | None, root: str) -> Span:
    """Return the span of a place's line."""
    source = source_of(frame.path, root)
    text = source.line(frame.line)
    start = len(text) - len(text.lstrip()) + 1
    return Span(source, frame.line, start, frame.line, max(len(text) + 1, start + 1), via)


def choose_frame(chain: Chain, folders: Sequence[str]) -> Frame | None:
    """Return the innermost place in the user's sources, else the innermost outside of wrappers.

    Wrappers are library functions around a single instruction.
    """
    for test in (lambda f: f.path.startswith(tuple(folders)), lambda f: not WRAPPER.search(f.path), lambda f: True):
        for frame in chain:
            if frame.line and test(frame):
                return frame
    return None


@functools.lru_cache(256)
def source_of(path: str, root: str) -> Source:
    """Return a source by its path, named as seen from a folder; empty if it cannot be read."""
    try:
        text = Path(path).read_bytes()[:MOST_BYTES].decode("utf-8", "replace") if path else ""
    except OSError:
        text = ""
    name = os.path.relpath(path, root) if path else ""
    return Source(name if not name.startswith("../../..") else "/".join(["...", *Path(path).parts[-3:]]), text)


def reading_of(
    entry: Entry, kernel: str, source: Path, folders: Sequence[str], threads: int | None = None, cluster: tuple[int, int, int] | None = None
) -> Compiled:
    """Read a kernel's PTX.

    `folders` are those of the user's sources. Raises CuirError O122 if the number of threads is unknown.
    """
    shape = (threads, 1, 1) if threads is not None else entry.threads
    if shape is None or not 0 < shape[0] * shape[1] * shape[2] <= 1024:
        raise CuirError.of(
            "O122",
            f"how many threads a CTA of `{kernel}` has must be known, found {threads}",
            hint="--threads N, `threads` of the launch description, or a __launch_bounds__",
        )
    folders = tuple(str(Path(o).resolve()) + "/" for o in folders)
    analysed = Threads(entry, shape, cluster or entry.cluster)
    events = events_of(analysed)
    rings = [r for r in rings_of(events) if any(e.kind != "init" and set(e.barriers) & set(r.addresses) for e in events)]
    regions = regions_of(events, rings)
    names = _Names(events, rings, regions, folders)
    code: dict[str, set[int]] = defaultdict(set)
    for frame in {f for x in analysed.instructions for f in x.chain}:
        code[frame.path].add(frame.line)
    reading = Compiled(
        source_of(str(source.resolve()), folders[0]),
        kernel,
        analysed.count,
        [],
        {},
        own_folders=folders,
        code={p: frozenset(n) for p, n in code.items()},
    )
    _arrays(reading, rings, regions, names)
    calls: dict[tuple[object, ...], LowCall] = {}
    named_barriers: set[str] = set()
    for e in events:
        about = names.about(e)
        if e.kind == "init":
            for name in (n for n in about if n not in named_barriers):
                named_barriers.add(name)
                ring = names.ring[name]
                calls["init", name] = LowCall(
                    "init",
                    e.instruction.op,
                    "",
                    _at(reading, ring.chain),
                    bits(e.threads),
                    (name,),
                    ring.count,
                    (),
                    (),
                    _via(e.chain, folders),
                    e.in_loop,
                    len(ring.addresses),
                    str(ring.count),
                )
            continue
        key = (e.kind, e.chain, about, e.number, tuple(i for i, _ in e.ids))
        if (before := calls.get(key)) is not None:
            ids = tuple((i, m | n) for (i, m), (_, n) in zip(before.ids, e.ids))
            calls[key] = LowCall(
                **{**before.__dict__, "threads": before.threads | bits(e.threads), "ids": ids, "in_loop": before.in_loop or e.in_loop}
            )
        else:
            calls[key] = LowCall(
                e.kind,
                e.instruction.op,
                e.instruction.op,
                _at(reading, e.chain),
                bits(e.threads),
                about,
                e.number,
                e.ids,
                (),
                _via(e.chain, folders),
                e.in_loop,
                1,
                "" if e.number is None else str(e.number),
            )
    reading.calls = list(calls.values())
    reading.not_known = _not_known(events, folders, reading.source, regions)
    reading.not_certain = frozenset(e.kind for e in events if e.unknown and not e.barriers)
    reading.findings = _collect_findings(analysed, events, names, folders, reading.source)
    return reading


def _at(reading: Compiled, chain: Chain) -> int:
    """Record a chain; return its index."""
    reading.places.append(chain)
    return len(reading.places) - 1


def _via(chain: Chain, folders: Sequence[str]) -> tuple[str, ...]:
    """Return the functions that a call was inlined through, from the shown place outwards."""
    frame = choose_frame(chain, folders)
    if frame is None:
        return ()
    rest = chain[chain.index(frame) :]
    return tuple(plain_name(f.function) for f in rest[::-1] if f.function)[-3:]


def plain_name(mangled: str) -> str:
    """Return the last name in a mangled one: enough to find the function."""
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

    def __init__(self, events: Sequence[Event], rings: Sequence[Ring], regions: Sequence[Region], folders: Sequence[str]):
        self.folders = folders
        self.ring: dict[str, Ring] = {}
        self.region: dict[str, Region] = {}
        self.of_address: dict[int, str] = {}
        words: dict[Ring, Counter[str]] = {r: Counter() for r in rings}
        everywhere: Counter[str] = Counter()
        for r in rings:
            for e in events:
                if set(e.barriers) & set(r.addresses) and e.kind != "bulk_load":
                    words[r].update(set(_words(e.chain, folders)))
            most = max(words[r].values(), default=0)  # places that nvcc made one are said to be one of them: few lines may be another's
            words[r] = Counter({w: n for w, n in words[r].items() if 2 * n >= most})
            everywhere.update(words[r].keys())
        carries = {r for r in rings if any(e.kind in ("expect", "bulk_load") and set(e.barriers) & set(r.addresses) for e in events)}
        chosen = {r: self._name(words[r], everywhere) for r in rings}
        for r in rings:
            pair = [ring_b for ring_b in rings if chosen[ring_b] == chosen[r]]
            name = chosen[r] or f"barrier_{r.addresses[0]}"
            if len(pair) == 2 and len(carries & set(pair)) == 1 and not re.search("(?i)full|empty|ready|free", name):
                name = f"{name}_{'full' if r in carries else 'empty'}"
            name = self._free(name, self.ring)
            self.ring[name] = r
            self.of_address |= dict.fromkeys(r.addresses, name)
        self.over = lies_over(events)
        shared = Counter(g.ring for g in regions)
        for g in regions:
            base = _tile(g.chain, folders) if g.ring is None or shared[g.ring] > 1 else ""
            if g.ring is not None and not base:
                base = re.sub(r"(?i)_?(full|ready|pipeline|pipe|bar(rier)?s?)_?", "", self.of_address[g.ring.addresses[0]]).strip("_")
            name = self._free(f"smem_{base}" if base and not base.isdigit() else f"smem_{g.starts[0]}", self.region)
            self.region[name] = g

    @staticmethod
    def _name(words: Counter[str], everywhere: Counter[str]) -> str:
        """Return the word that fewest other barriers share, and most uses have."""
        rated = sorted((everywhere[w], -n, w) for w, n in words.items() if w not in GENERIC)
        return rated[0][2] if rated else ""

    @staticmethod
    def _free(name: str, names: dict[str, object] | dict[str, Ring] | dict[str, Region]) -> str:
        """Return a name that is not in use, with a number where needed."""
        number, free = 2, name
        while free in names:
            free, number = f"{name}_{number}", number + 1
        return free

    def about(self, e: Event) -> tuple[str, ...]:
        """Return the objects of a call: arrays, then barriers; of a named barrier the constant that names it."""
        if e.kind in ("named_sync", "named_arrive"):
            return tuple(_constants(e.chain, self.folders)[:1])
        arrays = (
            [n for n, g in self.region.items() if g.meets(self.over.get(e.index, e.memory))]
            if e.kind in ("bulk_load", "bulk_store", "cp_async", "ldmatrix", "stmatrix")
            else []
        )
        barriers = dict.fromkeys(self.of_address[a] for a in e.barriers if a in self.of_address)
        return (*arrays, *barriers)


def _words(chain: Chain, folders: Sequence[str]) -> list[str]:
    """Return probable names of barriers in the lines of a chain, of the innermost line that has any."""
    for test in (lambda f: f.path.startswith(tuple(folders)), lambda f: not LIBRARY.search(f.path), lambda f: True):
        for frame in chain:
            if test(frame):
                names = [
                    w
                    for w in WORDS.findall(source_of(frame.path, folders[0]).line(frame.line))
                    if ABOUT.search(w) and w not in GENERIC and not STATES.fullmatch(w) and w[0].islower()
                ]
                if names:
                    return names
    return []


def _tile(chain: Chain, folders: Sequence[str]) -> str:
    """Return the name of the tile in shared memory that a statement fills or reads.

    That is the last such name of the innermost place in the user's sources, else of a library's that is no wrapper;
    empty if none has one.
    """
    for test in (lambda f: f.path.startswith(tuple(folders)), lambda f: not WRAPPER.search(f.path)):
        for frame in chain:
            if test(frame) and (names := TILE.findall(_statement(frame, folders))):
                return str(names[-1])
    return ""


def _statement(frame: Frame, folders: Sequence[str]) -> str:
    """Return the text from a place to the end of its statement, or of its third line."""
    source, lines = source_of(frame.path, folders[0]), list[str]()
    for n in range(frame.line, frame.line + 3):
        lines.append(source.line(n))
        if lines[-1].rstrip().endswith((";", "{", "}")):
            break
    return " ".join(lines)


def _constants(chain: Chain, folders: Sequence[str]) -> list[str]:
    """Return names of constants in the innermost line of the user's sources that has any.

    They name named barriers.
    """
    for frame in chain:
        if frame.path.startswith(tuple(folders)):
            line = _statement(frame, folders)
            names = re.findall(r"Barriers?::(?!sync|arrive)(\w+)", line) or [
                w for w in re.findall(r"\b[A-Z][A-Z0-9_]{2,}\b", line) if "THREADS" not in w
            ]
            if names:
                return names
    return []


def _arrays(reading: Compiled, rings: Sequence[Ring], regions: Sequence[Region], names: _Names) -> None:
    """Add the barriers and arrays to a reading."""
    for name, ring in names.ring.items():
        reading.arrays[name] = Array(name, "uint64_t", (len(ring.addresses),), _at(reading, ring.chain))
    for name, region in names.region.items():
        reading.arrays[name] = Array(name, "uint8_t", (region.stages, region.nbytes), _at(reading, region.chain))


def _not_known(events: Sequence[Event], folders: Sequence[str], source: Source, regions: Sequence[Region]) -> tuple[str, ...]:
    """Return what does not follow from the PTX, each with its line."""
    notes = [
        f"{e.unknown} of {e.instruction.op.split('.shared')[0]} at {span_of(e.chain, folders, source)}"
        for e in events
        if e.unknown and e.kind not in ("ldmatrix", "stmatrix")
    ]
    notes += [
        f"the bytes of the array at {g.starts[0]}, filled at {span_of(g.chain, folders, source)}" for g in regions if g.nbytes is None
    ]
    return tuple(dict.fromkeys(notes))


def _collect_findings(
    threads: Threads, events: Sequence[Event], names: _Names, folders: Sequence[str], source: Source
) -> tuple[tuple[str, Span], ...]:
    """Return further findings with their places.

    These are shapes of products, bytes of phases, multicast, clusters, stores over arrays, tile counters, and
    persistent loops.
    """
    findings: dict[str, Chain] = {}
    for e in events:
        op = e.instruction.op
        if e.kind in ("wgmma", "mma"):
            shape = re.search(r"\.(m\d+n\d+k\d+)((?:\.\w+)*)", op)
            if shape:
                findings.setdefault(f"products {e.kind} {shape[1]}{shape[2]}", e.chain)
        if e.kind in ("expect", "expect_bytes"):
            for name in names.about(e):
                findings.setdefault(f"{name}: {'?' if e.number is None else f'{e.number:,}'} bytes a phase", e.chain)
        if e.kind == "bulk_load" and "multicast" in op:
            findings.setdefault(f"copies to several CTAs of a cluster (multicast) complete on {', '.join(names.about(e)[-1:])}", e.chain)
        if e.kind == "bulk_store":
            for name in names.about(e):
                findings.setdefault(f"output is stored from where {name} lies", e.chain)
        if e.kind == "arrive" and {n for n, _ in e.ids} - {0}:
            findings.setdefault(f"arrivals at {', '.join(names.about(e))} of other CTAs of the cluster", e.chain)
        if e.kind == "fence_async":
            findings.setdefault("fence.proxy.async before the copy engine reads", e.chain)
    for i, x in enumerate(threads.instructions):
        inside = threads.flow.inside(threads.flow.of[i])
        if x.op.startswith("atom.") and ".add" in x.op and ".shared" not in x.op and inside and threads.at(i).sum() == 1:
            findings.setdefault("tiles are handed out by a counter in global memory (atom.add by one thread)", x.chain)
        if x.op.startswith("add") and inside and any(_is_grid(threads, o) for o in x.operands[1:]):
            findings.setdefault("persistent: a loop goes on by the number of CTAs", x.chain)
    return tuple((text + f"; {span_of(chain, folders, source)}", span_of(chain, folders, source)) for text, chain in findings.items())


def _is_grid(threads: Threads, operand: object) -> bool:
    """Return whether an operand is the number of CTAs."""
    place = threads.writer.get(operand) if isinstance(operand, str) else None
    return operand == "%nctaid.x" or (place is not None and threads.instructions[place].operands[1:] == ("%nctaid.x",))
