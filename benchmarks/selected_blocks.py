"""Attention over selected blocks, forward and backward, on a Hopper GPU, beside compiled FlexAttention and libraries.

    python -m benchmarks.selected_blocks                          # 64 and 16 query heads a batch entry, 4 and 1 key heads, 8k to 64k keys
    python -m benchmarks.selected_blocks --mask full              # the rows beside cuDNN's block-sparse attention alone
    python -m benchmarks.selected_blocks --length 8192 --peer mine.py:attend --out rows.jsonl

Each query selects the first block of keys, the last two and others at random, 16 of 64 keys in all, causal, as native
sparse attention does; groups of 128 queries select alike in further rows, where FlexAttention has a BlockMask of the same
blocks. In rows without a mask each 64 queries select 16 different blocks, as cuDNN's block-sparse attention takes them; its
gradients are for as many key heads as query heads and head dim 128. `--peer FILE:FUNCTION` names a function
(q, k, v, blocks, block_size, queries_per_group) -> O. Each row is the median of rounds in which all contenders take turns
of 100 ms: milliseconds, and GB/s of keys and values that are read. O is compared with float64 for some queries once a row.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import statistics
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch.autograd.function import FunctionCtx

from benchmarks.dropout import milliseconds
from benchmarks.old_and_new import as_they_come

SIZE, SELECTED = 64, 16
HEADS = ((64, 4), (16, 1))  # of queries, of keys
SPANS = {"causal": (1, 128), "full": (64,)}  # queries of a group, by mask
EQUAL_HEADS = (16, 16)  # of which cuDNN has gradients
CUDNN = "cudnn.block_sparse_attention"
OFF = 2e-2  # error of O that is allowed
Call = Callable[..., Any]


def select(B: int, HK: int, N: int, span: int, device: str) -> torch.Tensor:
    """Return the blocks of each group of queries, [B, HK, groups, SELECTED]."""
    last = (torch.arange(0, N, span, device=device) + span - 1).clamp(max=N - 1) // SIZE
    drawn = (torch.rand(B, HK, len(last), SELECTED - 3, device=device) * (last[:, None] + 1)).long()
    fixed = torch.stack([torch.zeros_like(last), (last - 1).clamp(min=0), last], -1).expand(B, HK, -1, -1)
    return torch.cat([fixed, drawn], -1).int()


def select_any(B: int, HK: int, N: int, span: int, device: str) -> torch.Tensor:
    """Return different blocks of each group of queries, [B, HK, groups, SELECTED]."""
    return torch.rand(B, HK, -(-N // span), -(-N // SIZE), device=device).topk(SELECTED).indices.int()


def compute_error(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, blocks: torch.Tensor, span: int, o: torch.Tensor, causal: bool = True
) -> float:
    """Return the largest difference from float64 of a head's queries, every 97th."""
    i = torch.arange(0, q.shape[2], 97, device=q.device)
    j = torch.arange(k.shape[2], device=q.device)
    kept = torch.stack([(j[:, None] // SIZE == blocks[0, 0, x // span]).any(-1) & ((j <= x) | (not causal)) for x in i.tolist()])
    scores = (q[0, 0, i].double() @ k[0, 0].double().mT * q.shape[3] ** -0.5).masked_fill(~kept, -torch.inf)
    return float((scores.softmax(-1) @ v[0, 0].double() - o[0, 0, i].double()).abs().max())


def make_flex(q: torch.Tensor, blocks: torch.Tensor, span: int, N: int) -> Call:
    """Return compiled FlexAttention with a BlockMask of the same blocks."""
    from torch.nn.attention.flex_attention import BlockMask, flex_attention

    by_head = blocks.repeat_interleave(q.shape[1] // blocks.shape[1], 1)
    listed = torch.stack([torch.bincount(x.long(), minlength=N // SIZE) for x in by_head.flatten(0, 2)]).view(*by_head.shape[:3], -1) > 0
    order = listed.int().sort(dim=-1, descending=True, stable=True).indices.int()
    mask = BlockMask.from_kv_blocks(
        listed.sum(-1).int(), order, BLOCK_SIZE=(span, SIZE), mask_mod=lambda b, h, i, j: j <= i, seq_lengths=(N, N)
    )
    return partial(torch.compile(flex_attention), block_mask=mask, enable_gqa=True)


class _Cudnn(torch.autograd.Function):
    """cuDNN's block-sparse attention, with its own function for gradients."""

    @staticmethod
    def forward(ctx: FunctionCtx, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
        from cudnn.block_sparse_attention import block_sparse_attention_forward

        result = block_sparse_attention_forward(q, k, v, blocks, sparse_block_size=SIZE, kv_splits="auto")
        ctx.save_for_backward(q, k, v, result["o_tensor"], result["lse_tensor"], blocks)
        o: torch.Tensor = result["o_tensor"]
        return o

    @staticmethod
    def backward(ctx: FunctionCtx, do: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        from cudnn.block_sparse_attention import block_sparse_attention_backward

        result = block_sparse_attention_backward(do, *ctx.saved_tensors, sparse_block_size=SIZE)  # type: ignore[attr-defined]
        return result["dq_tensor"], result["dk_tensor"], result["dv_tensor"], None


def make_cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, blocks: torch.Tensor, span: int) -> Call:
    """Return cuDNN's block-sparse attention of the same blocks, without gradients where it has none."""
    if find_spec("cudnn") is None or find_spec(CUDNN) is None:
        raise RuntimeError(f"{CUDNN} is not installed: pip install nvidia-cudnn-frontend nvidia-cutlass-dsl")
    assert span == SIZE, f"cuDNN's groups have {SIZE} queries"
    by_head = blocks.repeat_interleave(q.shape[1] // blocks.shape[1], 1).contiguous()
    if q.shape[1] == k.shape[1] and q.shape[3] == 128:
        return lambda: _Cudnn.apply(q, k, v, by_head)
    return torch.no_grad()(lambda: _Cudnn.apply(q, k, v, by_head))


def load_peer(place: str) -> Call:
    """Return the function of FILE:FUNCTION."""
    file, _, name = place.rpartition(":")
    spec = importlib.util.spec_from_file_location("peer", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    peer: Call = getattr(module, name)
    return peer


def measure(heads: tuple[int, int], N: int, span: int, D: int, mask: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return a row: times by contender, or why it has none."""
    from cuir import selected_attention

    H, HK = heads
    q, k, v = (torch.randn(1, h, N, D, dtype=torch.bfloat16, device="cuda", requires_grad=True) for h in (H, HK, HK))
    causal = mask == "causal"
    do, blocks = torch.randn_like(q), (select if causal else select_any)(1, HK, N, span, "cuda")
    calls: dict[str, Call] = {"ours": partial(selected_attention, q, k, v, blocks, block_size=SIZE, queries_per_group=span, causal=causal)}
    if causal and span % 128 == 0:
        calls["flex"] = partial(make_flex(q, blocks, span, N), q, k, v)
    failed: dict[str, str] = {}
    if not causal:
        try:
            calls["cudnn"] = make_cudnn(q, k, v, blocks, span)
            calls["cudnn"]()
        except Exception as reason:  # of a library that does not take this problem: the row says so
            calls.pop("cudnn", None)
            failed["cudnn failed"] = str(reason)
    if options.peer:
        calls["peer"] = partial(load_peer(options.peer), q, k, v, blocks, SIZE, span)
    steps: dict[str, Call] = {}
    for name, call in calls.items():
        o = call()
        error = compute_error(q.detach(), k.detach(), v.detach(), blocks, span, o, causal)
        assert error < OFF, f"{name}: O differs from float64 by {error:.1e}"
        steps[name] = torch.no_grad()(call)
        if o.requires_grad:
            steps[f"{name} backward"] = partial(torch.autograd.grad, o, (q, k, v), do, retain_graph=True)
    rounds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(options.rounds):
        for name, step in steps.items():
            rounds[name].append(milliseconds(step))
    times = {name: statistics.median(x) for name, x in rounds.items()}
    read = 2 * 2 * D * SIZE * SELECTED * HK * (N // span)
    rates = {"GB/s": read / times["ours"] / 1e6, "TFLOP/s": 4e-9 * D * H * N * SIZE * SELECTED / times["ours"]}
    return {
        "H": H,
        "HK": HK,
        "N": N,
        "span": span,
        "D": D,
        "mask": mask,
        **times,
        **failed,
        **(rates if not causal else {"GB/s": rates["GB/s"]}),
    }


def main() -> None:
    """Print a row for each problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, nargs="*", default=[8192, 16384, 65536])
    parser.add_argument("--dims", type=int, nargs="*", default=[64, 128])
    parser.add_argument("--mask", nargs="*", choices=list(SPANS), default=list(SPANS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", default="")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    for mask in options.mask:
        heads = HEADS if mask == "causal" else (*HEADS, EQUAL_HEADS)
        for problem in itertools.product(heads, options.length, SPANS[mask], options.dims):
            as_they_come([measure(*problem, mask, options)], options.out)


if __name__ == "__main__":
    main()
