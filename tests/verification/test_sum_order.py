"""The order of sums: trees are read from numbers, and kernels whose order depends on the launch are refused."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cuir.attn.kernels.experts import origin_text
from cuir.attn.kernels.split_kv import join_shares
from cuir.attn.verification.order_launches import QueryProbes, Surroundings
from cuir.checking.checked import Checked, Const
from cuir.checking.checker import check
from cuir.syntax.parser import parse
from cuir.syntax.types import BF16, F16, F32
from cuir.verification.sum_order import Tree, ask_order, describe_tree, list_leaves, read_tree, reveal_tree

DENSE: dict[str, Const] = {"T": F16, "D": 64, "BM": 64, "BN": 64}
CACHED: dict[str, Const] = {"T": F16, "D": 64, "BM": 32, "GROUP": 2, "WG": 1, "CLUSTER": 1, "SHARE": 2}
SHARED: dict[str, Const] = {**CACHED, "BM": 4, "GROUP": 16, "SPLITS": 4, "G": F32}
LATENT: dict[str, Const] = {"T": F16, "D": 128, "DV": 128, "BM": 4, "GROUP": 16, "SHARE": 2}
EIGHT: dict[str, Const] = {"T": BF16, "D": 32, "BM": 2, "GROUP": 8, "WG": 2, "BN": 64, "CLUSTER": 1, "SHARE": 2}
LISTED: dict[str, Const] = {"T": F16, "D": 128, "DV": 128, "SHARE": 2}
JOINED: dict[str, Const] = {"SPLITS": 4, "G": F32}
JOIN = partial(join_shares, interpreted=True)
PARTED: dict[str, Const] = {"T": F16, "D": 64, "WG": 2, "CLUSTER": 2}


def read_kernel(name: str, consts: dict[str, Const], *changes: tuple[str, str], kernel: str | None = None) -> Checked:
    text = origin_text(name)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return check(parse(text, f"{name}.cuir"), kernel, consts)


def make_trees(leaves: Sequence[int]) -> st.SearchStrategy[Tree]:
    """Trees of these leaves, whose nodes have two children or more."""
    if len(leaves) == 1:
        return st.just(leaves[0])

    def divide(cuts: set[int]) -> st.SearchStrategy[Tree]:
        edges = [0, *sorted(cuts), len(leaves)]
        return st.tuples(*(make_trees(leaves[a:b]) for a, b in itertools.pairwise(edges)))

    return st.sets(st.integers(1, len(leaves) - 1), min_size=1, max_size=3).flatmap(divide)


def measure_pair(tree: Tree, i: int, j: int) -> int:
    """Return the number of leaves of the smallest subtree of both."""
    while True:
        assert isinstance(tree, tuple)
        inner = next((child for child in tree if {i, j} <= set(list_leaves(child))), None)
        if inner is None:
            return len(list_leaves(tree))
        tree = inner


def sort_tree(tree: Tree) -> Tree:
    return tree if isinstance(tree, int) else tuple(sorted(map(sort_tree, tree), key=list_leaves))


@given(st.permutations(range(9)).flatmap(make_trees))
def test_every_tree_is_read_from_its_pairs(tree: Tree) -> None:
    found = reveal_tree(range(9), lambda pairs: [measure_pair(tree, *pair) for pair in pairs])
    assert found == sort_tree(tree) and sorted(list_leaves(found)) == list(range(9))


def test_what_joins_a_chain_follows_it() -> None:
    assert describe_tree((((0, 1), 2), 3)) == "1 > 0 > 2 > 3"
    assert describe_tree(((0, 1), (2, 3))) == "(1 > 0 + 3 > 2)"


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("name", "consts"),
    [
        ("flash_fwd_sm90", DENSE),
        ("flash_fwd_varlen_sm90", DENSE),
        ("flash_fwd_varlen_sm90", {**DENSE, "CHUNK": 16}),
        ("decode_cache_sm90", CACHED),
        ("decode_cache_sm90", SHARED),
        ("mla_decode_sm90", LATENT),
        ("mla_decode_sm90", LATENT | JOINED),
        ("mla_selected_sm90", LISTED),
        ("mla_selected_sm90", LISTED | JOINED),
        ("decode_cache_f8_sm90", EIGHT),
        ("mla_decode_f8_sm90", LATENT | {"SHARE": 4, "CHUNK": 32, "TOKENS": 1}),
        pytest.param("decode_cache_f8_sm90", EIGHT | JOINED | {"TOKENS": 1}, marks=pytest.mark.thorough),
    ],
    ids=[
        "dense",
        "packed",
        "packed, pages",
        "shares",
        "joined",
        "latent",
        "latent, joined",
        "selected tokens",
        "selected tokens, joined",
        "8 bits",
        "latent, 8 bits",
        "8 bits, joined",
    ],
)
def test_the_order_of_kernels_of_the_corpus_is_of_the_sequence(name: str, consts: dict[str, Const]) -> None:
    stage = ask_order(read_kernel(name, consts), join=JOIN)
    assert stage.verdict == "passed" and stage.reason.startswith("the same tree in "), stage.reason


ORDERS = {
    "blocks by the batch": (
        "flash_fwd_sm90",
        DENSE,
        ("    return n - min(n, full), n", "    return n, n"),
        ("    return kv_count(b, h, m)[1] - 1 - i", "    return kv_count(b, h, m)[1] - 1 - i if B < 3 else i"),
    ),
    "blocks by the place": (
        "flash_fwd_sm90",
        DENSE,
        ("    return n - min(n, full), n", "    return n, n"),
        ("    return kv_count(b, h, m)[1] - 1 - i", "    return kv_count(b, h, m)[1] - 1 - i if b < 1 else i"),
    ),
    "blocks by the queries": (
        "flash_fwd_varlen_sm90",
        DENSE,
        ("    return n - min(n, full), n", "    return n, n"),
        ("    return kv_count(b, h, m)[1] - 1 - i", "    return kv_count(b, h, m)[1] - 1 - i if queries(b) < 9 else i"),
    ),
    "parts counted from the last block of a tile": ("decode_cache_sm90", PARTED),
    "shares counted from the last block of a tile": ("decode_cache_sm90", SHARED | {"SHARE": 0}),
    "shares of latent vectors counted from the last block": ("mla_decode_sm90", LATENT | JOINED | {"SHARE": 0}),
    "shares of 8 bits counted from the last block": ("decode_cache_f8_sm90", EIGHT | JOINED | {"SHARE": 0}),
    "blocks of latent vectors by the batch": (
        "mla_decode_sm90",
        LATENT,
        ("    return n - min(n, full), n", "    return n, n"),
        ("    return kv_count(b, h, m)[1] - 1 - i", "    return kv_count(b, h, m)[1] - 1 - i if B < 3 else i"),
        ("    return 0 if SHARE == 0 else kv_block(b, h, m, 0) + 1", "    return kv_count(b, h, m)[1]"),
    ),
}


@pytest.mark.sweep(4)
@pytest.mark.parametrize("fault", ORDERS)
def test_orders_of_a_launch_are_refused(fault: str) -> None:
    name, consts, *changes = ORDERS[fault]
    stage = ask_order(read_kernel(name, consts, *changes), join=JOIN)
    assert stage.verdict == "failed" and stage.diagnostics[0].code == "V201", stage.reason
    assert "depends on the launch: alone " in stage.reason


def test_atomic_additions_are_refused() -> None:
    stage = ask_order(read_kernel("flash_bwd_sm90", {"T": F16, "D": 128}, kernel="flash_bwd"))
    assert stage.verdict == "failed" and stage.reason.startswith("dQ: atomic additions")


def test_gradients_without_additions_pass() -> None:
    stage = ask_order(read_kernel("flash_bwd_dq_sm90", {"T": F16, "D": 64}))
    assert stage.verdict == "passed" and "no output is added to" in stage.reason


def test_shares_that_nothing_joins_are_skipped() -> None:
    stage = ask_order(read_kernel("decode_cache_sm90", SHARED))
    assert stage.verdict == "skipped" and "joined by another kernel" in stage.reason


def test_a_join_that_takes_shares_in_the_order_of_the_batch_is_refused() -> None:
    def join(parts: torch.Tensor, sums: torch.Tensor, o: torch.Tensor, consts: Mapping[str, Const], arch: str) -> torch.Tensor:
        B = len(o)
        weights = (sums.unflatten(0, (B, -1)) - sums.unflatten(0, (B, -1)).logsumexp(1, keepdim=True)).exp()[..., None]
        addends = parts.unflatten(0, (B, -1)) * weights
        whole = torch.zeros_like(addends[:, 0])
        for y in range(addends.shape[1]) if B == 1 else reversed(range(addends.shape[1])):
            whole = whole + addends[:, y]
        o.copy_(whole)
        return sums.unflatten(0, (B, -1)).logsumexp(1)

    stage = ask_order(read_kernel("mla_decode_sm90", LATENT | JOINED), join=join)
    assert stage.verdict == "failed" and "depends on the launch: alone " in stage.reason


def test_a_query_with_fewer_keys_is_not_read() -> None:
    """A tree of other keys is no tree of this query."""
    window = ("    return k <= q + (N - M)", "    return (k <= q + (N - M)) & (k > q + (N - M) - 100)")
    masked = ("    return n - min(n, full), n", "    return n, n")
    probes = QueryProbes(read_kernel("flash_fwd_sm90", {**DENSE, "T": BF16}, window, masked), range(0, 192, 16), 200)
    assert read_tree(probes, Surroundings()) is None
