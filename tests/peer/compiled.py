"""Calls inside of compiled modules and functions: several calls, mods made in `forward`, sizes that change, checkpoints, options of kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo.testing
from torch import nn
from torch.nn.attention.flex_attention import noop_mask

from tests.peer.cases import ATTENTION, BACKWARD, DECODING, scenario
from tests.peer.judging import close, expect
from tests.peer.mods import FAST, alibi, causal, causal_mask, rel_bias
from tests.peer.paging import read_pages
from tests.peer.scores import B, D, H, S, block_mask
from tests.peer.trial import Trial, attention

COMPILED, DYNAMIC = "compiled modules", "dynamic shapes"


# ---- several calls in one function
def chain_calls(t: Trial, m: int, mods: tuple[Any, ...], *, pages: bool) -> None:
    """The result of a call is the query of the next one. All keys and values differ."""
    n = t.length(1024)
    pairs = [t.qkv((1, 8, min(m, n), 64), (1, 8, n, 64))[1:] for _ in mods]
    q = t.randn(1, 8, min(m, n), 64)
    mask = block_mask(t, noop_mask, 1, 1, q.shape[2], n)

    def of(makes: list[Any]) -> Callable[[Any], Callable[..., Any]]:
        def make(api: Any) -> Callable[..., Any]:
            calls = [inner(api) for inner in makes]

            def call(q: Any, *kv: Any) -> Any:
                for i, each in enumerate(calls):
                    q = each(q, kv[2 * i], kv[2 * i + 1])
                return q

            return call

        return make

    plain = of([attention(mod) for mod in mods])
    over_pages = of([read_pages(mod, mask, *pair) for mod, pair in zip(mods, pairs)]) if pages else None
    t.close(plain, (q, *(x for pair in pairs for x in pair)), 0.2, ours=over_pages)


CHAINS = {
    "multiple_score_mod_calls": ((rel_bias, causal), False),
    "multiple_score_mod_calls2": ((rel_bias, causal, rel_bias), False),
    "multiple_score_mod_calls_paged_attention": ((rel_bias, causal), True),
    "multiple_score_mod_calls2_paged_attention": ((rel_bias, causal, rel_bias), True),
}
for file, queries in ((ATTENTION, 1024), (DECODING, 4)):
    for name, (mods, pages) in CHAINS.items():

        def chain(t: Trial, queries: int = queries, mods: Any = mods, pages: bool = pages) -> None:
            chain_calls(t, queries, mods, pages=pages)

        chain.__name__ = name if file == ATTENTION else name.replace("calls2_paged_attention", "calls_paged_attention2")
        scenario(file, COMPILED)(chain)


# ---- mods and masks made inside
@scenario(ATTENTION, COMPILED, gradients=BACKWARD)
def inputs_are_realized(t: Trial) -> None:
    n = t.length(1024)
    x = torch.randn(n, device=t.device)  # the original draws it inside, where both sides would draw another one

    def make(api: Any) -> Callable[..., Any]:
        flex_attention = api.flex_attention

        def call(q: Any, k: Any, v: Any) -> Any:
            bias = x * 2

            def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
                return score + bias[q]

            return flex_attention(q.sin(), k, v, score_mod=mod).cos()

        return call

    t.judge(make, t.qkv((1, 8, n, 64)))


@scenario(ATTENTION, COMPILED, gradients=BACKWARD)
def load_from_view_buffer(t: Trial) -> None:
    width, positions = 8, torch.randn(2 * H - 1, D, device=t.device, dtype=torch.float16)

    class Attention(nn.Module):
        def __init__(self, flex_attention: Any) -> None:
            super().__init__()
            self.flex_attention = flex_attention

        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return self.flex_attention(q, k, v, score_mod=self.mod(q.view(B * H, H * width, -1)))

        def mod(self, q: Any) -> Any:
            at = torch.arange(H, device=q.device)
            rows = positions.to(q.dtype)[at[:, None] - at[None, :] + H - 1]
            bias = torch.einsum("bhwc,hkc->bhwk", q.reshape(B * H, H, width, D), rows).detach()
            table = bias.reshape(B * H, H * width, H, 1).view(B, H, H * width, H, 1).squeeze(-1)

            def score_mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
                return score + table[b, h, q, kv // width]

            return score_mod

    t.judge(
        lambda api: Attention(api.flex_attention).eval(),
        t.qkv((B, H, H * width, D), dtype=torch.float16),
        fullgraph=True,
        mode="max-autotune",
    )


@scenario(ATTENTION, COMPILED)
def modular_indexing(t: Trial) -> None:
    b, h, n, d = t.batch(100), 12, 128, 64
    bias = torch.randn(b, n, n, h, device=t.device, dtype=torch.bfloat16)

    class Attention(nn.Module):
        def __init__(self, flex_attention: Any) -> None:
            super().__init__()
            self.flex_attention = flex_attention

        def forward(self, q: Any, k: Any, v: Any) -> Any:
            table = (2 * bias).view(b, h, n, n).contiguous()

            def score_mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
                return score + table[b, h, q, kv]

            return self.flex_attention(q, k, v, score_mod=score_mod)

    t.judge(lambda api: Attention(api.flex_attention).eval(), t.qkv((b, h, n, d), dtype=torch.bfloat16), fullgraph=False)


@scenario(ATTENTION, COMPILED)
def custom_score_mod_layout_freeze(t: Trial) -> None:
    """A bias that a small network gives for relative positions on a grid, with gates, made in each forward pass."""
    n, first, heads = 18, 2, 4
    side = 4
    steps = torch.arange(1.0 - side, side)
    relative = torch.stack(torch.meshgrid(steps, steps, indexing="ij"), -1).reshape(-1, 2) / (side - 1)
    relative = (relative.sign() * relative.abs().log1p()).to(t.device)
    cells = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")).flatten(1)
    difference = cells[:, :, None] - cells[:, None, :] + side - 1
    index = torch.zeros(n, n, dtype=torch.long)
    index[first:, first:] = difference[0] * (2 * side - 1) + difference[1]
    index = index.to(t.device)
    start = torch.tensor(first, device=t.device)
    network = nn.Sequential(nn.Linear(2, 32), nn.GELU(), nn.Linear(32, heads, bias=False)).to(t.device).requires_grad_(False)
    gamma = torch.zeros(heads, device=t.device)
    gates = torch.randn(2, heads, 2, n, device=t.device)

    def make(api: Any) -> Callable[..., Any]:
        flex_attention = api.flex_attention

        def call(q: Any, k: Any, v: Any) -> Any:
            table = network(relative)
            of_query, of_key = gates.unbind(2)
            weight = torch.sigmoid(gamma)

            def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
                inside = (q >= start) & (kv >= start)
                gate = weight[h] * (of_query[b, h, q] + of_key[b, h, kv])
                return score + inside.to(score.dtype) * gate * table[index[q, kv], h]

            return flex_attention(q, k, v, score_mod=mod)

        return call

    t.close(make, t.qkv((2, heads, n, 32), dtype=torch.bfloat16), 2e-2, dynamic=False)


# ---- sizes that are symbols
@scenario(ATTENTION, DYNAMIC)
def mask_mod_handles_symint_addition(t: Trial) -> None:
    def make(api: Any) -> Callable[..., Any]:
        flex_attention, create_block_mask = api.flex_attention, api.create_block_mask

        def call(q: Any, k: Any, v: Any) -> Any:
            m, n = q.size(-2), k.size(-2)

            def mask_mod(b: Any, h: Any, q: Any, kv: Any) -> Any:
                return q < (m // 32 + n // 32) * 32

            mask = create_block_mask(mask_mod, B=q.size(0), H=q.size(1), Q_LEN=m, KV_LEN=n, device=t.device)
            return flex_attention(q, k, v, block_mask=mask)

        return call

    call = t.compile(make(t.ours), fullgraph=True, dynamic=True)
    for m, n in ((192, 128), (160, 96)):
        t.judge_found(call, make(t.torch_api), t.qkv((1, 2, m, 32), (1, 2, n, 32), torch.float16))


@scenario(ATTENTION, DYNAMIC, gradients=BACKWARD, dtype=FAST)
def dynamic_captured_buffer(t: Trial, dtype: torch.dtype) -> None:
    call = t.compile(t.ours.flex_attention, fullgraph=True, dynamic=True)
    for heads in (4, 8, 4, 16, 4):
        factor = t.randn(heads, dtype=dtype)

        def mod(score: Any, b: Any, h: Any, q: Any, kv: Any, factor: torch.Tensor = factor) -> Any:
            return score * factor[h]

        tensors = t.qkv((B, heads, S, D), dtype=dtype)
        mask = block_mask(t, noop_mask, B, 1, S, S)
        ours = functools.partial(call, score_mod=mod, block_mask=mask(t.ours))
        t.judge_found(ours, attention(mod, mask)(t.torch_api), tensors, learned=(factor,))


@scenario(ATTENTION, DYNAMIC)
def dynamic_shapes_bug_dynamic_batch(t: Trial) -> None:
    def padded(b: Any, h: Any, q: Any, kv: Any, lengths: Any) -> Any:
        return (q < lengths[b]) & (kv < lengths[b])

    counter = torch._dynamo.testing.CompileCounterWithBackend("inductor" if t.native else "eager")
    conv, project = nn.Conv1d(256, 256, 5).to(t.device), nn.Linear(256, 128).to(t.device)

    def run(api: Any, x: Any, lengths: Any, flex_attention: Any, create: Any) -> Any:
        x = project(conv(x.transpose(-1, -2)).transpose(-1, -2)).transpose(0, 1)
        x = x.view(-1, x.size(1), 4, 32).permute(1, 2, 0, 3)
        mod = functools.partial(padded, lengths=lengths)
        mask = create(mod, B=lengths.size(0), H=None, Q_LEN=x.size(-2), KV_LEN=x.size(-2), device=t.device)
        return flex_attention(query=x, key=x, value=x, block_mask=mask)

    for _ in range(5):
        x, lengths = torch.randn(16, 12, 256, device=t.device), torch.randint(0, 12, (16,), device=t.device)
        compiled = torch.compile(t.ours.flex_attention, dynamic=True, fullgraph=True, backend=counter)
        ours = run(t.ours, x, lengths, compiled, t.compile(t.ours.create_block_mask, dynamic=True, fullgraph=False))
        close(ours, run(t.torch_api, x, lengths, t.torch_api.flex_attention, t.torch_api.create_block_mask), 1e-2)
    expect(counter.frame_count == 1, f"{counter.frame_count} graphs, PyTorch has 1")


def project(t: Trial, weight: torch.Tensor, flex_attention: Any, x: Any, **options: Any) -> Any:
    b, n, width = x.size()
    q, k, v = (x @ weight).view(b, n, 3, 8, width // 8).permute(2, 0, 3, 1, 4)
    return flex_attention(q, k, v, **options).transpose(1, 2).contiguous().view(b, n, width)


@scenario(ATTENTION, DYNAMIC, gradients=BACKWARD)
def free_symbol_dynamic(t: Trial) -> None:
    weight = t.randn(512, 3 * 512) / 22
    call = t.compile(lambda x, mask: project(t, weight, t.ours.flex_attention, x, block_mask=mask), dynamic=True)
    for b in (4, 16, 32) if t.native else (2, 4, 8):
        dropped = torch.randint(0, 2, (b, 256), device=t.device).bool()

        def mask_mod(b: Any, h: Any, q: Any, kv: Any, dropped: torch.Tensor = dropped) -> Any:
            return ~dropped[b, q]

        masks = [t.compile(t.ours.create_block_mask, dynamic=True), t.torch_api.create_block_mask]
        ours, torch_mask = (
            create(B=b, BLOCK_SIZE=128, mask_mod=mask_mod, H=None, Q_LEN=256, KV_LEN=256, device=t.device) for create in masks
        )
        x = torch.randn(b, 256, 512, device=t.device)
        close(call(x, ours), project(t, weight, t.torch_api.flex_attention, x, block_mask=torch_mask), 2e-2)


@scenario(ATTENTION, DYNAMIC, gradients=BACKWARD)
def symbol_closure_in_score_mod(t: Trial) -> None:
    weight = t.randn(512, 3 * 512) / 22

    def make(api: Any) -> Callable[..., Any]:
        flex_attention = api.flex_attention

        def call(x: Any) -> Any:
            b = x.size(0)
            return project(t, weight, flex_attention, x, score_mod=lambda score, b_, h, q, kv: score + b)

        return call

    call = t.compile(make(t.ours), dynamic=True)
    for b in (4, 16, 32) if t.native else (2, 4, 8):
        x = torch.randn(b, 256, 512, device=t.device)
        close(call(x), make(t.torch_api)(x), 2e-2)


# ---- options, modes, checkpoints
@scenario(ATTENTION, COMPILED)
def autograd_function_in_score_mod(t: Trial) -> None:
    t.judge(attention(), t.qkv((1, 8, t.length(1024), 64)), fullgraph=True)  # the original makes such a score_mod and does not hand it in


@scenario(ATTENTION, COMPILED)
def dynamic_shapes_with_custom_kernel_options(t: Trial) -> None:
    shape = (8, 8, t.length(1024), 64)
    tensors = [torch.ones(shape, dtype=torch.bfloat16, device=t.device) for _ in range(3)]
    t.close(attention(kernel_options={"BLOCK_M": 64, "BLOCK_N": 64}), tensors, 3e-3, fullgraph=True, dynamic=True)


@scenario(ATTENTION, COMPILED)
def dynamic_shapes_with_max_autotune(t: Trial) -> None:
    n = t.length(1024)
    tensors = [torch.ones(8, 8, n, 64, dtype=torch.bfloat16, device=t.device) for _ in range(3)]
    make = attention(mask=block_mask(t, causal_mask, None, None, n, n))
    t.close(make, tensors, 3e-3, fullgraph=True, dynamic=True, mode="max-autotune")


@scenario(ATTENTION, COMPILED)
def tma_with_customer_kernel_options(t: Trial) -> None:
    tensors = [torch.ones(1, 1, 256, 128, dtype=torch.bfloat16, device=t.device) for _ in range(3)]
    for tma in (False, True):
        t.judge(attention(kernel_options={"BLOCK_M": 128, "BLOCK_N": 128, "USE_TMA": tma}), tensors, fullgraph=True, dynamic=True)


@scenario(ATTENTION, COMPILED, gradients=BACKWARD)
def large_batch_heads_grid_dimension(t: Trial) -> None:
    call = t.compile(t.ours.flex_attention, fullgraph=True, dynamic=True)
    q, k, v = t.qkv((t.batch(22720), 3, 64, 32), dtype=torch.float16)
    o = call(q, k, v)
    some = slice(-8, None)  # the last blocks of a grid that is longer than 2 ** 16
    close(o[some], t.torch_api.flex_attention(q[some], k[some], v[some]), 2e-3)


@scenario(ATTENTION, COMPILED)
def eager_tracing_correctness(t: Trial) -> None:
    tensors = t.qkv((1, 4, 256, 64), (1, 2, 256, 64), torch.float16, 128)

    def make(api: Any) -> Callable[..., Any]:
        flex_attention = api.flex_attention
        return lambda q, k, v: flex_attention(q, k, v, enable_gqa=True).view(1, 4, 256, 2, 64)

    t.judge(make, tensors, fullgraph=True)


SAVED = {
    "mm": [torch.ops.aten.mm.default],
    "flex_attention": ["flex_attention"],
    "mm-flex_attention": [torch.ops.aten.mm.default, "flex_attention"],
}


@scenario(ATTENTION, COMPILED, gradients=BACKWARD, ops_to_save=SAVED)
def selective_ac(t: Trial, ops_to_save: list[Any]) -> None:
    from torch.nn.attention.flex_attention import flex_attention_hop
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    saved = [flex_attention_hop if op == "flex_attention" else op for op in ops_to_save]
    context = functools.partial(create_selective_checkpoint_contexts, saved)
    weight = t.randn(512, 3 * 512, dtype=torch.bfloat16) / 22
    x = torch.ones(t.batch(8), t.length(1024), 512, device=t.device, dtype=torch.bfloat16)

    def make(api: Any) -> Callable[..., Any]:
        flex_attention = api.flex_attention

        def inner(x: Any) -> Any:
            return project(t, weight, flex_attention, x)

        return lambda x: checkpoint(inner, x, use_reentrant=False, context_fn=context)

    close(t.compile(make(t.ours))(x), project(t, weight, t.torch_api.flex_attention, x), 1e-2)


@scenario(ATTENTION, COMPILED, gradients=BACKWARD)
def selective_ac_with_max_autotune_short_query(t: Trial) -> None:
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        dear = op in (torch.ops.aten.mm, torch.ops.aten.bmm)
        return CheckpointPolicy.MUST_SAVE if dear else CheckpointPolicy.PREFER_RECOMPUTE

    context = functools.partial(create_selective_checkpoint_contexts, policy)
    ours = t.compile(
        functools.partial(checkpoint, t.ours.flex_attention, use_reentrant=False, context_fn=context), mode="max-autotune-no-cudagraphs"
    )
    mask = block_mask(t, causal_mask, 2, 4, 64, 64)
    t.judge_found(functools.partial(ours, block_mask=mask(t.ours)), attention(mask=mask)(t.torch_api), t.qkv((2, 4, 64, 16)))


def with_dynamic_max_autotune(t: Trial) -> None:
    mod, n = alibi(8), 512
    mask = t.compile(t.ours.create_block_mask)(causal_mask, 1, 1, n, n, device=t.device)
    call = t.compile(t.ours.flex_attention, dynamic=True, mode="max-autotune-no-cudagraphs")
    options = {"score_mod": mod, "enable_gqa": True, "kernel_options": None}
    reference = functools.partial(t.torch_api.flex_attention, block_mask=block_mask(t, causal_mask, 1, 1, n, n)(t.torch_api), **options)
    t.judge_found(functools.partial(call, block_mask=mask, **options), reference, t.qkv((2, 16, n, 64)))


@scenario(ATTENTION, COMPILED, gradients=BACKWARD)
def flex_attention_with_dynamic_max_autotune(t: Trial) -> None:
    with_dynamic_max_autotune(t)


@scenario(ATTENTION, COMPILED, gradients=BACKWARD)
def flex_attention_with_dynamic_max_autotune_graph_partition(t: Trial) -> None:
    if not t.native:
        with_dynamic_max_autotune(t)
        return
    with torch._inductor.config.patch("graph_partition", True):
        with_dynamic_max_autotune(t)
