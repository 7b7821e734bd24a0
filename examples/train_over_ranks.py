"""Trains a small language model of characters whose windows are spread over the ranks of a mesh, and the same model in one process.

torchrun --nproc-per-node 2 examples/train_over_ranks.py           # on GPUs; without them by gloo and the interpreter, tiny

The model, the text and its document masks are those of train_tiny_lm.py. A rank computes the embedding, the feed-forward parts and the loss of its
own tokens; attention alone exchanges tensors. Gradients of weights are summed over the ranks.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

sys.path.insert(0, str(Path(__file__).resolve().parent))  # where train_tiny_lm lies

from train_tiny_lm import Model, Sizes, Text, dense, ours, read_text, rules, train

from cuir import create_block_mask
from cuir.distributed import balance_sequence, context_parallel_attention, plan_context_parallel
from cuir.distributed.plans import Method


def train_over_ranks(text: Text, sizes: Sizes, mesh: DeviceMesh, method: Method | None = None, block: int = 128) -> list[float]:
    """Return the loss of each step, the same on all ranks."""
    device, rank = mesh.device_type, mesh.get_local_rank()
    torch.manual_seed(0)
    model = Model(sizes, len(text.alphabet)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), sizes.rate)
    documents = torch.zeros(sizes.batch, sizes.length, dtype=torch.int32, device=device)  # of the whole windows, on all ranks
    mask_mod, score_mod = rules(documents, sizes.heads)
    block_mask = create_block_mask(mask_mod, sizes.batch, None, sizes.length, sizes.length, device=device)
    shards = balance_sequence(lambda b, h, q, k: q >= k, sizes.length, mesh.size(), device, block)
    half = torch.bfloat16 if device == "cuda" else torch.float16
    options: dict[str, Any] = {"score_mod": score_mod, "block_mask": block_mask, "shards": shards}
    like = torch.empty(sizes.batch, sizes.heads, shards.lengths[rank], sizes.dim, dtype=half, device=device, requires_grad=True)
    # documents change with each step: one plan that sends all keys serves them all
    plan = plan_context_parallel(like, like, like, mesh, **options, method=method, skip_blocks=False)
    options |= {"plan": plan, "backend": "auto" if device == "cuda" else "interpret"}

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return context_parallel_attention(q.to(half), k.to(half), v.to(half), mesh, **options).to(q.dtype)

    losses = []
    for step in range(sizes.steps):
        characters, following, now = (x.to(device) for x in text.window(sizes, step))
        documents.copy_(now)
        characters, following = (shards.split(x, rank, dim=1) for x in (characters, following))
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            logits = model(characters, attention)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), following.flatten(), reduction="sum") / now.numel()
        optimizer.zero_grad()
        loss.backward()
        for weight in model.parameters():
            if weight.grad is not None:
                dist.all_reduce(weight.grad)
        optimizer.step()
        total = loss.detach()
        dist.all_reduce(total)
        losses.append(total.item())
    return losses


def main() -> None:
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    dist.init_process_group("nccl" if on_gpu else "gloo")
    mesh = init_device_mesh("cuda" if on_gpu else "cpu", (dist.get_world_size(),))
    text, sizes = read_text(), Sizes(6, 8, 64, 2, 8192, 100, 3e-4) if on_gpu else Sizes(1, 2, 16, 2, 64, 6, 1e-2)
    losses = train_over_ranks(text, sizes, mesh, block=128 if on_gpu else 8)
    if dist.get_rank() == 0:
        expected = train(ours if on_gpu else dense, text, sizes, mesh.device_type).losses
        for step, (mine, other) in enumerate(zip(losses, expected, strict=True)):
            print(f"step {step:4}: {mine:.4f} over {mesh.size()} ranks, {other:.4f} in one process")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
