"""Exchanges of lanes against loops over the lanes."""

from __future__ import annotations

import numpy as np
import pytest

from cuir.ptx.isa.instruction_table import UnknownForm, split_opcode
from cuir.ptx.isa.warp_wide import LANES, match, pack_lanes, reduce_warp, shuffle, unpack_lanes, vote


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("clamp", [0, 31, 0x0F, 0x181F, 0x1C1F, 0x1E01])
def test_shuffles_stay_in_their_segment(mode: str, clamp: int) -> None:
    a = (LANES + 100)[None].astype(np.uint32)
    for amount in (0, 1, 5, 16, 31):
        c, b = np.full((1, 32), clamp, np.uint32), np.full((1, 32), amount, np.uint32)
        values, inside, _ = shuffle(split_opcode(f"shfl.sync.{mode}.b32"), a, b, c)
        for lane in range(32):
            segment = clamp >> 8 & 31
            highest = (lane & segment) | (clamp & 31 & ~segment)
            source = {"up": lane - amount, "down": lane + amount, "bfly": lane ^ amount, "idx": (lane & segment) | (amount & ~segment)}[
                mode
            ]
            fits = source >= highest if mode == "up" else source <= highest
            assert inside[0, lane] == fits and values[0, lane] == 100 + (source if fits else lane)


def test_votes_count_members_alone() -> None:
    p, member = np.zeros((1, 32), np.bool_), np.ones((1, 32), np.bool_)
    p[0, :16], member[0, 16:] = True, False
    results = {form: vote(split_opcode(f"vote.sync.{form}.pred"), p, member)[0, 0] for form in ("all", "any", "uni")}
    assert results == {"all": True, "any": True, "uni": True}
    assert vote(split_opcode("vote.sync.ballot.b32"), p, member)[0, 0] == 0xFFFF
    assert not vote(split_opcode("vote.sync.uni.pred"), p, np.ones_like(member))[0, 0]


def test_masks_are_packed_and_unpacked() -> None:
    masks = np.array([0, 1, 0x80000001, 0xFFFFFFFF], np.uint32)
    np.testing.assert_array_equal(pack_lanes(unpack_lanes(masks)), masks)


def test_matches_are_masks_of_equal_values() -> None:
    a = (LANES % 3)[None].astype(np.uint32)
    member = np.ones((1, 32), np.bool_)
    lanes, _ = match(split_opcode("match.any.sync.b32"), a, member)
    assert lanes[0, 0] == sum(1 << i for i in range(0, 32, 3))
    assert match(split_opcode("match.all.sync.b32"), a, member)[0][0, 0] == 0
    same, found = match(split_opcode("match.all.sync.b32"), a * 0, member)
    assert same[0, 0] == 0xFFFFFFFF and found.all()


@pytest.mark.parametrize("name", ["add", "min", "max", "and", "or", "xor"])
def test_reductions_leave_out_who_is_no_member(name: str) -> None:
    a = np.random.default_rng(0).integers(-(2**31), 2**31, (2, 32)).astype(np.int32)
    a[0] |= -(1 << 30)  # what all have must stay
    member = np.random.default_rng(1).random((2, 32)) < 0.5
    result = reduce_warp(split_opcode(f"redux.sync.{name}.s32"), a, member)
    function = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[
        name
    ]
    for w in range(2):
        assert (result[w] == function.reduce(a[w][member[w]], dtype=np.int32)).all()
    with pytest.raises(UnknownForm):
        reduce_warp(split_opcode("redux.sync.odd.s32"), a, member)
