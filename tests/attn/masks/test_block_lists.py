"""Block lists of masks on captured data, against the dense mask; the contracts find lists that are wrong; arguments are made once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import corpus
from cuir.attn.masks import block_lists
from cuir.attn.splicing.captured_arguments import compute_captured_arguments
from cuir.attn.splicing.splice import TransferResult, transfer
from cuir.attn.tracing.trace import trace
from cuir.checking.checker import check
from cuir.spec.specification import Lengths, Specification
from cuir.syntax.parser import parse
from cuir.syntax.printer import show
from cuir.syntax.types import F16
from cuir.text.diagnostics import CuirError
from cuir.verification import Problem, check_contracts, verify
from tests.attn.masks.test_block_bounds import origin
from tests.strategies.selection import examples

MASKS: dict[str, Callable[..., Any]] = {
    "document": lambda b, h, q, k, *, doc: doc[b, q] == doc[b, k],
    "causal_document": lambda b, h, q, k, *, doc: (doc[b, q] == doc[b, k]) & (k <= q),
    "one table": lambda b, h, q, k, *, doc: (doc[0, q] == doc[0, k]) | (k == q),
    "by head": lambda b, h, q, k, *, doc: doc[h % 2, k] <= doc[h % 2, q],
    "both": lambda b, h, q, k, *, doc: (doc[b, k] + h) % 3 != doc[0, q],
    "not of the data": lambda b, h, q, k: (q * k) % 3 == 1,
    "score": lambda b, h, q, k, *, doc: (doc[b, q] != doc[b, k]) & (k > q - 3),
}


def specification(mask: str, doc: torch.Tensor) -> Specification:
    if mask == "score":  # a score_mod that masks
        mod = MASKS[mask]
        return Specification(mask, None, lambda s, b, h, q, k, *, doc: torch.where(mod(b, h, q, k, doc=doc), s, -torch.inf), {"doc": doc})
    return Specification(mask, MASKS[mask], captured={} if mask == "not of the data" else {"doc": doc})


@st.composite
def documents(draw: st.DrawFn) -> torch.Tensor:
    """i32 [2, 48]: documents one after another, or any numbers."""
    if draw(st.booleans()):
        return torch.tensor(draw(st.lists(st.lists(st.integers(0, 3), min_size=48, max_size=48), min_size=2, max_size=2)))
    starts = [draw(st.sets(st.integers(1, 47), max_size=6)) for _ in range(2)]
    return torch.tensor([[sum(s <= i for s in row) for i in range(48)] for row in starts])


sizes = st.tuples(st.integers(1, 40), st.integers(0, 40), st.sampled_from([1, 4, 8, 32]), st.sampled_from([1, 4, 8, 32]))


@examples(2)
@given(st.sampled_from(sorted(MASKS)), documents(), sizes, st.sampled_from([1, 40, 2**24]))
def test_lists_are_those_of_the_dense_mask(mask: str, doc: torch.Tensor, size: tuple[int, int, int, int], pairs: int) -> None:
    M, N, BM, BN = size
    at = Lengths(2, 3, 1, M, N)
    spec = specification(mask, doc)
    traced = trace(spec)
    assert traced.keep is not None
    before, block_lists.PAIRS = block_lists.PAIRS, pairs  # in pieces of any size
    try:
        count, blocks = block_lists.block_lists(traced.keep, {"doc": doc.int()}, at, BM, BN)
    finally:
        block_lists.PAIRS = before
    dense = spec.compute_kept(at)
    count, blocks = count.expand(2, 3, -1, -1), blocks.expand(2, 3, -1, -1)
    for b in range(2):
        for h in range(3):
            for m in range(-(-M // BM)):
                rows = dense[b, h, m * BM : m * BM + BM]
                some = [j for j in range(-(-N // BN)) if rows[:, j * BN : j * BN + BN].any()]
                full = [j for j in some if (j + 1) * BN <= N and rows[:, j * BN : j * BN + BN].all()]
                partial, n = count[b, h, m].tolist()
                visited = blocks[b, h, m, :n].tolist()
                assert visited[:partial] == sorted(set(some) - set(full), reverse=True) and visited[partial:] == sorted(full, reverse=True)


@given(st.sampled_from(sorted(MASKS)), documents(), st.lists(sizes, min_size=1, max_size=3))
def test_listed_masks_meet_the_contracts(mask: str, doc: torch.Tensor, cases: list[tuple[int, int, int, int]]) -> None:
    program, _ = origin()
    spec = specification(mask, doc)
    result = transfer(program, spec)
    problems = [Problem(Lengths(2, 3, 1, M, N), BM, BN) for M, N, BM, BN in cases]
    check_contracts(result.program, result.program.kernels()["attention"], spec, problems)


# ---- lists that are wrong
def drop_partial(count: torch.Tensor, blocks: torch.Tensor) -> None:
    count[0, 0, 2] -= 1


def drop_full(count: torch.Tensor, blocks: torch.Tensor) -> None:
    count[0, 0, 2, 0] -= 1


def twice(count: torch.Tensor, blocks: torch.Tensor) -> None:
    blocks[0, 0, 2, 1] = blocks[0, 0, 2, 0]


def outside(count: torch.Tensor, blocks: torch.Tensor) -> None:
    blocks[0, 0, 2, 0] = 6


def too_many(count: torch.Tensor, blocks: torch.Tensor) -> None:
    count[0, 0, 2, 1] = 7


@pytest.mark.parametrize(
    ("spoil", "code"), [(drop_partial, "V101"), (drop_full, "V102"), (twice, "V103"), (outside, "V103"), (too_many, "V108")]
)
def test_contracts_find_a_wrong_list(spoil: Callable[..., None], code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, _ = origin()
    doc = (torch.arange(48) // 12).expand(2, 48)
    result = transfer(program, specification("causal_document", doc))
    right = block_lists.block_lists

    def wrong(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        count, blocks = right(*arguments)
        spoil(count, blocks)
        return count, blocks

    def contracts() -> None:
        check_contracts(result.program, result.program.kernels()["attention"], result.spec, [Problem(Lengths(2, 2, 1, 48, 48), 8, 8)])

    contracts()
    monkeypatch.setattr(block_lists, "block_lists", wrong)
    with pytest.raises(CuirError) as caught:
        contracts()
    assert code in [d.code for d in caught.value.diagnostics]


def test_contracts_find_a_unit_of_work_that_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    program, _ = origin()
    result = transfer(program, specification("document", torch.zeros(2, 48, dtype=torch.int32)))
    right = block_lists.tile_order
    monkeypatch.setattr(block_lists, "tile_order", lambda *arguments: right(*arguments)[:-1].repeat(2, 1))
    with pytest.raises(CuirError) as caught:
        check_contracts(result.program, result.program.kernels()["attention"], result.spec, [Problem(Lengths(2, 2, 1, 48, 48), 8, 8)])
    assert caught.value.diagnostics[0].code == "V104"


# ---- the order of the units
@given(st.lists(st.integers(0, 20), min_size=1, max_size=60), st.integers(1, 3), st.integers(1, 3), st.integers(1, 12))
def test_rows_of_tiles_and_the_shortest_last(counts: list[int], B: int, H: int, workers: int) -> None:
    before, block_lists._WORKERS = block_lists._WORKERS, workers
    try:
        order = block_lists.tile_order(torch.tensor(counts)[None, None], Lengths(B, H, 1, 8 * len(counts) - 3, 5), 8).tolist()
    finally:
        block_lists._WORKERS = before
    assert sorted(order) == [[b, h, m] for b in range(B) for h in range(H) for m in range(len(counts))]
    cost = [counts[m] + 1 for _, _, m in order]
    longest = max(cost)
    tail = next(
        (
            i
            for i in range(len(cost))
            if sum(cost[i:]) <= workers * longest
            and cost[i:] == sorted(cost[i:], reverse=True)
            and max(cost[i:]) <= min(cost[:i], default=longest)
        ),
        len(cost),
    )
    assert order[:tail] == sorted(order[:tail]), "what is not at the end stands in rows"
    ends = [0] * workers  # the end of what each SM was given, in this order
    for c in cost:
        ends[ends.index(min(ends))] += c
    assert max(ends) <= sum(cost) / workers + max(cost[tail:], default=longest)


def test_even_tiles_keep_their_order() -> None:
    order = block_lists.tile_order(torch.full((2, 1, 7), 3), Lengths(2, 3, 1, 50, 5), 8)
    assert order.tolist() == [[b, h, m] for b in range(2) for h in range(3) for m in range(7)]


# ---- arguments
def expert(spec: Specification) -> TransferResult:
    return transfer(parse(corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8")), spec)


def test_lists_are_made_once_for_the_same_data() -> None:
    doc = (torch.arange(300) // 100).repeat(2, 1).int()
    result = expert(specification("document", doc))
    at = Lengths(2, 4, 2, 300, 300)
    first = result.arguments(at, consts={})
    assert first["block_list"].shape == (2, 1, 3, 3) and first["tile_order"].shape == (24, 3)  # type: ignore[union-attr]
    assert all(result.arguments(at, consts={})[name] is value for name, value in first.items())
    assert result.arguments(at, consts={"BM": 64})["block_list"].shape == (2, 1, 5, 3)  # type: ignore[union-attr]
    assert result.arguments(Lengths(2, 4, 2, 100, 300), consts={})["block_list"].shape == (2, 1, 1, 3)  # type: ignore[union-attr]
    doc[0] = 7
    changed = result.arguments(at, consts={})
    assert changed["block_count"][0, 0].tolist() == [[1, 3]] * 3 and changed["block_count"][1, 0].tolist() == [[2, 2], [3, 3], [2, 2]]  # type: ignore[index]


def test_data_that_follow_the_lengths_are_compared() -> None:
    length = [100]
    result = expert(
        Specification("documents", MASKS["document"], captured={"doc": lambda at: (torch.arange(at.N) // length[0]).repeat(at.B, 1)})
    )
    at = Lengths(1, 2, 2, 300, 300)
    first = result.arguments(at, consts={})
    assert result.arguments(at, consts={})["block_list"] is first["block_list"]
    length[0] = 50
    assert not torch.equal(result.arguments(at, consts={})["doc"], first["doc"])  # type: ignore[arg-type]


def test_other_data_need_no_other_kernel() -> None:
    item, second = (expert(specification("document", torch.randint(0, 5, (2, 300)))) for _ in range(2))
    assert item.text == second.text
    assert transfer(item.program, second.spec).text == item.text, "a variant can be transferred again"


def test_names_that_are_taken() -> None:
    block_list = torch.arange(64)
    spec = Specification("names", lambda b, h, q, k: block_list[q] == block_list[k])
    result = expert(spec)
    check(result.program, None, {"T": F16, "D": 64})
    at = Lengths(1, 2, 2, 64, 64)
    created = result.arguments(at, consts={})
    assert set(created) == {"block_list_", "block_count", "block_list", "tile_order"}
    repeated = compute_captured_arguments(result.program, result.program.kernels()["flash_fwd"], spec, at, consts={})
    assert all(torch.equal(repeated[name], created[name]) for name in created)  # type: ignore[arg-type]


def test_tiles_of_an_unknown_size() -> None:
    text = corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8").replace("BM: const = 128", "BM: const")
    result = transfer(parse(text), specification("document", torch.zeros(2, 300, dtype=torch.int32)))
    with pytest.raises(CuirError) as caught:
        result.arguments(Lengths(2, 2, 2, 300, 300), consts={})
    assert caught.value.diagnostics[0].code == "X133"
    with pytest.raises(CuirError, match="found no consts"):
        result.arguments(Lengths(2, 2, 2, 300, 300))
    assert result.arguments(Lengths(2, 2, 2, 300, 300), consts={"BM": 64})["block_count"].shape == (2, 1, 5, 2)  # type: ignore[union-attr]


@pytest.mark.thorough
@pytest.mark.usefixtures("few_problems")
def test_documents_of_random_lengths_pass_verification() -> None:
    def doc(at: Lengths) -> torch.Tensor:
        generator = torch.Generator().manual_seed(at.M * 1009 + at.N)
        return (torch.rand(at.B, max(at.M, at.N), generator=generator) < 0.02).cumsum(1).int()

    spec = Specification("documents", MASKS["causal_document"], captured={"doc": doc})
    report = verify(expert(spec).program, spec, consts={"T": F16, "D": 64, "BM": 64, "BN": 32}, seeded=0)
    assert report.ok, report


# ---- masks that are read as bits
COSTLY: dict[str, Callable[..., Any]] = {
    "remainders": lambda b, h, q, k: (q - k) % 5 == 0,
    "squares": lambda b, h, q, k, *, doc: ((q % 6 - k % 6).abs() <= 1) & ((q // 6 - k // 6).abs() <= doc[b, 0]),
    "by head": lambda b, h, q, k: (k - q) % (h + 2) == 1,
    "windows apart": lambda b, h, q, k: sum(((q - k - d).abs() <= 1) for d in (0, 7, 15, 21)) > 0,
}


@examples(2)
@given(st.sampled_from(sorted(COSTLY)), documents(), st.lists(sizes, min_size=1, max_size=3))
def test_masks_that_cost_much_are_bits_that_meet_the_contracts(
    mask: str, doc: torch.Tensor, cases: list[tuple[int, int, int, int]]
) -> None:
    program, _ = origin()
    spec = Specification(mask, COSTLY[mask], captured={"doc": doc} if mask == "squares" else {})
    result = transfer(program, spec)
    assert result.lists is not None and result.lists.bits and "bit(block_bits" in result.text and "bits" in result.notes[-1]
    check_contracts(
        result.program, result.program.kernels()["attention"], spec, [Problem(Lengths(2, 3, 1, M, N), BM, BN) for M, N, BM, BN in cases]
    )


def test_cheap_masks_are_worked_out_and_so_are_all_without_bits() -> None:
    program, _ = origin()
    spec = Specification("document", MASKS["document"], captured={"doc": torch.zeros(2, 48, dtype=torch.int32)})
    assert "bit(" not in transfer(program, spec).text
    costly = Specification("remainders", COSTLY["remainders"])
    assert "bit(" in transfer(program, costly).text and "bit(" not in transfer(program, costly, bits=False).text


def test_bits_of_more_memory_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    traced, at = trace(Specification("remainders", COSTLY["remainders"])), Lengths(1, 1, 1, 64, 64)
    assert traced.keep is not None
    result = block_lists.block_lists(traced.keep, {}, at, 16, 16)
    bits, slot = block_lists.block_bits(traced.keep, {}, at, 16, 16, *result)
    assert bits.shape == (2 + 16, 16, 1) and slot.unique().tolist() == list(range(2, 18))
    monkeypatch.setattr(block_lists, "MOST_BITS", bits.numel() * 4 - 1)
    with pytest.raises(block_lists.TooLarge):
        block_lists.block_bits(traced.keep, {}, at, 16, 16, *result)


@pytest.mark.parametrize("mask", ["document", "both", "not of the data"])
def test_blocks_are_within_the_keys_where_the_mask_divides(mask: str) -> None:
    """Indices are then bounded, so that divisions are products with an inverse; other kernels read their lists as they are."""
    keep = trace(specification(mask, torch.zeros(2, 48, dtype=torch.int32))).keep
    kv_block = block_lists.lists_for(keep, lambda name: name).build_functions()["kv_block"]
    assert ("cdiv(N, BN)" in show(kv_block)) == (mask != "document")


def test_lists_by_key_are_in_the_order_of_keys_and_masked() -> None:
    keep = trace(Specification("odd", lambda b, h, q, k: (k % 11 < 5) | (q * k % 7 == 3))).keep
    assert keep is not None
    for by_key in (False, True):
        count, blocks = block_lists.block_lists(keep, {}, Lengths(1, 1, 1, 40, 200), 8, 4, by_key=by_key)
        visited = [row[: int(n)].tolist() for row, (_, n) in zip(blocks[0, 0], count[0, 0], strict=True)]
        assert all(v == sorted(v, reverse=True) for v in visited) == by_key
        assert bool((count[..., 0] == count[..., 1]).all()) == by_key
