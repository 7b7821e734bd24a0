"""Block masks as objects: their fields, slices, sizes, devices, pictures, and calls under masks that were built from blocks or edited."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention.flex_attention import noop_mask

from tests.peer.cases import ATTENTION, BACKWARD, INPUTS, scenario
from tests.peer.judging import expect, same_tensor
from tests.peer.mods import causal_mask
from tests.peer.scores import B, D, H, S, block_mask
from tests.peer.trial import Trial, attention

FIELDS, MASKED = "fields of block masks", "calls under block masks"
OF_KEYS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
OF_QUERIES = ("q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices")


def alike(t: Trial, make: Callable[[Any], Any], names: tuple[str, ...] = OF_KEYS) -> Any:
    """Makes a block mask of both implementations and compares tensors of it. Gives ours."""
    ours, torch_mask = make(t.ours), make(t.torch_api)
    for name in names:
        same_tensor(getattr(ours, name), getattr(torch_mask, name), name)
    return ours


def same(ours: Any, torch_mask: Any, description: str) -> None:
    expect(ours == torch_mask, f"{description} is {ours!r}, PyTorch has {torch_mask!r}")


def shifted_causal(t: Trial, offsets: torch.Tensor | None = None) -> Callable[..., Any]:
    shift = torch.zeros(8, device=t.device) if offsets is None else offsets
    return lambda b, h, q, kv: q + shift[b] * 128 >= kv


# ---- attributes
@scenario(ATTENTION, FIELDS)
def block_mask_attributes(t: Trial) -> None:
    n = t.length(2048)

    def pair(mod: Any, b: int, h: int) -> list[Any]:
        return [api.create_block_mask(mod, b, h, n, n, device=t.device) for api in (t.ours, t.torch_api)]

    parts = (lambda m: m, lambda m: m[0], lambda m: m[0, 0], lambda m: m[1, 0], lambda m: m[1])
    for mod, b, h in ((shifted_causal(t), 4, 2), (shifted_causal(t, torch.arange(8, device=t.device)), 8, 1)):
        ours, torch_mask = pair(mod, b, h)
        same(ours.numel(), torch_mask.numel(), "numel()")
        for part in parts:
            same(part(ours).shape, part(torch_mask).shape, "shape")
            same(part(ours).sparsity(), part(torch_mask).sparsity(), "sparsity()")


@scenario(ATTENTION, FIELDS, BLOCK_SIZE=(32, 64, 128, 256, (32, 64), (64, 32)))
def block_size_changes(t: Trial, BLOCK_SIZE: Any) -> None:
    ours, torch_mask = (
        api.create_block_mask(noop_mask, 4, 2, 2048, 2048, device=t.device, BLOCK_SIZE=BLOCK_SIZE) for api in (t.ours, t.torch_api)
    )
    same(ours.BLOCK_SIZE, torch_mask.BLOCK_SIZE, "BLOCK_SIZE")
    same(ours.shape, torch_mask.shape, "shape")


@scenario(ATTENTION, FIELDS)
def getitem(t: Trial) -> None:
    mod, row = shifted_causal(t), torch.tensor([1], dtype=torch.int32, device=t.device)
    parts = (
        lambda m: m,
        lambda m: m[0],
        lambda m: m[0, 1],
        lambda m: m[-1, -2],
        lambda m: m[0:2, 1:2],
        lambda m: m[0:2, 1:2, row],
        lambda m: m[:, :, row - 1],
    )
    for part in parts:
        alike(t, lambda api, part=part: part(api.create_block_mask(mod, 4, 2, 512, 512, device=t.device)))


@scenario(ATTENTION, FIELDS)
def block_mask_device_change(t: Trial) -> None:
    mask = t.ours.create_block_mask(shifted_causal(t), 1, 1, 512, 512, device=t.device)
    for device in (t.device, "cpu", t.device):
        mask = mask.to(device)
        for name in (*OF_KEYS[:2], *OF_QUERIES[:2]):
            same(getattr(mask, name).device.type, device, f"the device of {name}")


@scenario(ATTENTION, FIELDS)
def block_mask_viz(t: Trial) -> None:
    n = t.length(2048)
    for mod, b in ((causal_mask, 1), (shifted_causal(t, torch.arange(8, device=t.device)), 8)):
        same(*(str(api.create_block_mask(mod, b, 1, n, n, device=t.device)) for api in (t.ours, t.torch_api)), "str()")


@scenario(ATTENTION, FIELDS)
def make_block_mask(t: Trial) -> None:
    alike(
        t,
        lambda api: t.compile(api.create_block_mask, fullgraph=True)(causal_mask, 1, 1, 512, 512, device=t.device),
        (*OF_KEYS, *OF_QUERIES),
    )


@scenario(ATTENTION, FIELDS)
def compiling_create_block_mask(t: Trial) -> None:
    part = torch.arange(512, device=t.device) // 127

    def mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return (q >= kv) & (part[q] == part[kv])

    mask = alike(t, lambda api: t.compile(api.create_block_mask, fullgraph=True)(mod, 1, 1, 512, 512, device=t.device))
    expect(isinstance(mask, t.ours.BlockMask), f"it is a {type(mask).__name__}")


@scenario(ATTENTION, FIELDS)
def compiling_create_block_mask_no_recompile(t: Trial) -> None:
    counters = torch._dynamo.utils.counters
    torch._dynamo.reset()
    counters.clear()
    for b, h, n, graphs in ((2, 4, 1024, 1), (4, 8, 2048, 2), (6, 16, 3072, 2)):
        mask = torch.compile(t.ours.create_block_mask, backend="inductor" if t.native else "aot_eager")(
            causal_mask, b, h, n, n, device=t.device
        )
        expect(isinstance(mask, t.ours.BlockMask), f"it is a {type(mask).__name__}")
        same(list(mask.kv_num_blocks.shape), [b, h, n // 128], "the shape of kv_num_blocks")
        same(list(mask.kv_indices.shape), [b, h, n // 128, n // 128], "the shape of kv_indices")
        expect(counters["aot_autograd"]["ok"] <= graphs, f"{counters['aot_autograd']['ok']} graphs, PyTorch has {graphs}")


@scenario(ATTENTION, FIELDS)
def small_block_mask(t: Trial) -> None:
    create = t.compile(t.ours.create_block_mask)
    for ids in ([2, 42, 18, 21, 4, 2, 7, 1, 1], [57, 21, 16, 8]):
        batch = torch.tensor(ids, device=t.device)

        def mod(b: Any, h: Any, q: Any, kv: Any, batch: torch.Tensor = batch) -> Any:
            return (batch[q] == batch[kv]) & (batch[q] != -1) & (batch[kv] != -1)

        create(mod, B=None, H=None, Q_LEN=len(ids), KV_LEN=len(ids), device=t.device)


@scenario(ATTENTION, FIELDS)
def inspect_bug(t: Trial) -> None:
    import functools

    def window(b: Any, h: Any, q: Any, kv: Any, val: Any) -> Any:
        return (q - kv).abs() < val

    n = t.length(1024)
    mod = functools.partial(window, val=torch.randn((), device=t.device))
    t.ours.create_block_mask(mod, None, None, n, n, device=t.device)
    t.compile(t.ours.create_block_mask, fullgraph=True)(mod, None, None, n, n, device=t.device)


@scenario(ATTENTION, FIELDS, native_only=True)
def create_is_cuda_graphable(t: Trial) -> None:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        t.ours.create_block_mask(causal_mask, None, None, 256, 256)
    graph.replay()


# ---- pytrees
def pytree_mask(t: Trial) -> Any:
    return t.ours.create_block_mask(causal_mask, 2, 4, 512, 512, device=t.device)


@scenario(ATTENTION, FIELDS)
def pytree_flatten_unflatten(t: Trial) -> None:
    mask = pytree_mask(t)
    repeated = t.ours.BlockMask._unflatten(*mask._flatten())
    same(repeated.shape, mask.shape, "shape")
    same(repeated.sparsity(), mask.sparsity(), "sparsity()")
    for name in t.ours.BlockMask._TENSOR_ATTRS:
        same_tensor(getattr(repeated, name), getattr(mask, name), name)
    for name in t.ours.BlockMask._CONTEXT_ATTRS:
        same(getattr(repeated, name), getattr(mask, name), name)


def flatten(t: Trial, method: str) -> tuple[Any, Any]:
    """Return the flattened mask, in the numbers that PyTorch's has."""
    (tensors, context), torch_mask = (
        getattr(pytree_mask(t), method)(),
        getattr(t.torch_api.create_block_mask(causal_mask, 2, 4, 512, 512, t.device), method)(),
    )
    same((len(tensors), len(context)), (len(torch_mask[0]), len(torch_mask[1])), "how many tensors and other values a mask is flattened to")
    return tensors, context


@scenario(ATTENTION, FIELDS)
def pytree_flatten_with_keys(t: Trial) -> None:
    from torch.utils._pytree import GetAttrKey

    tensors, _ = flatten(t, "_flatten_with_keys")
    expect(all(isinstance(key, GetAttrKey) for key, _ in tensors), "a key is not the name of an attribute")


@scenario(ATTENTION, FIELDS)
def pytree_preserves_new_attributes(t: Trial) -> None:
    mask, repeated = pytree_mask(t), t.ours.BlockMask._unflatten(*flatten(t, "_flatten"))
    for name in (*mask._TENSOR_ATTRS, *mask._CONTEXT_ATTRS):
        item, second = getattr(repeated, name), getattr(mask, name)
        if isinstance(second, torch.Tensor):
            same_tensor(item, second, name)
        else:
            same(item, second, name)


# ---- masks that are built of blocks
def integers(t: Trial, *rows: Any) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.int32, device=t.device)


def make_blocks(t: Trial, full: bool) -> tuple[Any, ...]:
    """Counts and indices of a row of two blocks: one partly and one fully kept, or both partly."""
    if full:
        return integers(t, [[1]]), integers(t, [[[1, -1]]]), integers(t, [[1]]), integers(t, [[[0, -1]]])
    return integers(t, [[2]]), integers(t, [[[0, 1]]]), None, None


@scenario(ATTENTION, FIELDS, full_indices={"False": False, "True": True})
def from_kv_blocks(t: Trial, full_indices: bool) -> None:
    mask = alike(t, lambda api: api.BlockMask.from_kv_blocks(*make_blocks(t, full_indices)), (*OF_KEYS, *OF_QUERIES))
    expect(isinstance(mask, t.ours.BlockMask), f"it is a {type(mask).__name__}")


@scenario(ATTENTION, FIELDS, full_indices={"False": False, "True": True})
def from_kv_blocks_without_q_computation(t: Trial, full_indices: bool) -> None:
    alike(t, lambda api: api.BlockMask.from_kv_blocks(*make_blocks(t, full_indices), compute_q_blocks=False), (*OF_KEYS, *OF_QUERIES))


@scenario(ATTENTION, FIELDS)
def block_size(t: Trial) -> None:
    for options in ({}, {"BLOCK_SIZE": (64, 64)}):
        masks = [api.BlockMask.from_kv_blocks(*make_blocks(t, False)[:2], **options) for api in (t.ours, t.torch_api)]
        same(*(mask.BLOCK_SIZE for mask in masks), "BLOCK_SIZE")


@scenario(ATTENTION, FIELDS)
def custom_block_mask_generator(t: Trial) -> None:
    blocks = S // 128

    def by_hand(api: Any) -> Any:
        counts = torch.arange(blocks, device=t.device)[None, None] + 1
        indices = torch.arange(blocks, device=t.device).expand(blocks, blocks)[None, None]
        return api.BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=128, mask_mod=causal_mask)

    result = t.ours.create_block_mask(causal_mask, 1, 1, S, S, device=t.device)
    same_tensor(by_hand(t.ours).to_dense(), result.to_dense(), "to_dense()")


def four_blocks(t: Trial) -> Callable[[Any], Any]:
    return lambda api: api.BlockMask.from_kv_blocks(integers(t, [[4]]), integers(t, [[[0, 1, 2, 3]]]), compute_q_blocks=False)


@scenario(ATTENTION, FIELDS)
def block_mask_operations_with_none_q_indices(t: Trial) -> None:
    mask = alike(t, four_blocks(t), (*OF_KEYS, *OF_QUERIES))
    same((mask.shape, mask.BLOCK_SIZE), ((1, 1, 128, 512), (128, 128)), "shape and BLOCK_SIZE")
    part = mask[0]
    same(part.shape, (1, 1, 128, 512), "the shape of the first batch")
    expect(part.q_indices is None and part.q_num_blocks is None, "a part has lists of queries that the whole has not")
    expect(mask.to("cpu").q_indices is None, "a copy has lists of queries")


@scenario(ATTENTION, MASKED)
def forward_pass_with_none_q_indices(t: Trial) -> None:
    t.judge(attention(mask=four_blocks(t)), t.qkv((1, 1, 128, 64), (1, 1, 512, 64), torch.float16), fullgraph=True)


@scenario(ATTENTION, MASKED, gradients=INPUTS)
def backward_error_with_none_q_indices(t: Trial) -> None:
    tensors = t.qkv((1, 1, 128, 64), (1, 1, 512, 64), torch.float16)
    with torch.no_grad():
        t.judge(attention(mask=four_blocks(t)), [x.detach() for x in tensors], fullgraph=True)
    if t.gradients:
        call = t.compile(attention(mask=four_blocks(t))(t.ours), fullgraph=True)
        t.expect_refusal(lambda: call(*tensors), "a backward pass needs the lists of queries")


# ---- calls under block masks
@scenario(ATTENTION, MASKED, gradients=BACKWARD)
def causal_block(t: Trial) -> None:
    t.judge(attention(mask=block_mask(t, causal_mask, 1, 1, S, S)), t.qkv((B, H, S, D), dtype=torch.float16))


@scenario(ATTENTION, "paged attention")
def causal_block_paged_attention(t: Trial) -> None:
    from tests.peer.mods import identity
    from tests.peer.paging import judge_paged

    judge_paged(t, identity, t.qkv((B, H, S, D), dtype=torch.float16), block_mask(t, causal_mask, B, 1, S, S))


@scenario(ATTENTION, MASKED, gradients=BACKWARD)
def causal_block_non_divisible(t: Trial) -> None:
    n = S - 1
    t.judge(attention(mask=block_mask(t, causal_mask, B, 1, n, n)), t.qkv((B, H, n, D), dtype=torch.float16))


@scenario(ATTENTION, MASKED, gradients=BACKWARD)
def block_mask_non_divisible(t: Trial) -> None:
    n = t.length(1023)
    part = torch.arange(n, device=t.device) // 128

    def mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return part[q] == part[kv]

    t.compile(t.ours.create_block_mask)(mod, None, None, n, n, device=t.device)
    t.judge(attention(mask=block_mask(t, mod, None, None, n, n)), t.qkv((B, H, n, D), dtype=torch.float16))


@scenario(ATTENTION, MASKED, gradients=BACKWARD)
def mask_mod_combiners(t: Trial) -> None:
    n, window = t.length(2048), t.part(512, 2048)

    def later(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return q < kv

    combination = t.ours.and_masks(causal_mask, lambda b, h, q, kv: q - kv <= window)
    make = block_mask(t, combination, 1, 1, n, n)
    same(*(int(make(api).kv_num_blocks.sum()) for api in (t.ours, t.torch_api)), "the number of partly kept blocks")
    t.judge(attention(mask=make), t.qkv((B, H, n, D), dtype=torch.float16))
    empty, all_of_it, all_items = (
        t.ours.create_block_mask(mod, 1, 1, n, n, device=t.device)
        for mod in (t.ours.and_masks(causal_mask, later), t.ours.or_masks(causal_mask, later), noop_mask)
    )
    same(int(empty.kv_num_blocks.sum()), 0, "the number of blocks of a mask of nothing")
    same(all_of_it.sparsity(), all_items.sparsity(), "sparsity()")


@scenario(ATTENTION, MASKED)
def new_empty_mask_mod(t: Trial) -> None:
    dense = torch.ones(4, 1, 128, 128, dtype=torch.bool, device=t.device).tril()

    def score_mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score + dense[b, h.new_zeros(h.shape), q, kv]

    def mask_mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
        return dense[b, h.new_zeros(h.shape), q, kv]

    t.judge(attention(score_mod, block_mask(t, mask_mod, 4, None, 128, 128)), t.qkv((4, 1, 128, 64)), fullgraph=True)


def first_half(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return q < S // 2


@scenario(ATTENTION, MASKED, gradients=BACKWARD, compile={"True": True, "False": False})
def fully_masked_out_rows_0_check(t: Trial, compile: bool) -> None:
    make = attention(mask=block_mask(t, first_half, B, 1, S, S), return_lse=True)
    o, lse = t.judge(make, t.qkv((B, H, S, D)), compiled=compile, dynamic=False)
    expect((o[:, :, S // 2 :] == 0).all(), "O is not 0 where a query has no key")
    expect((lse[:, :, S // 2 :] == -torch.inf).all(), "LSE is not -inf where a query has no key")


@scenario(ATTENTION, MASKED, gradients=BACKWARD)
def fully_masked_out_rows(t: Trial) -> None:
    t.judge(attention(lambda score, b, h, q, kv: score, block_mask(t, first_half, B, 1, S, S)), t.qkv((B, H, S, D)))


@scenario(ATTENTION, MASKED, gradients=BACKWARD)
def multiple_mask_calls(t: Trial) -> None:
    def make(api: Any) -> Callable[..., Any]:
        mods = (causal_mask, lambda b, h, q, kv: (q >= kv) & (q <= kv + 32))
        masks = [api.create_block_mask(mod, 1, None, 512, 512, _compile=False, device=t.device) for mod in mods]
        flex_attention = api.flex_attention
        return lambda q, k, v: flex_attention(q, k, v, block_mask=masks[0]) + flex_attention(q, k, v, block_mask=masks[1])

    t.judge(make, t.qkv((1, 4, 512, 64)), fullgraph=True)


@scenario(ATTENTION, MASKED)
def broadcasted_head_block_mask(t: Trial) -> None:
    """A row of blocks, cut out of a mask for decoding at a position, with the mask_mod for that position."""
    n, position = 512, 128
    at = torch.tensor(position, device=t.device)

    def make(api: Any) -> Callable[..., Any]:
        whole = api.create_block_mask(causal_mask, B=4, H=None, Q_LEN=n, KV_LEN=n, device=t.device)
        row = whole[:, :, position // whole.BLOCK_SIZE[0]]
        row.mask_mod = lambda b, h, q, kv: q + at >= kv
        row.seq_lengths = (1, n)
        flex_attention = api.flex_attention
        return lambda q, k, v: flex_attention(q, k, v, block_mask=row)

    t.judge(make, t.qkv((4, 8, 1, 64), (4, 8, n, 64)), dynamic=True)


@scenario(ATTENTION, MASKED)
def doc_mask_clamped_repro(t: Trial) -> None:
    lots = random.Random(0)

    def documents(total: int, parts: int) -> torch.Tensor:
        cuts = sorted(lots.sample(range(1, total), parts - 1))
        return torch.bucketize(torch.arange(total, device=t.device), torch.tensor(cuts, device=t.device), right=True)

    of_token = documents(128, 4)
    alike(t, lambda api: t.compile(api.create_block_mask)(lambda b, h, q, kv: of_token[q] == of_token[kv], 1, 1, 128, 128, device=t.device))
    for i in range(5):
        n = t.length(1024) + i
        ids = documents(n, 5)

        def mod(b: Any, h: Any, q: Any, kv: Any, ids: torch.Tensor = ids) -> Any:
            last = ids.shape[0] - 1
            return ids[q.clamp(0, last)] == ids[kv.clamp(0, last)]

        t.judge(attention(mask=block_mask(t, mod, None, None, n, n)), t.qkv((1, 12, n, 64)))
