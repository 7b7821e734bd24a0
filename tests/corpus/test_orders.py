"""Orders of the units of work in the corpus' attention kernels: groups of heads that share the L2 cache are alike in size, so that no small last one leaves CTAs idle."""

from __future__ import annotations

import functools
import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import corpus
from cuir.attn.verification.splice_evaluator import Evaluator, collect_kernel_values
from cuir.syntax.nodes import Kernel, Program
from cuir.syntax.parser import parse

QUERIES = (
    "flash_fwd_sm90",
    "flash_fwd_split_sm90",
    "flash_fwd_f8_sm90",
    "flash_fwd_sm80",
    "flash_fwd_f32",
    "flash_bwd_dq_sm90",
    "flash_bwd_dq_split_sm90",
    "flash_bwd_dq_sm80",
    "flash_bwd_dq_sm75",
    "flash_bwd_dq_f32",
)
KEYS = (
    "flash_bwd_sm90",
    "flash_bwd_f8_sm90",
    "flash_bwd_wide_sm90",
    "flash_bwd_split_sm90",
    "flash_bwd_sm80",
    "flash_bwd_sm75",
    "flash_bwd_f32",
)  # whose units are blocks of keys, of key heads
BYTES = {name: 4 if "f32" in name else 2 for name in QUERIES}  # of an element of K and V
L2 = 2**25


@functools.cache
def of(name: str) -> tuple[Program, Kernel]:
    program = parse(corpus.kernels()[name].read_text(encoding="utf-8"), f"{name}.cuir")
    return program, next(k for k in program.kernels().values() if "L2" in {p.name for p in k.params})


def order(name: str, B: int, H: int, HK: int, M: int, N: int, D: int, DV: int, BM: int, BN: int) -> np.ndarray:
    """[units, 3]: (b, head, tile) of each unit."""
    program, kernel = of(name)
    dims = {"B": B, "H": H, "HK": HK, "M": M, "N": N}
    names = collect_kernel_values(kernel, dims, {"D": D, "DV": DV, "BM": BM, "BN": BN, "L2": L2}, {})
    units = B * (H if name in QUERIES else HK) * (-(-M // BM) if name in QUERIES else -(-N // BN))
    return np.stack([np.broadcast_to(x, units) for x in Evaluator(program, names).call("tile", np.arange(units))], 1)


def groups(heads: np.ndarray) -> list[int]:
    """Count the heads of the groups: a group ends where all heads so far have come equally often for good."""
    last = {h: t for t, h in enumerate(heads)}
    sizes, observed, end = [], set(), -1
    for t, h in enumerate(heads):
        observed.add(h)
        end = max(end, last[h])
        if t == end:
            sizes.append(len(observed))
            observed = set()
    return sizes


@pytest.mark.parametrize("name", [*QUERIES, *KEYS])
@given(
    st.integers(1, 5),
    st.integers(1, 9),
    st.integers(1, 3),
    st.integers(1, 1500),
    st.integers(1, 70000),
    st.sampled_from([(64, 64), (192, 128), (256, 256)]),
)
def test_groups_are_alike_and_fit(name: str, B: int, HK: int, share: int, M: int, N: int, dims: tuple[int, int]) -> None:
    N = N if name in QUERIES else max(1, N % 1500)
    M = M if name in QUERIES else M * 40
    D, DV = dims
    actual = order(name, B, HK * share, HK, M, N, D, DV, 64, 64)
    heads = HK * share if name in QUERIES else HK
    tiles = len(actual) // (B * heads)
    assert len(np.unique(actual, axis=0)) == len(actual) and actual.min() >= 0 and (actual.max(0) <= (B - 1, heads - 1, tiles - 1)).all()
    result = groups(actual[:, 0] * heads + actual[:, 1])
    if tiles == 1 and len(result) > 1:  # one unit a head: where a group ends cannot be seen
        return
    contents = BYTES[name] * (D + DV) * N if name in QUERIES else (4 * (D + DV) if "f32" in name else 8 * D) * M * share
    fitting, unit = max(1, L2 // contents), share if name in QUERIES else 1
    key_heads = B * HK
    assert len(result) == -(-key_heads // fitting) and all(size % unit == 0 and size <= fitting * unit for size in result)
    assert max(result) - min(result) <= unit


@pytest.mark.parametrize("name", ["flash_fwd_sm90", "flash_bwd_dq_sm90"])
@pytest.mark.parametrize("dims", [(192, 128), (192, 192), (96, 96), (80, 80)])
@pytest.mark.parametrize("length", [4096, 16384])
def test_causal_tiles_end_together(name: str, dims: tuple[int, int], length: int) -> None:
    """132 CTAs that take the next unit when they are done with one: the last ends at most 4 % after the mean (10 % with a small last group, 12 % at 16k)."""
    heads, BM = 16 if dims[0] > 96 else 32, 192
    actual = order(name, 16384 // length, heads, heads, length, length, *dims, BM, 80)
    ends = [0.0] * 132
    for m in actual[:, 2]:
        heapq.heapreplace(ends, ends[0] + min(length, (int(m) + 1) * BM) / 80 + 1.5)
    assert max(ends) <= 1.04 * sum(ends) / len(ends)
