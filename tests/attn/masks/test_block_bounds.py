"""kv_count, kv_block and keep of random masks, compared with brute force through the contracts (cover, full, once)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cuir.attn.masks.block_bounds import blocks
from cuir.attn.splicing.splice import TransferResult, transfer
from cuir.attn.tracing.trace import trace
from cuir.attn.verification.splice_evaluator import Evaluator, collect_kernel_values
from cuir.spec.specification import Lengths, Specification
from cuir.syntax.nodes import Kernel, Program
from cuir.syntax.parser import parse
from cuir.syntax.printer import show
from cuir.verification import Problem, check_contracts
from tests.strategies.selection import examples

ORIGIN = """
@func
def score(S, b, h, q, k):
    return S, scale

@func
def keep(b, h, q, k):
    return True

@func
def kv_count(b, h, m):
    return cdiv(N, BN), cdiv(N, BN)

@func
def kv_block(b, h, m, i):
    return i

@func
def tile(t):
    return t // H % B, t % H, cdiv(M, BM) - 1 - t // (H * B)

@kernel(arch="sm_90a")
def attention(Q: Global[f16, B, H, M, D], K: Global[f16, B, HK, N, D], V: Global[f16, B, HK, N, D], O: Global[f16, B, H, M, D],
              LSE: Global[f32, B, H, M], scale: f32, *, D: const, BM: const = 64, BN: const = 64):
    work = tiles(cdiv(M, BM) * H * B)
    with role("all", warps=4):
        for t in work:
            b, h, m = tile(t)
            partial, n = kv_count(b, h, m)
            for i in range(n):
                j = kv_block(b, h, m, i)
                S, c = score(zeros(f32, [16, 16]), b, h, rows(16), cols(16))
                ok = keep(b, h, rows(16), cols(16))
"""


def origin() -> tuple[Program, Kernel]:
    program = parse(ORIGIN)
    return program, program.kernels()["attention"]


# A mask as text in b, q, k, M, N and a captured number w: readable when a case fails.
offsets = st.integers(-12, 30)
linears = st.one_of(
    offsets.map(str),
    offsets.map(lambda c: f"q + {c}"),
    offsets.map(lambda c: f"w + {c}"),
    offsets.map(lambda c: f"q + (N - M) + {c}"),
    offsets.map(lambda c: f"q - w + {c}"),
    offsets.map(lambda c: f"{c} - q"),
)
atoms = st.one_of(
    st.builds("(k {} {})".format, st.sampled_from(["<=", "<", ">=", ">", "==", "!="]), linears),
    st.builds("({} {} k)".format, linears, st.sampled_from(["<=", ">"])),
    st.builds("(abs(k - q) <= {})".format, st.integers(0, 20)),
    st.builds("((q * k) % 3 == {})".format, st.integers(0, 2)),
    st.builds("(q < {})".format, offsets),
    st.builds(
        "((k + {}) // {} {} (q + {}) // c)".format,
        st.integers(-3, 5),
        st.sampled_from(["c", "5"]),
        st.sampled_from(["==", "!=", "<=", "<", ">=", ">"]),
        offsets,
    ),
    st.builds("(k {} q // {} * c + {})".format, st.sampled_from(["<", ">="]), st.sampled_from(["c", "3"]), offsets),
    st.builds("(b == {})".format, st.integers(0, 1)),
)
masks = st.recursive(
    atoms,
    lambda c: st.one_of(st.builds("({} & {})".format, c, c), st.builds("({} | {})".format, c, c), st.builds("~{}".format, c)),
    max_leaves=5,
)


def specification(mask: str, w: int) -> Specification:
    code = compile(mask, "<mask>", "eval")

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, M: int, N: int, w: int, c: int) -> Any:
        return eval(code, {"abs": abs, "b": b, "q": q_idx, "k": kv_idx, "M": M, "N": N, "w": w, "c": c})

    return Specification("random", mask_mod, captured={"w": w, "c": 4})


sizes = st.tuples(st.integers(1, 40), st.integers(0, 40))


@pytest.mark.thorough
@examples(4)
@given(
    masks, st.integers(-3, 25), st.lists(st.tuples(sizes, st.sampled_from([1, 4, 8]), st.sampled_from([1, 4, 8])), min_size=1, max_size=4)
)
@example("((k >= 0) | (k == q + 0))", 0, [((2, 1), 1, 1)])  # the suffix begins before the middle
def test_random_masks_meet_the_contracts(mask: str, w: int, cases: list[tuple[tuple[int, int], int, int]]) -> None:
    program, _ = origin()
    spec = specification(mask, w)
    result = transfer(program, spec)
    problems = [Problem(Lengths(2, 1, 1, M, N), BM, BN) for (M, N), BM, BN in cases]
    check_contracts(result.program, result.program.kernels()["attention"], spec, problems)


def count_visited_blocks(mask_mod: Callable[..., Any], M: int, N: int, BM: int, BN: int) -> tuple[int, int]:
    """(blocks visited with the mask, blocks visited) over all tiles of a mask."""
    from cuir.attn.verification.splice_evaluator import Evaluator, collect_kernel_values

    program, _ = origin()
    result = transfer(program, Specification("mask", mask_mod))
    kernel = result.program.kernels()["attention"]
    names = collect_kernel_values(kernel, {"B": 1, "H": 1, "HK": 1, "M": M, "N": N}, {"BM": BM, "BN": BN}, result.parameters)
    counts = [Evaluator(result.program, names).call("kv_count", 0, 0, m) for m in range(-(-M // BM))]
    return sum(int(p) for p, _ in counts), sum(int(n) for _, n in counts)


@pytest.mark.parametrize(
    ("name", "mask_mod", "expected"),
    [
        ("full", lambda b, h, q, k: (q >= 0) | (q < 0), (0, 64)),
        ("causal", lambda b, h, q, k: k <= q, (8, 36)),
        ("window", lambda b, h, q, k: (k <= q) & (q - k < 32), (8 + 6, 8 + 7 + 6)),
        ("prefix", lambda b, h, q, k: (k < 32) | (k <= q), (6, 36 + 1)),
        ("anticausal", lambda b, h, q, k: k >= q, (8, 36)),
        ("chunks", lambda b, h, q, k: (k // 32 == q // 32) & (k <= q), (8, 8 + 4)),
        ("blocks", lambda b, h, q, k: k // 32 <= q // 32, (0, 2 * (2 + 4 + 6 + 8))),
        ("nothing", lambda b, h, q, k: (k < q) & (k > q), (0, 0)),
    ],
)
def test_as_few_blocks_as_the_mask_needs(name: str, mask_mod: Callable[..., Any], expected: tuple[int, int]) -> None:
    """8 tiles of 16 queries and 8 blocks of 16 keys: the masked ones are the edges, the others are left out or need no mask."""
    assert count_visited_blocks(mask_mod, 128, 128, 16, 16) == expected


def test_a_mask_that_is_not_linear_has_no_closed_form() -> None:
    spec = Specification("odd", lambda b, h, q, k: (q * k) % 2 == 0)
    assert blocks(trace(spec).keep) is None
    result = transfer(origin()[0], spec)
    assert result.lists is not None and "lists" in result.notes[0]


@pytest.mark.parametrize(
    ("mask_mod", "work"),
    [
        (lambda b, h, q, k: k >= 0, "even"),
        (lambda b, h, q, k: k < 50, "even"),
        (lambda b, h, q, k: (k <= q) & (q - k < 32), "even"),
        (lambda b, h, q, k: abs(k - q) < 32, "even"),
        (lambda b, h, q, k: k <= q, "growing"),
        (lambda b, h, q, k: (k < 32) | (k <= q), "growing"),
        (lambda b, h, q, k: (k <= 2 * q) & (k >= q), "growing"),
        (lambda b, h, q, k: k >= q, "falling"),
        (lambda b, h, q, k: (k >= q) & (k // 100 == q // 100), "falling"),  # in each document from the query on
        (lambda b, h, q, k: (k <= q) & (k // 100 == q // 100), "growing"),
        (lambda b, h, q, k: (k < 32) | (q < 32) | (abs(k - q) < 64), "falling"),  # the first queries attend to all keys
        (lambda b, h, q, k: (q >= 32) | (abs(k - q) < 64), "growing"),
        (lambda b, h, q, k: (q < 32) | (k <= q), "growing"),
    ],
)
def test_how_the_work_of_tiles_changes(mask_mod: Callable[..., Any], work: str) -> None:
    result = blocks(trace(Specification("mask", mask_mod)).keep)
    assert result is not None and result.work == work


def test_even_tiles_of_a_head_stand_in_a_row() -> None:
    """So that they share K and V while these are in the cache; a variant of it with other work gets the longest first."""
    program, _ = origin()
    result = transfer(program, Specification("full"))
    assert "tile" in result.replaced
    check_contracts(result.program, result.program.kernels()["attention"], result.spec, [Problem(Lengths(2, 3, 1, 50, 50), 8, 8)])
    repeated = transfer(result.program, Specification("causal", lambda b, h, q, k: k <= q))
    assert repeated.program == transfer(program, repeated.spec).program


@given(st.integers(1, 4), st.integers(1, 40), st.integers(1, 70), st.integers(1, 24))
def test_partly_empty_tiles_of_some_heads_come_at_the_end(B: int, H: int, M: int, BM: int) -> None:
    program, _ = origin()
    program = transfer(program, Specification("full")).program
    tiles, late = -(-M // BM), min(48, B * H) if M % BM else 0
    names = collect_kernel_values(program.kernels()["attention"], {"B": B, "H": H, "HK": 1, "M": M, "N": 8}, {"BM": BM, "BN": 8}, {})
    order = np.stack([np.broadcast_to(x, B * H * tiles) for x in Evaluator(program, names).call("tile", np.arange(B * H * tiles))], 1)
    units = [(b, h, m) for b in range(B) for h in range(H) for m in range(tiles)]
    put_off = [u for i, u in enumerate(units) if i >= (B * H - late) * tiles and u[2] == tiles - 1]
    assert [tuple(u) for u in order.tolist()] == [u for u in units if u not in put_off] + put_off


def test_tiles_are_turned_round_when_the_first_ones_are_the_longest() -> None:
    program, _ = origin()
    result = transfer(program, Specification("anticausal", lambda b, h, q, k: k >= q))
    assert "tile" in result.replaced
    check_contracts(result.program, result.program.kernels()["attention"], result.spec, [Problem(Lengths(2, 3, 1, 50, 50), 8, 8)])
    assert "return t // H % B, t % H, t // (H * B)" in result.text


@pytest.mark.parametrize(
    "expr",
    [
        "2 * (x // c)",
        "-(x // c)",
        "3 - 2 * (a if p else c)",
        "q0 - x % c",
        "-(x + y) // c * 5",
        "-((x + y) // c)",
        "2 * ((x + y) // c)",
        "-(x * c) + 1",
        "(a if p else c) - x",
        "2 * -(x // c)",
    ],
)
def test_bounds_are_written_with_the_parentheses_they_need(expr: str) -> None:
    from cuir.attn.masks.block_bounds import build_value
    from cuir.attn.masks.predicate import Linear, linear
    from cuir.syntax.nodes import Return

    def read(source: str) -> Linear:
        last = parse(f"@func\ndef f(x):\n    return {source}\n").funcs()["f"].body[-1]
        assert isinstance(last, Return)
        result = linear(last.value)
        assert result is not None
        return result

    assert read(show(build_value(read(expr)))) == read(expr)


def list_visits(result: TransferResult, at: Lengths, BM: int, BN: int) -> Iterator[tuple[int, list[int]]]:
    """The first block without masking, and the visited blocks, of each tile of each batch."""
    kernel = result.program.kernels()["attention"]
    consts = {"BM": BM, "BN": BN}
    captured = result.arguments(at, consts=consts)
    names = collect_kernel_values(kernel, {n: getattr(at, n) for n in ("B", "H", "HK", "M", "N")}, consts, captured)
    run = Evaluator(result.program, names)
    for b in range(at.B):
        for m in range(-(-at.M // BM)):
            partial, n = run.call("kv_count", b, 0, m)
            yield int(partial), [int(run.call("kv_block", b, 0, m, i)) for i in range(int(n))]


# The last has no closed form by key, so its blocks are listed.
BY_KEY = [
    "(k <= q) & (k > q - 9)",
    "(k < 5) | (k > q - 9)",
    "k <= q + (N - M)",
    "(k >= q) | (b == 1)",
    "k // c == q // c",
    "(k <= 0) & (k // c == q // c)",
]


def check_order_by_key(mask: str, w: int, lengths: tuple[int, int], BM: int, BN: int) -> None:
    """Check the contracts of blocks by key, and that all tiles visit them in one order; over a cache without gaps."""
    program, _ = origin()
    spec, at = specification(mask, w), Lengths(2, 1, 1, *lengths)
    keep = trace(spec).keep
    if blocks(keep) is None:
        return
    result = transfer(program, spec, by_key=True)
    check_contracts(result.program, result.program.kernels()["attention"], spec, [Problem(at, BM, BN)])
    visits = [found for _, found in list_visits(result, at, BM, BN) if len(found) > 1]
    assert all(v == sorted(v) for v in visits) or all(v == sorted(v, reverse=True) for v in visits)
    if blocks(keep, by_key=True, gaps=False) is not None:
        assert all(v == list(range(v[0], v[0] - len(v), -1)) for v in visits)


@pytest.mark.parametrize("mask", BY_KEY)
def test_blocks_by_key_are_in_one_order_in_each_tile(mask: str) -> None:
    check_order_by_key(mask, 0, (40, 37), 8, 4)


@pytest.mark.thorough
@examples(8)
@given(masks, st.integers(-3, 25), sizes, st.sampled_from([1, 4, 8]), st.sampled_from([1, 4, 8]))
def test_random_masks_by_key(mask: str, w: int, lengths: tuple[int, int], BM: int, BN: int) -> None:
    check_order_by_key(mask, w, lengths, BM, BN)
