"""Block masks: ours answer as PyTorch's do, and masks that were edited, sliced or built from blocks are obeyed as they stand."""

from __future__ import annotations

import copy
import itertools
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention import flex_attention as torch_flex

import cuir.flex
from cuir import CuirError, create_block_mask, flex_attention
from cuir.attn.api import prepared_calls
from cuir.attn.api.block_masks import LazyBlockMask
from tests.strategies.selection import examples

M, N, D = 200, 300, 64
Mod = Callable[..., Any]
TABLE = torch.arange(512) // 70


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def documents(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (TABLE[q] == TABLE[k]) & (h + k > 5)


def tensors(batch: int = 1, heads: int = 2, m: int = M, n: int = N) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(m + n)
    q, k, v = (torch.randn(batch, heads, length, D, generator=g).half() for length in (m, n, n))
    return q, k, v


def attend(qkv: tuple[torch.Tensor, ...], mask: Any, score: Mod | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    o, lse = flex_attention(*qkv, score, mask, return_lse=True, backend="interpret", verify="off")
    return o, lse


def expand_mask(mask: Any, batch: int, heads: int, m: int, n: int) -> torch.Tensor:
    """The pairs that a mask keeps as it stands, bool [B, H, M, N], from its lists entry by entry."""
    rows, columns = mask.BLOCK_SIZE
    ours = torch_flex.create_mask(mask.mask_mod, batch, heads, m, n, device="cpu").expand(batch, heads, m, n)
    retained = torch.zeros(batch, heads, m, n, dtype=torch.bool)
    for counts, indices, whole in ((mask.kv_num_blocks, mask.kv_indices, False), (mask.full_kv_num_blocks, mask.full_kv_indices, True)):
        if counts is None:
            continue
        for b, h, i in itertools.product(range(batch), range(heads), range(-(-m // rows))):
            bb, hh = b % counts.shape[0], h % counts.shape[1]
            for place in range(int(counts[bb, hh, i])):
                j = int(indices[bb, hh, i, place])
                box = b, h, slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns)
                retained[box] |= True if whole else ours[box]
    return retained


def compare(qkv: tuple[torch.Tensor, ...], mask: Any, score: Mod | None = None) -> None:
    """With PyTorch's eager flex_attention, which looks at a mask_mod alone: it is given the pairs that the mask keeps."""
    q, k, v = qkv
    pairs = expand_mask(mask, *q.shape[:3], k.shape[2])
    same = torch_flex.create_block_mask(lambda b, h, i, j: pairs[b, h, i, j], q.shape[0], q.shape[1], q.shape[2], k.shape[2], device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, wanted_lse = torch_flex.flex_attention(q.float(), k.float(), v.float(), score, same, return_lse=True)
    o, lse = attend(qkv, mask, score)
    torch.testing.assert_close(o.float(), expected, atol=3e-3, rtol=1e-2)
    torch.testing.assert_close(lse, wanted_lse, atol=2e-3, rtol=1e-4)


def lists(kinds: torch.Tensor, selector: int, width: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The blocks of one kind, in any order, with anything behind them."""
    g = torch.Generator().manual_seed(seed)
    count = (kinds == selector).sum(-1).int()
    indices = torch.randint(-5, 99, (*kinds.shape[:3], width), generator=g).int()
    for place in itertools.product(*map(range, kinds.shape[:3])):
        chosen = (kinds[place] == selector).nonzero()[:, 0]
        indices[place][: len(chosen)] = chosen[torch.randperm(len(chosen), generator=g)].int()
    return count, indices


# ---- ours, asked for what PyTorch's has
@pytest.mark.sweep(4)
@pytest.mark.parametrize(("mod", "B", "H"), [(causal, None, None), (documents, None, 2), (documents, 3, 2)])
@pytest.mark.parametrize("options", [{}, {"BLOCK_SIZE": 64}, {"BLOCK_SIZE": (32, 128)}, {"separate_full_blocks": False}], ids=str)
def test_ours_answers_as_pytorchs_does(mod: Mod, B: int | None, H: int | None, options: dict[str, Any]) -> None:
    if "separate_full_blocks" in options and torch.__version__ < "2.13":
        pytest.skip("an option of a later PyTorch")
    ours, second = create_block_mask(mod, B, H, M, N, "cpu", **options), torch_flex.create_block_mask(mod, B, H, M, N, "cpu", **options)
    assert isinstance(ours, torch_flex.BlockMask) and ours.shape == second.shape and ours.numel() == second.numel()
    for name, value in vars(second).items():
        result = getattr(ours, name)
        assert torch.equal(result, value) if isinstance(value, torch.Tensor) else result == value, name
    assert ours.shape == second.shape and ours.sparsity() == second.sparsity() and torch.equal(ours.to_dense(), second.to_dense())
    assert ours.to_string() == second.to_string() and str(ours) == str(second) and repr(ours) == repr(second)
    for flatten in (True, False):
        for a, b in zip(ours.as_tuple(flatten), second.as_tuple(flatten), strict=True):
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    for index in (0, (0, 1 % second.shape[1]), (slice(None), slice(None), slice(1, None)), (0, 0, torch.tensor([1], dtype=torch.int32))):
        a, b = ours[index], second[index]
        assert type(a) is torch_flex.BlockMask and a.shape == b.shape and torch.equal(a.kv_indices, b.kv_indices)
    a, b = ours._adjust(100, 130), second._adjust(100, 130)
    assert a.shape == b.shape and torch.equal(a.to_dense(), b.to_dense())
    leaves, context = ours._flatten()
    repeated = type(ours)._unflatten(leaves, context)
    assert type(repeated) is torch_flex.BlockMask and torch.equal(repeated.kv_indices, second.kv_indices)
    assert isinstance(ours, LazyBlockMask) and ours.is_untouched()


def test_nothing_is_made_until_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    masks: list[Any] = []
    create = torch_flex.create_block_mask
    monkeypatch.setattr(torch_flex, "create_block_mask", lambda *a, **k: masks.append(a) or create(*a, **k))
    mask = create_block_mask(causal, None, None, M, N, "cpu")
    attend(tensors(), mask)
    assert (
        mask.shape == (1, 1, M, N) and mask.BLOCK_SIZE == (128, 128) and mask.seq_lengths == (M, N) and mask.numel() == M * N and not masks
    )
    with pytest.raises(AttributeError, match="no attribute 'kv_blocks'"):
        _ = mask.kv_blocks  # type: ignore[attr-defined]
    assert not masks and mask.kv_num_blocks is mask.kv_num_blocks and mask.full_q_indices is not None and len(masks) == 1


def test_pytorchs_own_call_takes_ours() -> None:
    qkv, mask = tensors(), create_block_mask(documents, None, 2, M, N, "cpu")
    expected = torch_flex.flex_attention(*(x.float() for x in qkv), block_mask=mask)
    torch.testing.assert_close(attend(qkv, mask)[0].float(), expected, atol=3e-3, rtol=1e-2)


def test_masks_on_another_device() -> None:
    mask = create_block_mask(causal, None, None, M, N, "cpu")
    remote = mask.to("meta")
    assert isinstance(remote, LazyBlockMask) and remote.is_untouched() and mask.kv_indices.device.type == "cpu"
    assert remote.kv_num_blocks.is_meta and remote.is_untouched() and not remote.to("cpu").kv_num_blocks.is_meta
    table, devices = torch.arange(N), list[str]()

    def captures(b: Any, h: Any, q: Any, k: Any) -> Any:
        devices.append(q.device.type)
        return table[k] <= q

    assert create_block_mask(captures, None, None, M, N, "cpu").to("meta").kv_indices.is_meta and set(devices) == {"cpu"}, (
        "made where the table is"
    )
    mask.kv_num_blocks = mask.kv_num_blocks.clone()
    assert type(mask.to("meta")) is torch_flex.BlockMask and mask.to("meta").kv_num_blocks.is_meta


@pytest.mark.parametrize("requests", [False, True])
@pytest.mark.parametrize("copied", [lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy, copy.copy], ids=["pickled", "deep", "shallow"])
def test_copies(copied: Callable[[Any], Any], requests: bool) -> None:
    mask = create_block_mask(documents, None, 2, M, N, "cpu", BLOCK_SIZE=64)
    if requests:
        assert mask.kv_num_blocks.shape == (1, 2, 4)
    second = copied(mask)
    assert type(second) is LazyBlockMask and second.is_untouched() and second.mask_mod is documents and second.BLOCK_SIZE == (64, 64)
    mask.kv_num_blocks.zero_()
    second = copied(mask)
    assert type(second) is torch_flex.BlockMask and not second.kv_num_blocks.any() and second.shape == mask.shape
    compare(tensors(), second)


def test_a_field_that_is_set_before_any_is_read() -> None:
    mask, second = create_block_mask(causal, None, None, M, N, "cpu"), torch_flex.create_block_mask(causal, None, None, M, N, "cpu")
    for item in (mask, second):
        item.kv_num_blocks = torch.ones(1, 1, 2, dtype=torch.int32)
    compare(tensors(), mask)
    assert not torch.equal(attend(tensors(), mask)[0], attend(tensors(), create_block_mask(causal, None, None, M, N))[0])
    assert torch.equal(mask.to_dense(), second.to_dense())


def test_what_cannot_be_pickled_is_named() -> None:
    def inside(b: Any, h: Any, q: Any, k: Any) -> Any:
        return q >= k

    with pytest.raises((AttributeError, pickle.PicklingError), match="inside"):
        pickle.dumps(create_block_mask(inside, None, None, M, N))


def test_a_mask_mod_that_asks_for_lengths() -> None:
    def bottom(b: Any, h: Any, q: Any, k: Any, *, M: Any, N: Any) -> Any:
        return k <= q + (N - M)

    mask = create_block_mask(bottom, None, None, M, N, "cpu")
    assert mask.sparsity() == torch_flex.create_block_mask(lambda b, h, q, k: k <= q + 100, None, None, M, N, "cpu").sparsity()
    assert mask.mask_mod is bottom


def test_every_name_of_pytorchs_module() -> None:
    for name in torch_flex.__all__:
        assert getattr(cuir.flex, name) is not None and name in dir(cuir.flex)
    assert cuir.flex.BlockMask is torch_flex.BlockMask
    with pytest.raises(CuirError, match=r"U403(.|\n)*create_block_mask"):
        cuir.flex.create_nested_block_mask(causal, None, None, torch.zeros(3))


# ---- as they stand
@examples(0.3)
@given(data=st.data())
def test_any_lists_of_blocks(data: st.DataObject) -> None:
    rows, columns = (data.draw(st.sampled_from([16, 48, 64, 128, 200, 1024])) for _ in range(2))
    m, n = data.draw(st.integers(1, 260)), data.draw(st.integers(1, 260))
    batch, heads = data.draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2)]))
    shape = data.draw(st.sampled_from([1, batch])), data.draw(st.sampled_from([1, heads])), -(-m // rows), -(-n // columns)
    seed = data.draw(st.integers(0, 2**20))
    kinds = torch.randint(0, 3, shape, generator=torch.Generator().manual_seed(seed))
    wide = shape[3] + data.draw(st.integers(0, 2))
    separate = data.draw(st.booleans())
    if not separate:
        kinds = kinds.clamp(max=1)
    full = lists(kinds, 2, wide, seed + 1) if separate else (None, None)
    mod = data.draw(st.sampled_from([None, causal, documents]))
    mask = torch_flex.BlockMask.from_kv_blocks(
        *lists(kinds, 1, wide, seed), *full, BLOCK_SIZE=(rows, columns), mask_mod=mod, seq_lengths=(m, n), compute_q_blocks=False
    )
    compare(tensors(batch, heads, m, n), mask, data.draw(st.sampled_from([None, lambda s, b, h, q, k: s + (q - k) * 0.01])))


@pytest.mark.sweep(4)
@pytest.mark.parametrize("mod", [causal, documents])
@pytest.mark.parametrize("make", [torch_flex.create_block_mask, create_block_mask], ids=["PyTorch's", "ours"])
def test_edits(mod: Mod, make: Callable[..., Any]) -> None:
    qkv, mask = tensors(), make(mod, None, 2, M, N, "cpu", BLOCK_SIZE=64)
    before = attend(qkv, mask)[0]
    mask.kv_num_blocks[0, 1, 2] -= 1
    compare(qkv, mask)
    mask.full_kv_indices = mask.full_kv_indices.flip(-1)
    compare(qkv, mask)
    mask.full_kv_num_blocks = mask.full_kv_indices = None
    compare(qkv, mask)
    mask.mask_mod = lambda b, h, q, k: q * 3 >= k
    compare(qkv, mask)
    assert not torch.equal(attend(qkv, mask)[0], before)


@pytest.mark.parametrize("make", [torch_flex.create_block_mask, create_block_mask], ids=["PyTorch's", "ours"])
def test_slices(make: Callable[..., Any]) -> None:
    q, k, v = tensors(2, 2, 256, 300)
    mask = make(documents, 2, 2, 256, 300, "cpu", BLOCK_SIZE=64)
    part = mask[1:, :, 2:]
    with pytest.raises(CuirError, match=r"U412(.|\n)*mask_mod = "):
        attend((q, k, v), part)
    part.mask_mod = lambda b, h, i, j: documents(b, h, i + 128, j)
    with pytest.raises(CuirError, match=r"U412(.|\n)*128 queries, found 256"):
        attend((q[1:], k[1:], v[1:]), part)
    part.seq_lengths = (128, 300)
    compare((q[1:, :, 128:], k[1:], v[1:]), part)
    for name, index in (("heads", (slice(None), 1)), ("batch", 0)):
        item = mask[index]
        item.mask_mod = mask.mask_mod
        compare((q[:, :1], k[:, :1], v[:, :1]) if name == "heads" else (q[:1], k[:1], v[:1]), item)


def test_an_adjusted_mask() -> None:
    q, k, v = tensors(m=150, n=170)
    mask = create_block_mask(documents, None, 2, M, N, "cpu", BLOCK_SIZE=64)
    compare((q, k, v), mask._adjust(150, 170))
    with pytest.raises(CuirError, match="U412"):
        attend((q, k, v), mask)


def test_the_mask_mod_alone_is_taken_where_the_blocks_say_no_more() -> None:
    """Its program has bounds, and no table."""
    qkv = tensors()
    whole = torch_flex.create_block_mask(causal, None, None, M, N, "cpu")
    generous = torch_flex.BlockMask.from_kv_blocks(
        torch.full((1, 1, 2), 3).int(), torch.arange(3).expand(1, 1, 2, 3).int(), mask_mod=causal, seq_lengths=(M, N)
    )
    prepared_calls._ATTENTIONS.clear()
    for mask in (whole, generous):
        compare(qkv, mask)
        assert [k.attention.transferred.lists for k in prepared_calls._ATTENTIONS.values()] == [None]
    whole.kv_num_blocks[0, 0, 1] = 0
    compare(qkv, whole)
    assert len(prepared_calls._ATTENTIONS) == 2 and list(prepared_calls._ATTENTIONS.values())[1].attention.transferred.lists is not None


def test_data_that_a_mask_was_made_from_may_change() -> None:
    ids = torch.arange(N) // 60
    mask = torch_flex.create_block_mask(lambda b, h, q, k: ids[q] == ids[k], None, None, M, N, "cpu", BLOCK_SIZE=32)
    for step in (60, 40, 60):
        ids.copy_(torch.arange(N) // step)
        compare(tensors(), mask)


def test_a_mask_for_one_batch_of_a_mod_that_tells_them_apart() -> None:
    """PyTorch makes the blocks of the first batch, and they are taken for all."""
    mask = torch_flex.create_block_mask(lambda b, h, q, k: (q - k + 64 * b) // 64 == 1, None, None, M, N, "cpu", BLOCK_SIZE=64)
    compare(tensors(1), mask)
    compare(tensors(2), mask)


def test_other_tables_of_blocks_are_other_data_of_one_program() -> None:
    qkv = tensors(m=256, n=256)
    prepared_calls._ATTENTIONS.clear()
    for seed in range(3):
        kinds = torch.randint(0, 2, (1, 2, 4, 4), generator=torch.Generator().manual_seed(seed))
        compare(qkv, torch_flex.BlockMask.from_kv_blocks(*lists(kinds, 1, 4, seed), BLOCK_SIZE=64))
    assert len(prepared_calls._ATTENTIONS) == 1


def test_lengths_below_a_block_share_a_program() -> None:
    prepared_calls._TRACED.clear()
    for m, n in ((1, 150), (30, 150), (100, 129)):
        count, first = torch.ones(1, 1, 1, dtype=torch.int32), torch.ones(1, 1, 1, 2, dtype=torch.int32)
        mask = torch_flex.BlockMask.from_kv_blocks(count, first, mask_mod=documents, seq_lengths=(m, n), compute_q_blocks=False)
        compare(tensors(m=m, n=n), mask)
    assert len(prepared_calls._TRACED) == 1


def test_a_mask_without_lengths_is_asked_for_each() -> None:
    """FlexAttention's block size for a mask of everything goes with any lengths."""
    item = torch.ones(1, 1, 1, dtype=torch.int32), torch.zeros(1, 1, 1, 1, dtype=torch.int32)
    empty = torch.zeros(1, 1, 1, dtype=torch.int32), torch.zeros(1, 1, 1, 1, dtype=torch.int32)
    mask = torch_flex.BlockMask.from_kv_blocks(*empty, *item, BLOCK_SIZE=1 << 30, mask_mod=lambda b, h, q, k: k < 50, seq_lengths=(1, 1))
    for n in (40, 90, 40):  # a whole block needs no mask_mod
        compare(tensors(m=30, n=n), mask)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m, "kv_indices", m.kv_indices[0]),
        lambda m: setattr(m, "kv_num_blocks", m.kv_num_blocks[:, :, :1]),
        lambda m: setattr(m, "full_kv_num_blocks", m.full_kv_num_blocks.repeat(2, 1, 1)),
        lambda m: setattr(m, "seq_lengths", (M, M)),
    ],
    ids=["rank", "rows", "batches", "lengths"],
)
def test_masks_that_do_not_fit_are_refused(change: Callable[[Any], None]) -> None:
    mask = torch_flex.create_block_mask(causal, None, None, M, N, "cpu", BLOCK_SIZE=64)
    change(mask)
    with pytest.raises(CuirError, match="U412"):
        attend(tensors(), mask)


# ---- in a graph
def test_masks_as_they_stand_in_a_graph() -> None:
    if torch.__version__ < "2.13":
        pytest.skip("a mask of this PyTorch is no constant of a graph")

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> Any:
        return flex_attention(q * 1.0, k, v, None, mask, backend="interpret", verify="off") + 0.0

    torch.compiler.reset()
    f, qkv = torch.compile(call, fullgraph=True, backend="eager"), tensors()
    for mask in (
        create_block_mask(documents, None, 2, M, N, "cpu", BLOCK_SIZE=64),
        torch_flex.create_block_mask(causal, None, None, M, N, "cpu"),
    ):
        assert torch.equal(f(*qkv, mask), attend(qkv, mask)[0])
        before = f(*qkv, mask)
        mask.kv_num_blocks[..., 1] = 0
        assert torch.equal(f(*qkv, mask), attend(qkv, mask)[0]) and not torch.equal(f(*qkv, mask), before)
        compare(qkv, mask)


def shifted(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q + 64 >= k


@pytest.mark.sweep
@pytest.mark.parametrize("make", [torch_flex.create_block_mask, create_block_mask], ids=["PyTorch's", "ours"])
@pytest.mark.parametrize("within", [False, True], ids=["from outside", "made inside"])
def test_slices_in_a_graph(make: Callable[..., Any], within: bool) -> None:
    if torch.__version__ < "2.13":
        pytest.skip("a mask of this PyTorch is no constant of a graph")
    q, k, v = tensors()
    outside = make(causal, None, None, M, N, "cpu", BLOCK_SIZE=64)
    graphs: list[Any] = []

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        part = (make(causal, None, None, M, N, "cpu", BLOCK_SIZE=64) if within else outside)[:, :, 1:]
        part.mask_mod, part.seq_lengths = shifted, (M - 64, N)
        return flex_attention(q[:, :, 64:], k, v, None, part, backend="interpret", verify="off")

    def count_graph(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    torch.compiler.reset()
    compiled = torch.compile(call, fullgraph=True, backend=count_graph)
    if within and make is create_block_mask:
        with pytest.raises(Exception, match="U418"):
            compiled(q, k, v)
        return
    for _ in range(3):
        assert torch.equal(compiled(q, k, v), call(q, k, v))
    assert len(graphs) <= 2


def test_a_mask_whose_bits_take_too_much_memory_is_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def dilated(b: Any, h: Any, q: Any, k: Any) -> Any:
        return ((q - k) % 5 == 0) & (TABLE[q] == TABLE[k])

    qkv = tensors()
    expected, _ = attend(qkv, create_block_mask(dilated, None, None, M, N, device="cpu"))
    monkeypatch.setattr("cuir.attn.masks.block_lists.MOST_BITS", 0)
    prepared_calls._ATTENTIONS.clear(), prepared_calls._TRACED.clear(), prepared_calls._WARM.clear()
    actual, _ = attend(qkv, create_block_mask(dilated, None, None, M, N, device="cpu"))
    (expected_values,) = prepared_calls._ATTENTIONS.values()
    assert expected_values.attention.transferred.lists is not None and expected_values.attention.transferred.lists.bits
    assert expected_values.attention.plain.transferred.lists is not None and not expected_values.attention.plain.transferred.lists.bits
    torch.testing.assert_close(actual, expected)
