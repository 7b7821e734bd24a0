"""Facts of cubins: loops of hand-made instructions, branches as each architecture encodes them, what nvcc made."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuir.runtime.machine_code import BRANCH, EXIT, NOP, Function, parse_functions

HMMA, MUFU = 0x23C, 0x308
ALWAYS = 7 << 12
UNCONDITIONAL = 7 << 23  # of the high word: the second predicate of a branch


def encode_branch(at: int, target: int, architecture: int, conditional: bool) -> tuple[int, int]:
    """Return the words of a branch: the offset from the next instruction, in words of four bytes, from bit 34 on.

    From sm_90 on its lowest eight bits stand in bits 16 to 23.
    """
    words = (target - at - 1) * 4
    low = BRANCH | (0 if conditional else ALWAYS)
    if architecture >= 90:
        low, words = low | (words & 0xFF) << 16, words >> 8
    bits = low | (words & (1 << 48) - 1) << 34 | UNCONDITIONAL << 64
    return bits & (1 << 64) - 1, bits >> 64


@given(st.sampled_from((75, 80, 89, 90, 100)), st.integers(1, 400), st.integers(0, 50))
def test_a_loop_is_followed_on_every_architecture(architecture: int, others: int, before: int) -> None:
    body = [(HMMA | ALWAYS, 0), *[(MUFU | ALWAYS, 0)] * others]
    end = before + len(body)
    words = [(NOP | ALWAYS, 0)] * before + body + [encode_branch(end, before, architecture, conditional=True), (EXIT | ALWAYS, 0)]
    function = Function("loop", tuple(words), architecture)
    assert function.shortest_turns == (len(body) + 1,)
    assert sorted(function.largest_turn) == sorted([HMMA & 0x1FF, *[MUFU & 0x1FF] * others, BRANCH & 0x1FF])
    assert function.instructions == len(words) - before


def test_without_a_way_back_there_is_no_turn() -> None:
    words = ((HMMA | ALWAYS, 0), (EXIT | ALWAYS, 0), encode_branch(2, 0, 75, conditional=False))
    assert Function("straight", words, 75).shortest_turns == ()
    assert Function("straight", words, 75).largest_turn == ()


def test_what_is_no_cubin_is_refused() -> None:
    with pytest.raises(ValueError, match="not a cubin"):
        parse_functions(b"\x50\xed\x55\xba fatbin")
