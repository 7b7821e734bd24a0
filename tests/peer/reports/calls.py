"""Public reports about calls: compiled modules, caches, lengths, heads and head dims, packed sequences, sinks, checkpoints."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

import cuir
from tests.peer.judging import expect, judge
from tests.peer.reports.scores import B, D, H, S, qkv
from tests.peer.reports.suite import Attempt, behaviour, dense_attention, report
from tests.peer.trial import Trial, attention


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


@report("pytorch/pytorch#136232", "a block mask larger than the sequence; a loss of the LSE")
def larger_mask_and_lse(t: Trial) -> Attempt:
    def make(api: Any) -> Any:
        mask = api.create_block_mask(causal, None, None, 512, 512, device=t.device)

        def call(q: Any, k: Any, v: Any) -> Any:
            o, lse = api.flex_attention(q, k, v, block_mask=mask._adjust(S, S), return_lse=True)
            return o * torch.exp(lse)[..., None].to(o.dtype)

        return call

    return Attempt(make, qkv(t))


@report("pytorch/pytorch#133716", "growing keys, an offset tensor, transposed inputs")
def growing_keys(t: Trial) -> list[Attempt]:
    start = torch.tensor(40, dtype=torch.int32, device=t.device)

    def at(i: int) -> Attempt:
        def make(api: Any) -> Any:
            def call(q: Any, k: Any, v: Any) -> Any:
                q, k, v = (x.transpose(1, 2) for x in (q, k, v))
                return api.flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: torch.where(i + start >= j - 3, s, float("-inf")))

            return call

        return Attempt(make, t.qkv((B, 1, 4, 64), (B, 40 + i, 4, 64), torch.float16))

    return [at(i) for i in (0, 1, 7)]


@report("pytorch/pytorch#143163", "a transformer block compiled as one graph")
def block_in_one_graph(t: Trial) -> Attempt:
    weight, out = t.wanting(torch.randn(3 * 64, 64, device=t.device) / 8), t.wanting(torch.randn(64, 64, device=t.device) / 8)

    def make(api: Any) -> Any:
        mask = api.create_block_mask(causal, None, None, S, S, device=t.device)

        class Block(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                y = torch.nn.functional.layer_norm(x, (64,)) @ weight.to(x.dtype).mT
                q, k, v = (z.view(B, S, 2, 32).transpose(1, 2) for z in y.chunk(3, -1))
                o = api.flex_attention(q, k, v, block_mask=mask).transpose(1, 2).reshape(B, S, 64)
                return x + o @ out.to(x.dtype).mT

        return Block()

    return Attempt(make, (t.randn(B, S, 64),), (weight, out))


@report("pytorch/pytorch#163314", "decoding with a row of a block mask")
def decoding_with_a_slice(t: Trial) -> list[Attempt]:
    def at(position: int) -> Attempt:
        def make(api: Any) -> Any:
            base = api.create_block_mask(causal, B, None, 256, 256, device=t.device)
            row = base[:, :, position // base.BLOCK_SIZE[0]]
            offset = torch.tensor(position, device=t.device)
            row.mask_mod = lambda b, h, q, k: causal(b, h, q + offset, k)
            row.seq_lengths = (1, 256)
            return lambda q, k, v: api.flex_attention(q, k, v, block_mask=row)

        return Attempt(make, t.qkv((B, 4, 1, 64), (B, 4, 256, 64)))

    return [at(p) for p in (3, 127, 128, 200)]


@behaviour("pytorch/pytorch#164702", "the mask_mod of a sliced block mask", calls=("eager",))
def mod_of_a_slice(t: Trial, call: str) -> None:
    mask = t.ours.create_block_mask(causal, None, None, 256, 256, device=t.device)[:, :, 0]
    try:
        mask.mask_mod(0, 0, 0, 0)
    except RuntimeError:
        return
    expect(False, "a sliced mask's mask_mod answered")


@report("meta-pytorch/gpt-fast#233", "decoding over a partly filled cache")
def cache_that_is_not_full(t: Trial) -> Attempt:
    position = torch.tensor(60, device=t.device)

    def make(api: Any) -> Any:
        mask = api.create_block_mask(lambda b, h, q, k: k <= position, None, None, 1, 256, device=t.device)
        return lambda q, k, v: api.flex_attention(q, k, v, block_mask=mask)

    return Attempt(make, t.qkv((1, 4, 1, 128), (1, 4, 256, 128), torch.bfloat16))


@behaviour("huggingface/transformers#46802", "an offset in a tensor of one element: right or refused")
def offset_of_one_element(t: Trial, call: str) -> None:
    offset = torch.tensor([20], device=t.device)
    with t.allow_either():
        mask = t.ours.create_block_mask(lambda b, h, q, k: q + offset >= k, None, None, 8, 28, device=t.device)
        x = t.qkv((1, 2, 8, D), (1, 2, 28, D))
        result = t.ours.flex_attention(*x, block_mask=mask)
        scalar = t.torch_api.create_block_mask(lambda b, h, q, k: q + 20 >= k, None, None, 8, 28, device=t.device)
        judge(dense_attention(*(y.double() for y in x), block_mask=scalar), dense_attention(*x, block_mask=scalar), result)


@report("pytorch/pytorch#143117", "three and six query heads a key head")
def groups_of_three(t: Trial) -> list[Attempt]:
    return [Attempt(attention(enable_gqa=True), t.qkv((1, h, m, 64), (1, 2, S, 64), torch.float16)) for h, m in ((6, 1), (12, 7), (6, S))]


@report("pytorch/pytorch#134043", "values narrower and wider than keys")
def values_of_other_dims(t: Trial) -> list[Attempt]:
    return [Attempt(attention(), t.qkv((B, H, S, d), dtype=torch.float16, v_dim=dv)) for d, dv in ((64, 32), (32, 64), (96, 128))]


@report("huggingface/transformers#46960", "heads of 512")
def heads_of_512(t: Trial) -> list[Attempt]:
    return [Attempt(attention(), t.qkv((1, 1, 16, 512), dtype=torch.float16))]


@behaviour("meta-pytorch/attention-gym#53", "activation checkpoints around a call", calls=("reentrant", "not reentrant"))
def checkpoints(t: Trial, call: str) -> None:
    mask = t.ours.create_block_mask(causal, None, None, S, S, device=t.device)
    results = []
    for recomputed in (False, True):
        torch.manual_seed(0)
        x = [torch.randn(1, 2, S, D, device=t.device).requires_grad_() for _ in range(3)]
        with torch.enable_grad():
            attend = lambda *y: t.ours.flex_attention(*y, block_mask=mask)  # noqa: E731
            o = checkpoint(attend, *x, use_reentrant=call == "reentrant") if recomputed else attend(*x)
            o.square().sum().backward()
        results.append([y.grad for y in x])
    for a, b, name in zip(*results, ("dQ", "dK", "dV")):
        expect(torch.equal(a, b), f"{name} differs under a checkpoint")


@report("pytorch/pytorch#181645", "the LSE: natural logarithms, gradients")
def natural_logarithms(t: Trial) -> list[Attempt]:
    def make(api: Any) -> Any:
        return lambda q, k, v: tuple(reversed(api.flex_attention(q, k, v, return_lse=True)))

    return [Attempt(attention(return_lse=True), qkv(t)), Attempt(make, qkv(t))]


@report("huggingface/transformers#41026", "sinks by renormalising with the LSE")
def sinks_by_renormalisation(t: Trial) -> Attempt:
    sinks = t.wanting(torch.zeros(H, device=t.device))

    def make(api: Any) -> Any:
        mask = api.create_block_mask(lambda b, h, q, k: (q >= k) & (q - k < 30), None, None, S, S, device=t.device)

        def call(q: Any, k: Any, v: Any) -> Any:
            o, lse = api.flex_attention(q, k, v, block_mask=mask, return_lse=True)
            total = torch.logaddexp(lse, sinks.view(1, H, 1).to(lse.dtype))
            return o * torch.exp(lse - total)[..., None].to(o.dtype)

        return call

    return Attempt(make, qkv(t), (sinks,))


@report("pytorch/torchtitan#2211", "a sink as sigmoid(lse - sink)")
def sinks_by_argument(t: Trial) -> Attempt:
    sinks = t.wanting(torch.randn(H, device=t.device))

    def make(api: Any) -> Any:
        def renormalise(q: Any, k: Any, v: Any) -> Any:
            o, lse = api.flex_attention(q, k, v, return_lse=True)
            return o * torch.sigmoid(lse - sinks.view(1, H, 1).to(lse.dtype))[..., None].to(o.dtype)

        if api is t.torch_api:
            return renormalise
        return lambda q, k, v: cuir.flex_attention(q, k, v, sink=sinks, backend="auto" if t.native else "interpret", verify="off")

    return Attempt(make, qkv(t), (sinks,))


@behaviour("Dao-AILab/flash-attention#443", "packed, fewer keys than queries: dQ without NaN", calls=("eager",))
def packed_with_few_keys(t: Trial, call: str) -> None:
    ends = [torch.tensor(x, dtype=torch.int32, device=t.device) for x in ([0, 76, 110, 256], [0, 1, 2, 3])]
    with torch.enable_grad():
        q = (3 * torch.randn(256, 1, 32, device=t.device)).half().requires_grad_()
        k, v = ((3 * torch.randn(3, 1, 32, device=t.device)).half().requires_grad_() for _ in range(2))
        o = cuir.varlen_attention(q, k, v, *ends, 256, 3, causal=True, backend="auto" if t.native else "interpret", verify="off")
        grads = torch.autograd.grad(o.float().sum(), (q, k, v))
    expect(all(g.isfinite().all() for g in grads), "a gradient is not finite")
    last = torch.tensor([75, 109, 255], device=t.device)
    observed = torch.zeros(256, dtype=torch.bool, device=t.device).index_fill(0, last, True)
    expect(torch.equal(o[~observed], torch.zeros_like(o[~observed])), "a query without keys has an O")
    expect(torch.allclose(o[last].float(), v.float(), atol=1e-2), "a query with one key is not its value")


@report("pytorch/pytorch#134739", "inputs that are slices of one projection")
def slices_of_a_projection(t: Trial) -> Attempt:
    def make(api: Any) -> Any:
        def call(x: Any) -> Any:
            q, k, v = (y.view(B, S, H, 64).transpose(1, 2) for y in x.chunk(3, -1))
            return api.flex_attention(q, k, v)

        return call

    return Attempt(make, (t.randn(B, S, 3 * H * 64, dtype=torch.bfloat16),))


@report("pytorch/pytorch#149767", "T5's scale of 1 and head biases")
def scale_of_one(t: Trial) -> Attempt:
    bias = t.randn(1, H, S, S)
    return Attempt(attention(lambda s, b, h, q, k: s + bias[0, h, q, k], scale=1.0), [t.wanting(0.3 * x.detach()) for x in qkv(t)], (bias,))


@behaviour(
    "meta-pytorch/attention-gym#77",
    "random numbers in a mod",
    calls=("eager",),
    why="X120: use `dropout_p=`, or draw into a tensor before the mod",
)
def random_numbers_in_a_mod(t: Trial, call: str) -> None:
    mod = lambda s, b, h, q, k: torch.where(torch.rand(()) > 0.1, s, float("-inf"))  # noqa: E731
    t.expect_refusal(lambda: t.ours.flex_attention(*qkv(t), score_mod=mod), "X120")


@behaviour("meta-pytorch/attention-gym#25", "torch.vmap over a call: right or refused", calls=("eager",))
def vmap_over_a_call(t: Trial, call: str) -> None:
    x = torch.randn(3, 2, 1, H, 16, D, device=t.device).unbind()
    with t.allow_either():
        result = torch.vmap(lambda q, k, v: t.ours.flex_attention(q, k, v))(*x)
        rows = [dense_attention(*(y[i].double() for y in x)) for i in range(2)]
        judge(torch.stack(rows), torch.stack(rows).float(), result)


@report("meta-pytorch/attention-gym#109", "block masks of growing lengths, compiled once")
def masks_that_grow(t: Trial) -> list[Attempt]:
    def at(n: int) -> Attempt:
        return Attempt(attention(None, lambda api: api.create_block_mask(causal, 1, 1, n, n, device=t.device)), t.qkv((1, 2, n, 64)))

    return [at(n) for n in (60, 61, 130)]
