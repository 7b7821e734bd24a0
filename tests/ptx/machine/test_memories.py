"""Shadows against a plain model that keeps every access, under random accesses and barriers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cuir.ptx.machine.knowledge import Knowledge
from cuir.ptx.machine.memories import NOTHING, Meeting, Memory, Shadow

WIDTH, CTAS = 64, 2
SIZES = (1, 2, 4, 8, 16)


class Plain:
    """Every access to each byte since its last write, and what each thread knows of each other one."""

    def __init__(self) -> None:
        self.known = np.zeros((WIDTH * CTAS, WIDTH * CTAS), np.int64)
        self.last_write: dict[int, tuple[int, int, bool]] = {}
        self.reads: dict[int, list[tuple[int, int, bool]]] = {}

    def access(self, thread: int, first: int, nbytes: int, tick: int, writes: bool, strong: bool) -> bool:
        """Enter an access; return whether it meets one without order."""
        wrong = False
        for byte in range(first, first + nbytes):
            old = [self.last_write[byte]] if byte in self.last_write else []
            old += self.reads.get(byte, []) if writes else []
            wrong |= any(t != thread and self.known[thread, t] < when and not (strong and s) for t, when, s in old)
        return wrong

    def record(self, thread: int, first: int, nbytes: int, tick: int, writes: bool, strong: bool) -> None:
        for byte in range(first, first + nbytes):
            if writes:
                self.last_write[byte], self.reads[byte] = (thread, tick, strong), []
            else:
                self.reads.setdefault(byte, []).append((thread, tick, strong))

    def meet(self, threads: np.ndarray, tick: int) -> None:
        joined = self.known[threads].max(0)
        joined[threads] = tick
        self.known[threads] = joined


STEP = st.tuples(st.sampled_from(["read", "write", "strong", "cta", "warp", "pair"]), st.integers(0, 3), st.integers(0, 10**6))


@given(st.lists(STEP, max_size=40), st.booleans())
def test_shadows_find_what_a_plain_model_finds(steps: list[tuple[str, int, int]], between: bool) -> None:
    knowledge, plain = Knowledge(0, WIDTH * CTAS, WIDTH, WIDTH * CTAS), Plain()
    shadow = Shadow(256, NOTHING, lambda: knowledge, between)
    for tick, (kind, which, seed) in enumerate(steps, 1):
        generator = np.random.default_rng(seed)
        # Memory of one CTA is accessed by one CTA alone.
        warps = [0, 1, 2, 3] if between else [0, 1]
        if kind == "cta":
            slots = np.arange(WIDTH) + (which % CTAS) * WIDTH
            knowledge.meet_in_cta(slots, tick)
            plain.meet(slots, tick)
        elif kind == "warp":
            slots = np.arange(32) + 32 * which
            knowledge.meet_in_warp(slots, tick)
            plain.meet(slots, tick)
        elif kind == "pair":  # one thread releases to another one
            a, b = generator.integers(0, WIDTH * (CTAS if between else 1), 2)
            knowledge.learn(np.array([b]), knowledge.take_snapshot(np.array([a]), tick))
            plain.known[b] = np.maximum(plain.known[b], plain.known[a])
            plain.known[b, a] = max(plain.known[b, a], tick)
        else:
            nbytes, warp = SIZES[which if kind == "strong" else seed % 5], warps[seed % len(warps)]
            lanes = np.sort(generator.choice(32, 3, replace=False))
            places = generator.choice(256 // nbytes, 3, replace=False) * nbytes if seed % 3 else np.arange(3) * nbytes
            slots, writes, strong = lanes + 32 * warp, kind != "read", kind == "strong"
            expected = {lane for lane in range(3) if plain.access(int(slots[lane]), int(places[lane]), nbytes, tick, writes, strong)}
            entries = shadow.find_entries(places, nbytes)
            found: list[Meeting] = []
            shadow.check_write(slots, entries, strong, found.append)
            if writes:
                shadow.check_reads(slots, entries, strong, found.append)
                shadow.enter_write(slots, entries, tick, strong)
            else:
                shadow.enter_read(slots, places, nbytes, tick, strong)
            if shadow.shift == 0 or nbytes >= 4:
                assert {m.lane for m in found} == expected
            for lane in range(3):
                plain.record(int(slots[lane]), int(places[lane]), nbytes, tick, writes, strong)


def test_an_entry_is_for_four_bytes_until_single_ones_are_accessed() -> None:
    knowledge = Knowledge(0, 32, 32, 32)
    shadow = Shadow(64, NOTHING, lambda: knowledge, False)
    places = np.array([0, 16])
    assert shadow.find_entries(places, 8).tolist() == [[0, 1], [4, 5]]
    shadow.enter_write(np.array([0, 1]), shadow.find_entries(places, 8), 5, False)
    assert shadow.find_entries(places, 1).tolist() == [[0], [16]] and shadow.written[[0, 7, 8, 16]].tolist() == [5, 5, NOTHING, 5]


def test_lanes_that_lose_a_place_are_told() -> None:
    knowledge = Knowledge(0, 32, 32, 32)
    shadow = Shadow(64, NOTHING, lambda: knowledge, False)
    lost = shadow.enter_write(np.arange(3), shadow.find_entries(np.array([0, 8, 0]), 4), 1, False)
    assert lost.sum() == 1 and not lost[1]


def test_vectors_are_gathered_and_scattered() -> None:
    memory = Memory("shared", 0, 64, 2, None)
    places = np.array([16, 64 + 32])
    memory.scatter(places, np.arange(8, dtype=np.uint32).reshape(2, 4), 4, 4)
    assert memory.gather(places, 8, 2).tolist() == [[1 << 32, 3 << 32 | 2], [5 << 32 | 4, 7 << 32 | 6]]
    assert memory.gather(places + 4, 2, 1).tolist() == [1, 5]
