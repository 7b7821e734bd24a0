"""User code around the call: masks of models of vision, speech, proteins, recommendation and worlds; modules, caches, copies, streams."""

from __future__ import annotations

import copy
import enum
import functools
import io
from collections.abc import Callable
from typing import Any

import torch

from tests.peer.judging import expect, judge
from tests.peer.reports.scores import B, D, H, S, qkv
from tests.peer.reports.suite import Attempt, behaviour, dense_attention, report
from tests.peer.trial import Trial, attention

USER = "user code: "
Mod = Callable[..., Any]


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def within(window: int, b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q - k).abs() < window


def make_masked(t: Trial, mod: Mod, **options: Any) -> Attempt:
    return Attempt(attention(None, lambda api: api.create_block_mask(mod, B, H, S, S, device=t.device, **options)), qkv(t))


# ---- masks of models
@report(USER + "block diffusion", "block diffusion behind a text prefix")
def clean_and_noisy_streams(t: Trial) -> Attempt:
    block_ids = torch.arange(40, device=t.device) // 8
    block_ids[36:] = -1
    text, real, limit, zero = (torch.tensor(n, device=t.device) for n in (20, 17, 3, 0))

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        del b, h
        q_id = block_ids[torch.minimum(q_idx // 2, torch.full_like(q_idx, 39))]
        place = kv_idx - text
        clean = place >= 40
        place = torch.minimum(torch.maximum(torch.where(clean, place - 40, place), zero), zero + 39)
        k_id = block_ids[place]
        relation = torch.where(clean, k_id < q_id, k_id == q_id)
        of_text = (kv_idx < text) & (kv_idx < real) & (q_id >= 0)
        of_stream = ~(kv_idx < text) & (q_id >= 0) & (k_id >= 0) & relation & ((q_id - k_id).abs() <= limit)
        return of_text | of_stream | ((q_id < 0) & (k_id < 0))

    return make_masked(t, mask)


class Role(enum.IntEnum):
    GOAL = 0
    TOOL = 1
    REPLY = 2


@report(USER + "agents", "agents' roles; padding that keeps one safe key")
def roles_of_tokens(t: Trial) -> Attempt:
    role = torch.arange(S, device=t.device) % 3
    valid = torch.arange(S, device=t.device)[None] < torch.tensor([[S], [70]], device=t.device)
    selected = torch.arange(B * S, device=t.device).view(B, S) % 5 == 0
    safe = torch.tensor([0, 3], device=t.device)

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        goal = (role[q] == int(Role.GOAL)) & (role[k] == int(Role.GOAL))
        tool = (role[q] == Role.TOOL) & ((role[k] != Role.REPLY) | selected[b, k])
        reply = (role[q] == Role.REPLY) & (k <= q)
        return torch.where(valid[b, q], valid[b, k] & (goal | tool | reply), ~valid[b, q] & (k == safe[b]))

    return make_masked(t, mask)


@report(USER + "vision and language", "heads for vision, for text, for both")
def heads_of_modalities(t: Trial) -> Attempt:
    starts, length = torch.tensor([0, 13], device=t.device), 32

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        start = starts[b]
        q_sees, k_sees = (q >= start) & (q < start + length), (k >= start) & (k < start + length)
        inside = ~(q < start) & ~(k < start)
        return inside & torch.where(h < 1, q_sees & k_sees, ~q_sees & ~k_sees & (q >= k)) | (q == k)

    return make_masked(t, mask)


@report(USER + "speech", "speech segments with guarded indices")
def guarded_segments(t: Trial) -> Attempt:
    n = 90
    segments = torch.arange(n, device=t.device) // 17

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        ours, second = torch.where(q < n, q, torch.zeros_like(q)), torch.where(k < n, k, torch.zeros_like(k))
        return (q < n) & (k < n) & (segments[ours] == segments[second])

    return make_masked(t, mask)


@report(USER + "recommendation", "a window over a user's history")
def history_behind_features(t: Trial) -> Attempt:
    prefix, window = 6, 20
    return make_masked(t, lambda b, h, q, k: (k <= q) & (q - k < window) & ~((q >= prefix) & (k < prefix)))


@report(USER + "world models", "frames see earlier frames, ragged crops")
def frames_of_worlds(t: Trial) -> list[Attempt]:
    frame = 7
    return [make_masked(t, lambda b, h, q, k: (k // frame) <= (q // frame), BLOCK_SIZE=size) for size in (128, 32, (32, 64))]


@report(USER + "checkpoints of a text", "beacons: tokens see group and checkpoints")
def beacons(t: Trial) -> Attempt:
    ids = torch.arange(S, device=t.device) * 37 % 23
    checkpoints, special = ids == 5, torch.isin(ids, torch.tensor([1, 7], device=t.device))
    groups, docs = checkpoints.long().cumsum(0) - checkpoints.long(), (ids == 11).long().cumsum(0)
    return make_masked(t, lambda b, h, q, k: (q >= k) & (docs[k] == docs[q]) & ((groups[k] == groups[q]) | checkpoints[k] | special[k]))


@report(USER + "diffusion language models", "lengths by batch, a mask of keys alone")
def lengths_and_masks_of_keys(t: Trial) -> list[Attempt]:
    lengths, keys = torch.tensor([60, 99], device=t.device), torch.arange(B * S, device=t.device).view(B, S) % 3 > 0
    return [make_masked(t, lambda b, h, q, k: (q <= lengths[b]) & (k <= lengths[b])), make_masked(t, lambda b, h, q, k: keys[b, k])]


@report(USER + "two halves", "clean half and masked half, three quadrants")
def quadrants_of_halves(t: Trial) -> Attempt:
    half, block = S // 2, 4

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        first = (q < half) & (k < half) & (k <= q)
        ours = (q >= half) & (k >= half) & ((q - half) // block == (k - half) // block)
        past = (q >= half) & (k < half) & (k // block < (q - half) // block)
        return first | ours | past

    return make_masked(t, mask)


# ---- biases of models
@report(USER + "proteins", "a pair bias shared by samples in heads")
def pair_bias_of_samples(t: Trial) -> Attempt:
    z = t.randn(1, H, S, S)
    return Attempt(attention(lambda s, b, h, q, k: s + z[(h // H) // 2, h % H, q, k]), t.qkv((1, 2 * H, S, D)), (z,))


@report(USER + "forgetting", "running log gates of a projection")
def forget_gates(t: Trial) -> Attempt:
    gates = t.randn(B, H, S)

    def make(api: Any) -> Any:
        def call(q: Any, k: Any, v: Any) -> Any:
            rows = torch.nn.functional.logsigmoid(gates).cumsum(-1)
            columns = rows.clone()
            mask = api.create_block_mask(causal, None, None, S, S, device=q.device)
            return api.flex_attention(q, k, v, lambda s, b, h, i, j: s + rows[b, h, i] - columns[b, h, j], mask)

        return call

    return Attempt(make, qkv(t), (gates,))


@report(USER + "masks as floats", "a float mask added in the score_mod")
def float_mask_and_shared_slopes(t: Trial) -> list[Attempt]:
    dense = torch.where(torch.rand(S, S, device=t.device) > 0.3, 0.0, -1e9)[None, None]
    slopes = t.randn(2)
    grouped = attention(lambda s, b, h, q, k: s - slopes[h // 2].exp() * (q - k).abs() * 0.1, enable_gqa=True)
    return [
        Attempt(attention(lambda s, b, h, q, k: s + dense[0, 0, q, k]), qkv(t)),
        Attempt(grouped, t.qkv((B, 4, S, D), (B, 2, S, D)), (slopes,)),
    ]


# ---- around the call
@report(USER + "caches of masks", "masks from functools.lru_cache")
def cached_masks(t: Trial) -> list[Attempt]:
    def make(api: Any) -> Any:
        @functools.lru_cache
        def mask(n: int, window: int) -> Any:
            return api.create_block_mask(functools.partial(within, window), None, None, n, n, device=t.device)

        masks = {(n, w): mask(n, w) for n in (S, 64) for w in (5, 30)}

        def call(q: Any, k: Any, v: Any) -> Any:
            return sum(api.flex_attention(q, k, v, block_mask=masks[q.shape[2], w]) for w in (5, 30))

        return call

    return [Attempt(make, qkv(t, n)) for n in (S, 64, S)]


@report(USER + "partial calls", "functools.partial of the call itself")
def partial_of_the_call(t: Trial) -> Attempt:
    def make(api: Any) -> Any:
        mask = api.create_block_mask(causal, None, None, S, S, device=t.device)
        return functools.partial(
            api.flex_attention, block_mask=mask, scale=0.3, enable_gqa=True, kernel_options={"BLOCK_M": 64, "num_warps": 4}
        )

    return Attempt(make, t.qkv((B, 4, S, D), (B, 2, S, D)))


@report(USER + "compiled masks", "create_block_mask under torch.compile")
def compiled_masks(t: Trial) -> list[Attempt]:
    def make(compiled: bool) -> Callable[[Any], Any]:
        def mask(api: Any) -> Any:
            create = t.compile(api.create_block_mask) if compiled else api.create_block_mask
            return create(causal, None, None, S, S, device=t.device, **({} if compiled or not t.native else {"_compile": True}))

        return mask

    return [Attempt(attention(None, make(compiled)), qkv(t)) for compiled in (True, False)]


@report(USER + "nests of masks", "nested and_masks and or_masks")
def nests_of_masks(t: Trial) -> Attempt:
    class Documents:
        def __init__(self) -> None:
            self.ids = torch.arange(S, device=t.device) // 30

        def same(self, b: Any, h: Any, q: Any, k: Any) -> Any:
            return self.ids[q] == self.ids[k]

    documents = Documents()

    def mask(api: Any) -> Any:
        local = api.and_masks(causal, functools.partial(within, 12))
        mod = api.or_masks(api.and_masks(local, documents.same), lambda b, h, q, k: k < 4, api.and_masks(causal, lambda b, h, q, k: h == 0))
        return api.create_block_mask(mod, None, H, S, S, device=t.device)

    return Attempt(attention(None, mask), qkv(t))


@report(USER + "block tables", "BlockMask.from_kv_blocks of documents and windows")
def tables_of_blocks(t: Trial) -> list[Attempt]:
    size, n = 32, 128
    docs = torch.arange(n, device=t.device) // 48

    def order(dense: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return dense.sum(-1, dtype=torch.int32)[None, None], torch.argsort(dense.int(), dim=-1, descending=True, stable=True).int()[
            None, None
        ]

    def of_documents(api: Any) -> Any:
        low, high = docs.view(-1, size)[:, 0], docs.view(-1, size)[:, -1]
        i = torch.arange(n // size, device=t.device)
        some = (i[:, None] >= i) & (low[:, None] <= high) & (low <= high[:, None])
        whole = (i[:, None] > i) & (low[:, None] == high) & (low == high[:, None])
        partial, full = order(some & ~whole), order(whole)
        mod = lambda b, h, q, k: (q >= k) & (docs[q] == docs[k])  # noqa: E731
        return api.BlockMask.from_kv_blocks(*partial, full[0].clamp_max(2), full[1], BLOCK_SIZE=size, mask_mod=mod)

    def of_whole_blocks(api: Any) -> Any:
        count, places = order(torch.eye(n // size, device=t.device) + torch.eye(n // size, device=t.device).roll(1, 0) > 0)
        return api.BlockMask.from_kv_blocks(torch.zeros_like(count), places, count, places, BLOCK_SIZE=size, mask_mod=None)

    return [Attempt(attention(None, mask), t.qkv((B, H, n, D))) for mask in (of_documents, of_whole_blocks)]


class Layer(torch.nn.Module):
    """Attention with a learned slope and a mask that it holds."""

    def __init__(self, api: Any, weights: tuple[torch.Tensor, torch.Tensor], device: str) -> None:
        super().__init__()
        self.call, (self.project, self.slopes) = api.flex_attention, weights
        self.mask = api.create_block_mask(causal, None, None, S, S, device=device)

    def bias(self, s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s - self.slopes[h] * (q - k)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (x @ self.project.to(x.dtype)).unflatten(-1, (3, H, -1)).permute(2, 0, 3, 1, 4)
        return x + self.call(q, k, v, score_mod=self.bias, block_mask=self.mask).transpose(1, 2).flatten(2)


def weights(t: Trial) -> tuple[torch.Tensor, torch.Tensor]:
    return t.wanting(torch.randn(H * D, 3 * H * D, device=t.device) / 8), t.wanting(torch.rand(H, device=t.device) * 0.1)


@report(USER + "layers", "two layers with one bound method")
def layers_with_bound_methods(t: Trial) -> Attempt:
    tensors = weights(t)
    return Attempt(lambda api: torch.nn.Sequential(*(Layer(api, tensors, t.device) for _ in range(2))), (t.randn(B, S, H * D),), tensors)


@report(USER + "copies", "deep copies of a module with a mask", calls=("eager",))
def copied_module(t: Trial) -> Attempt:
    tensors = weights(t)

    def make(api: Any) -> Any:
        layer = Layer(api, (tensors[0].detach(), tensors[1].detach()), t.device)
        clone = copy.deepcopy(layer)
        clone.project, clone.slopes = tensors
        return clone

    return Attempt(make, (t.randn(B, S, H * D),), tensors)


@report(USER + "moved masks", "a mask moved to the query's device")
def moved_mask(t: Trial) -> list[Attempt]:
    def move(api: Any) -> Any:
        return api.create_block_mask(causal, 1, 1, S, S, device="cpu").to(t.device)

    return [Attempt(attention(None, move), qkv(t)), Attempt(attention(None, lambda api: move(api)._adjust(64, 64)), qkv(t, 64))]


@behaviour(USER + "streams of inference", "inference_mode, no_grad, training in between")
def modes_of_inference(t: Trial, call: str) -> None:
    x = torch.randn(3, B, H, S, D, device=t.device).unbind()
    with torch.inference_mode():
        mask = t.ours.create_block_mask(causal, None, None, S, S, device=t.device)
        bias = torch.randn(S, device=t.device)
    run = attention(lambda s, b, h, q, k: s + bias[k], lambda api: mask)(t.ours)
    run = t.compile(run) if call == "compiled" else run
    expected = attention(lambda s, b, h, q, k: s + bias[k], lambda api: mask)
    for mode in (torch.inference_mode, torch.no_grad, torch.enable_grad, torch.inference_mode):
        with mode():
            actual = run(*x)
            golden = expected(t.torch_api)(*(item.double() for item in x))
            judge(golden, expected(t.torch_api)(*x), actual, mode.__name__)


@behaviour(USER + "autocast", "autocast with a learned float32 bias")
def half_inputs_under_autocast(t: Trial, call: str) -> None:
    layer = torch.nn.Linear(D, 3 * D, device=t.device)
    bias = torch.randn(S, device=t.device)
    mod = lambda s, b, h, q, k: s + bias[q - k + S - 1 - (q - k).clamp(min=0)]  # noqa: E731
    run = attention(mod)(t.ours)
    run = t.compile(run) if call == "compiled" else run
    x = torch.randn(B, H, S, D, device=t.device)
    with torch.autocast(t.device, dtype=torch.bfloat16):
        q, k, v = layer(x).chunk(3, -1)
        result = run(q, k, v)
    expect(result.dtype == torch.bfloat16, f"O is {result.dtype}")
    golden = dense_attention(q.double(), k.double(), v.double(), mod)
    judge(golden, dense_attention(q, k, v, mod), result, "O")


@behaviour(USER + "saved masks", "a module with a mask, saved and loaded", calls=("eager",))
def saved_mask(t: Trial, call: str) -> None:
    mask, file = t.ours.create_block_mask(causal, None, None, S, S, device=t.device), io.BytesIO()
    torch.save({"mask": mask, "window": functools.partial(within, 9)}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    x = torch.randn(3, B, H, S, D, device=t.device).unbind()
    for item in (loaded["mask"], t.ours.create_block_mask(loaded["window"], None, None, S, S, device=t.device)):
        golden = dense_attention(*(y.double() for y in x), block_mask=item)
        judge(golden, dense_attention(*x, block_mask=item), t.ours.flex_attention(*x, block_mask=item), "O")


@behaviour(USER + "training loops", "an optimiser steps on captured tensors")
def steps_of_an_optimiser(t: Trial, call: str) -> None:
    x = torch.randn(3, B, H, S, D, device=t.device).unbind()
    bias = torch.zeros(H, S, device=t.device, requires_grad=True)
    mod = lambda s, b, h, q, k: s + bias[h, k]  # noqa: E731
    run = attention(mod)(t.ours)
    run = t.compile(run) if call == "compiled" else run
    optimiser = torch.optim.SGD([bias], lr=0.5)
    with torch.enable_grad():
        for step in range(3):
            actual = run(*x)
            golden, eager = dense_attention(*(y.double() for y in x), mod), dense_attention(*x, mod)
            judge(golden, eager, actual, f"O of step {step}")
            optimiser.zero_grad()
            actual.square().sum().backward()
            (expected,) = torch.autograd.grad(eager.square().sum(), bias)
            expect(bool(torch.allclose(bias.grad, expected, rtol=1e-3, atol=1e-4)), "the gradient of the bias")  # type: ignore[arg-type]
            optimiser.step()


@behaviour(USER + "data parallel", "DistributedDataParallel, one process", calls=("eager",))
def data_parallel_layer(t: Trial, call: str) -> None:
    distributed = torch.distributed
    if distributed.is_initialized():
        return
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        ours = [torch.nn.Parameter(x) for x in (torch.randn(H * D, 3 * H * D, device=t.device) / 8, torch.rand(H, device=t.device))]
        layer = Layer(t.ours, (ours[0], ours[1]), t.device)
        x = torch.randn(B, S, H * D, device=t.device)
        with torch.enable_grad():
            torch.nn.parallel.DistributedDataParallel(layer)(x).square().sum().backward()
            expected = torch.autograd.grad(Layer(t.torch_api, (ours[0], ours[1]), t.device)(x).square().sum(), ours)
        for a, b in zip((p.grad for p in ours), expected, strict=True):
            expect(bool(torch.allclose(a, b, rtol=1e-3, atol=1e-3 * float(b.abs().max()))), "gradients of the layer")  # type: ignore[arg-type]
    finally:
        distributed.destroy_process_group()


# ---- masks and biases made of others
@report(USER + "windows of images", "relative positions by two captured indices")
def positions_in_windows(t: Trial) -> Attempt:
    side = 7
    places = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"), -1).view(-1, 2).to(t.device)
    table, steps = t.randn(H, 2 * side - 1, 2 * side - 1), places[:, None] - places[None] + side - 1
    return Attempt(attention(lambda s, b, h, q, k: s + table[h, steps[q, k, 0], steps[q, k, 1]]), qkv(t, side * side), (table,))


@report(USER + "gated biases", "a bias of buckets under a gate")
def gated_relative_bias(t: Trial) -> Attempt:
    table, gamma, mu = t.randn(9, H), t.randn(H), t.randn(B, H, 2, 60)
    buckets = (torch.arange(60, device=t.device)[:, None] - torch.arange(60, device=t.device)).abs().clamp(max=8)

    def make(api: Any) -> Any:
        def call(q: Any, k: Any, v: Any) -> Any:
            of_query, of_key = mu.unbind(2)
            gate = torch.sigmoid(gamma)

            def bias(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
                return s + gate[h] * (of_query[b, h, i] + of_key[b, h, j]) * table[buckets[i, j], h]

            return api.flex_attention(q, k, v, score_mod=bias)

        return call

    return Attempt(make, qkv(t, 60), (table, gamma, mu))


@report(USER + "squared relu", "the logarithm of a squared relu")
def squared_relu_scores(t: Trial) -> list[Attempt]:
    def score(divisor: float, length: int | None) -> Mod:
        def inner(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            x = torch.relu(s).square() / divisor
            return torch.log(x + 1e-3) if length is None else torch.log(x / length + 1e-3)

        return inner

    return [
        Attempt(attention(score(2.0, n), lambda api: api.create_block_mask(causal, None, None, S, S, device=t.device)), qkv(t))
        for n in (None, S)
    ]


@report(USER + "segments in scores", "padding by masked_fill in the score_mod")
def segments_in_scores(t: Trial) -> Attempt:
    padded = torch.arange(S, device=t.device)[None] >= torch.tensor([[S], [80]], device=t.device)
    segments = torch.arange(S, device=t.device).expand(B, S) // 40

    def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        s = s.masked_fill(padded[b, k], -1e9)
        return s.masked_fill(segments[b, k] != segments[b, q], float("-inf"))

    return Attempt(attention(score), qkv(t))


@report(USER + "padding added later", "padding added to another mask's mask_mod")
def padding_on_a_mask(t: Trial) -> Attempt:
    padded = torch.arange(S, device=t.device)[None] >= torch.tensor([[S], [61]], device=t.device)

    def mask(api: Any) -> Any:
        first = api.create_block_mask(functools.partial(within, 20), None, None, S, S, device=t.device, BLOCK_SIZE=64)
        combination = api.and_masks(first.mask_mod, lambda b, h, q, k: ~padded[b, k])
        return api.create_block_mask(combination, B, None, *first.seq_lengths, device=t.device, BLOCK_SIZE=first.BLOCK_SIZE)

    return Attempt(attention(None, mask), qkv(t))


@report(USER + "micro-batches", "a mask split along the batch", calls=("eager",))
def masks_of_chunks(t: Trial) -> list[Attempt]:
    ids = torch.arange(4 * S, device=t.device).view(4, S) // 30

    def chunk(n: int) -> Attempt:
        def mask(api: Any) -> Any:
            whole = api.create_block_mask(lambda b, h, q, k: (ids[b, q] == ids[b, k]) & (q >= k), 4, None, S, S, device=t.device)
            count, places, full, full_places = (
                x.tensor_split(2)[n] for x in (whole.kv_num_blocks, whole.kv_indices, whole.full_kv_num_blocks, whole.full_kv_indices)
            )
            mod = lambda b, h, q, k: whole.mask_mod(b + torch.full_like(b, 2 * n), h, q, k)  # noqa: E731
            return api.BlockMask.from_kv_blocks(count, places, full, full_places, whole.BLOCK_SIZE, mod, whole.seq_lengths)

        return Attempt(attention(None, mask), qkv(t))

    return [chunk(0), chunk(1)]


@report(USER + "decoders of queries", "a strided window that wraps around")
def strided_windows(t: Trial) -> Attempt:
    queries, keys, window, valid = 12, 60, 20, torch.tensor(9, device=t.device)

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        away = (k - torch.round(q * (keys / queries)).to(torch.int64)).abs()
        return (torch.minimum(away, keys - away) <= window // 2) & (q < valid)

    make = attention(None, lambda api: api.create_block_mask(mask, None, None, queries, keys, device=t.device))
    return Attempt(make, t.qkv((B, H, queries, D), (B, H, keys, D)))


@report(USER + "decoding in buckets", "a query against a bucket of a cache")
def decoding_in_buckets(t: Trial) -> list[Attempt]:
    def at(written: int) -> Attempt:
        positions, count = torch.tensor([written, written - 3], device=t.device), torch.tensor(written, device=t.device)

        def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
            delta = positions[b] - k
            return (delta >= 1) & (delta <= 24) & (k < count)

        make = attention(None, lambda api: api.create_block_mask(mask, B, None, 1, 128, device=t.device))
        return Attempt(make, t.qkv((B, H, 1, 64), (B, H, 128, 64)))

    return [at(n) for n in (40, 41, 90)]


@report(USER + "outputs for merging", "two parts of the keys merged by LSE")
def merged_parts(t: Trial) -> Attempt:
    def make(api: Any) -> Any:
        masks = [api.create_block_mask(lambda b, h, q, k, at=at: q >= k + at, None, None, S, S // 2, device=t.device) for at in (0, S // 2)]

        def call(q: Any, k: Any, v: Any) -> Any:
            parts = [
                api.flex_attention(q, k[:, :, at : at + S // 2], v[:, :, at : at + S // 2], block_mask=mask, return_lse=True)
                for at, mask in zip((0, S // 2), masks)
            ]
            lse = torch.logaddexp(parts[0][1], parts[1][1])
            return sum(o * torch.exp(ours - lse)[..., None].to(o.dtype) for o, ours in parts), lse

        return call

    return Attempt(make, qkv(t))


@behaviour(
    USER + "masks in masks",
    "a mod that calls a mask's `mask_mod`, compiled",
    why="U418: write `inner = mask.mask_mod` before the mod, `inner(...)` in the mod",
    calls=("compiled",),
)
def mask_of_a_mask(t: Trial, call: str) -> None:
    ids = torch.arange(S, device=t.device) // 30
    whole = t.ours.create_block_mask(lambda b, h, q, k: ids[q] == ids[k], None, None, S, S, device=t.device)
    blocks = (whole.kv_num_blocks, whole.kv_indices, whole.full_kv_num_blocks, whole.full_kv_indices, whole.BLOCK_SIZE)
    inner = whole.mask_mod
    mods = [lambda b, h, q, k: whole.mask_mod(b, h, q, k), lambda b, h, q, k: inner(b, h, q, k)]
    masks = [t.ours.BlockMask.from_kv_blocks(*blocks, mod, whole.seq_lengths) for mod in mods]
    refused, selected = (t.compile(attention(None, lambda api, mask=mask: mask)(t.ours)) for mask in masks)
    x = t.qkv((B, H, S, D))
    t.expect_refusal(lambda: refused(*x), "U418")
    golden, eager = (dense_attention(*(y.to(d) for y in x), block_mask=masks[1]) for d in (torch.float64, torch.float32))
    judge(golden, eager, selected(*x), "O")
