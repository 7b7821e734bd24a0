"""Times of attention over several GPUs, by method, beside one GPU and PyTorch's context_parallel.

torchrun --nproc-per-node 2 -m benchmarks.distributed --lengths 65536 131072
torchrun --nproc-per-node 2 -m benchmarks.distributed --serving --lengths 1048576 --heads 32 --key-heads 8
torchrun --nproc-per-node 2 -m benchmarks.distributed --lengths 32 --dim 16 --heads 2 --repeats 1 --block 8    # without GPUs: gloo and the interpreter

Contenders take turns, forward and backward passes on random bf16 data; a time is the median of the slowest rank's. Each result
is compared with one GPU's: the error is the largest difference by the largest number, of O and gradients. Rank 0 prints a line of JSON for each contender.
With --passes N, a time is that of N passes one behind the other, divided by N: the host then works ahead, as in a model of several layers.
With --peer, PyTorch's context_parallel too: of scaled_dot_product_attention for causal masks, and of FlexAttention, compiled.
With --serving, a step of decoding of one sequence: its cache on one GPU, and spread by tokens or by heads, called and in CUDA graphs. Steps follow each
other as a model's layers do.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from cuir import attention_with_kv_cache, create_block_mask, flex_attention
from cuir.distributed import (
    Shards,
    attention_with_sharded_cache,
    balance_sequence,
    context_parallel_attention,
    plan_context_parallel,
    shard_evenly,
)
from cuir.distributed.plans import Method
from cuir.distributed.shards import Span, merge_spans

Pass = Callable[[], tuple[torch.Tensor, ...]]  # O, and dQ, dK, dV
METHODS: tuple[Method | None, ...] = ("heads", "gather", "ring", None)  # None: what the plan chooses
STEPS = 10  # of decoding, one behind the other


@dataclass(frozen=True)
class Problem:
    """One mask at one length, with the tensors of the whole sequence, the same on all ranks."""

    name: str
    mask_mod: Callable[..., torch.Tensor]
    tensors: tuple[torch.Tensor, ...]  # q, k, v and the gradient of O
    backend: str

    @property
    def length(self) -> int:
        return self.tensors[0].shape[2]


def make_problem(name: str, length: int, heads: int, dim: int, device: torch.device) -> Problem:
    torch.manual_seed(length)
    tensors = tuple(torch.randn(1, heads, length, dim, device=device).bfloat16() for _ in range(4))
    for x in tensors:
        dist.broadcast(x, 0)
    mask_mod = lambda b, h, q, k: q >= k  # noqa: E731
    if name == "documents":
        sizes = torch.empty(length).log_normal_(7.0, 1.5, generator=torch.Generator().manual_seed(0)).int() + 1
        documents = torch.arange(length).repeat_interleave(sizes.clamp(max=length))[:length].int().to(device)
        mask_mod = lambda b, h, q, k: (documents[q] == documents[k]) & (q >= k)  # noqa: E731
    return Problem(name, mask_mod, tensors, "auto" if device.type == "cuda" else "interpret")


def make_single(of: Problem) -> Pass:
    """Return forward and backward pass of one GPU over the whole sequence."""
    q, k, v = (x.clone().requires_grad_() for x in of.tensors[:3])
    mask = create_block_mask(of.mask_mod, None, None, of.length, of.length, device=q.device)

    def run() -> tuple[torch.Tensor, ...]:
        o = flex_attention(q, k, v, block_mask=mask, backend=of.backend, verify="off")
        return o.detach(), *torch.autograd.grad(o, (q, k, v), of.tensors[3])

    return run


def make_ours(of: Problem, mesh: DeviceMesh, method: Method | None, shards: Shards) -> Pass:
    """Return forward and backward pass of this rank's tokens; O is the rank's."""
    *tensors, do = (shards.split(x, mesh.get_local_rank()) for x in of.tensors)
    q, k, v = (x.requires_grad_() for x in tensors)
    mask = create_block_mask(of.mask_mod, None, None, of.length, of.length, device=q.device)
    plan = plan_context_parallel(q, k, v, mesh, block_mask=mask, shards=shards, method=method)

    def run() -> tuple[torch.Tensor, ...]:
        o = context_parallel_attention(q, k, v, mesh, block_mask=mask, shards=shards, plan=plan, backend=of.backend, verify="off")
        return o.detach(), *torch.autograd.grad(o, (q, k, v), do)

    return run


def make_pytorch(of: Problem, mesh: DeviceMesh) -> Pass:
    """Return PyTorch's context_parallel of causal scaled_dot_product_attention; its O is the whole one, and stands alone."""
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import context_parallel_unshard

    def run() -> tuple[torch.Tensor, ...]:
        q, k, v, do = (x.clone() for x in of.tensors)
        with context_parallel(mesh, buffers=[q, k, v, do], buffer_seq_dims=[2] * 4):
            for x in (q, k, v):
                x.requires_grad_()
            o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            torch.autograd.grad(o, (q, k, v), do)
            for x in (q, k, v):  # the context resizes them at its end
                x.requires_grad_(False)
        return tuple(context_parallel_unshard(mesh, [o.detach()], [2]))

    return run


def make_pytorch_flex(of: Problem, mesh: DeviceMesh) -> tuple[Pass, Shards]:
    """Return PyTorch's context_parallel of compiled FlexAttention, of this rank's tokens, and the shards of all ranks.

    Causal masks are balanced by pairs of ends, others by the blocks of their rows.
    """
    from torch.distributed.tensor.experimental._context_parallel import _attention, _load_balancer
    from torch.distributed.tensor.parallel import parallelize_module
    from torch.nn.attention import flex_attention as flex

    compiled, compiled_mask = torch.compile(flex.flex_attention, dynamic=False), torch.compile(flex.create_block_mask, dynamic=False)

    class Attention(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block_mask: flex.BlockMask) -> torch.Tensor:
            o: torch.Tensor = compiled(q, k, v, block_mask=block_mask)
            return o

    device = of.tensors[0].device
    mask = compiled_mask(of.mask_mod, 1, 1, of.length, of.length, device=device.type)
    balancer: _load_balancer._LoadBalancer = _load_balancer._HeadTailLoadBalancer(of.length, mesh.size(), device.type)
    if of.name != "causal":
        balancer = _load_balancer._PTRRLoadBalancer(mask, mesh.size())
    sharded = _attention._context_parallel_shard(mesh, [*of.tensors, mask], [2] * 5, balancer)
    q, k, v, do = (x.contiguous() for x in sharded if isinstance(x, torch.Tensor))
    for x in (q, k, v):
        x.requires_grad_()
    style = _attention._ContextParallel(seq_dim=2, attention_type=_attention._ContextParallel.AttentionType.FLEX)
    attention = parallelize_module(Attention(), mesh, style)
    numbers = balancer._generate_indices()
    assert numbers is not None

    def run() -> tuple[torch.Tensor, ...]:
        o = attention(q, k, v, block_mask=sharded[-1])
        return o.detach(), *torch.autograd.grad(o, (q, k, v), do)

    return run, Shards(tuple(merge_spans(Span(i, i + 1) for i in of_rank.tolist()) for of_rank in numbers[0].chunk(mesh.size())))


def make_serving(length: int, heads: tuple[int, int], dim: int, mesh: DeviceMesh, device: torch.device) -> dict[str, Pass]:
    """Return passes of steps of decoding, each of which gives O of this rank's heads."""
    torch.manual_seed(length)
    H, HK, ranks, rank = *heads, mesh.size(), mesh.get_local_rank()
    q, k, v = (torch.randn(1, n, h, dim, device=device).bfloat16() for n, h in ((1, H), (length, HK), (length, HK)))
    for x in (q, k, v):
        dist.broadcast(x, 0)
    part, starts = length // ranks, torch.full((1,), rank * (length // ranks), dtype=torch.int32, device=device)
    k_part, v_part = (x[:, rank * part :][:, :part].contiguous() for x in (k, v))
    q_heads, k_heads, v_heads = (x.chunk(ranks, 2)[rank].contiguous() for x in (q, k, v))
    backend = "auto" if device.type == "cuda" else "interpret"

    def decode_alone() -> torch.Tensor:
        o: torch.Tensor = attention_with_kv_cache(q, k, v, cache_seqlens=length, backend=backend, verify="off")
        return o

    def decode_by_tokens() -> torch.Tensor:
        o: torch.Tensor = attention_with_sharded_cache(
            q, k_part, v_part, mesh, cache_seqlens=part, starts=starts, backend=backend, verify="off"
        )
        return o

    def decode_by_heads() -> torch.Tensor:
        o: torch.Tensor = attention_with_sharded_cache(
            q_heads, k_heads, v_heads, None, cache_seqlens=length, first_head=rank * H // ranks, backend=backend, verify="off"
        )
        return o

    steps = {"one GPU": decode_alone, "by tokens": decode_by_tokens, "by heads": decode_by_heads}
    passes: dict[str, Pass] = {name: functools.partial(repeat, step) for name, step in steps.items()}
    return passes | {f"{name}, graph": capture(run) for name, run in passes.items() if device.type == "cuda"}


def repeat(step: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return tuple(step() for _ in range(STEPS))


def capture(run: Pass) -> Pass:
    """Return replays of a pass that a CUDA graph has."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        outputs = run()

    def replay() -> tuple[torch.Tensor, ...]:
        graph.replay()
        return outputs

    return replay


def measure_serving(args: argparse.Namespace, mesh: DeviceMesh, device: torch.device) -> None:
    """Print the times of a step of decoding, and the bytes of the caches of all ranks that a step reads in a second."""
    heads = args.heads, args.key_heads or args.heads
    for length in args.lengths:
        passes = make_serving(length, heads, args.dim, mesh, device)
        expected = passes["one GPU"]()[0]
        mine = expected.chunk(mesh.size(), 2)[mesh.get_local_rank()]
        errors = {}
        for name, run in passes.items():
            of_all = mine if name.startswith("by heads") else expected
            errors[name] = max(float((o.float() - of_all.float()).abs().max()) for o in run())
        times = measure(passes, device, args.repeats, args.passes[0])
        for contender, seconds in times.items() if dist.get_rank() == 0 else ():
            rate = 4 * length * heads[1] * args.dim * STEPS / seconds
            row = {
                "cache": length,
                "ranks": mesh.size(),
                "contender": contender,
                "ms": 1e3 * seconds / STEPS,
                "TB/s": round(rate / 1e12, 3),
            }
            print(
                json.dumps(
                    row
                    | {
                        "speedup": round(find_single(times, contender) / seconds, 3),
                        "error": errors[contender],
                    }
                ),
                flush=True,
            )


def measure(passes: dict[str, Pass], device: torch.device, repeats: int, count: int) -> dict[str, float]:
    """Return the median seconds of a pass of the slowest rank, contenders in turns, `count` passes one behind the other."""
    times: dict[str, list[float]] = {name: [] for name in passes}
    for _ in range(repeats):
        for name, run in passes.items():
            dist.barrier()
            wait(device)
            began = time.perf_counter()
            for _ in range(count):
                run()
            wait(device)
            seconds = torch.tensor((time.perf_counter() - began) / count, device=device)
            dist.all_reduce(seconds, dist.ReduceOp.MAX)
            times[name].append(float(seconds))
    return {name: statistics.median(t) for name, t in times.items()}


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def find_single(times: dict[str, float], contender: str) -> float:
    """Return the time of one GPU, in a CUDA graph if the contender's is."""
    return times["one GPU, graph" if contender.endswith(", graph") else "one GPU"]


def make_contenders(of: Problem, mesh: DeviceMesh, block: int, peers: bool, graphs: bool) -> tuple[dict[str, Pass], dict[str, Shards]]:
    """Return passes of all contenders, and the shards of those whose results are of a rank's tokens."""
    device = of.tensors[0].device
    even, balanced = shard_evenly(of.length, mesh.size()), balance_sequence(of.mask_mod, of.length, mesh.size(), device, block)
    shards = {str(m or "plan"): even if m == "heads" else balanced for m in METHODS}
    passes = {"one GPU": make_single(of)} | {str(m or "plan"): make_ours(of, mesh, m, shards[str(m or "plan")]) for m in METHODS}
    if graphs:
        for name in ("one GPU", "plan"):
            passes[f"{name}, graph"] = capture(passes[name])
        shards["plan, graph"] = balanced
    if peers and of.name == "causal":
        passes["PyTorch"] = make_pytorch(of, mesh)
    if peers:
        try:
            passes["FlexAttention"], shards["FlexAttention"] = make_pytorch_flex(of, mesh)
        except (RuntimeError, ImportError, AttributeError, AssertionError) as error:
            print(f"PyTorch's context_parallel of FlexAttention fails: {str(error).splitlines()[0]}", file=sys.stderr)
    return passes, shards


def measure_training(of: Problem, mesh: DeviceMesh, args: argparse.Namespace) -> None:
    """Print the times of forward and backward passes, and the errors of their results."""
    device = of.tensors[0].device
    passes, shards = make_contenders(of, mesh, args.block, *(device.type == "cuda" and x for x in (args.peer, args.graphs)))
    expected, errors = passes["one GPU"](), {}
    for contender, run in list(passes.items())[1:]:
        own = tuple(shards[contender].split(x, mesh.get_local_rank()) for x in expected) if contender in shards else expected
        try:
            errors[contender] = max(float((a.float() - b.float()).abs().max() / b.float().abs().max()) for a, b in zip(run(), own))
        except RuntimeError as error:
            del passes[contender]
            print(f"{contender} fails: {str(error).splitlines()[0]}", file=sys.stderr)
    for count in args.passes:
        times = measure(passes, device, args.repeats, count)
        for contender, seconds in times.items() if dist.get_rank() == 0 else ():
            row = {"mask": of.name, "length": of.length, "ranks": mesh.size(), "contender": contender, "ms": 1e3 * seconds}
            speedup = round(find_single(times, contender) / seconds, 3)
            print(json.dumps(row | {"passes": count, "speedup": speedup, "error": errors.get(contender, 0.0)}), flush=True)


def main() -> None:
    """Time all contenders for each mask and length."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lengths", type=int, nargs="+", default=[65536, 131072])
    parser.add_argument("--masks", nargs="+", default=["causal", "documents"], choices=["causal", "documents"])
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--key-heads", type=int, help="of a cache, by default as many as heads")
    parser.add_argument("--serving", action="store_true", help="time a step of decoding")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--graphs", action="store_true", help="with one GPU's passes and the plan's in CUDA graphs")
    parser.add_argument("--passes", type=int, nargs="+", default=[1], help="passes of a time, one behind the other")
    parser.add_argument("--block", type=int, default=128, help="tokens of a block of balanced shards")
    parser.add_argument("--peer", action="store_true", help="with PyTorch's context_parallel, on GPUs")
    args = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for name in args.masks if not args.serving else ():
        for length in args.lengths:
            measure_training(make_problem(name, length, args.heads, args.dim, device), mesh, args)
    if args.serving:
        measure_serving(args, mesh, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
