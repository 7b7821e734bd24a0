"""A compiled function with a call over ranks has graphs before and behind it, and the same results."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import init_device_mesh

from cuir import create_block_mask
from cuir.distributed import context_parallel_attention, plan_context_parallel
from tests.distributed.ranks import run_ranks


def compile_a_call() -> list[object]:
    """Return whether O and dQ are those without compilation, and the operations of the graphs of two calls."""
    mesh = init_device_mesh("cpu", (1,))
    q = torch.randn(1, 1, 4, 16, requires_grad=True)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 4, 4, device="cpu")
    plan = plan_context_parallel(q, q, q, mesh, block_mask=mask)

    def attend(q: torch.Tensor) -> torch.Tensor:
        x = q * 2
        return context_parallel_attention(x, x, x, mesh, block_mask=mask, plan=plan, backend="interpret", verify="off") + 1

    graphs = []

    def keep(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        graphs.append([node.target.__name__ for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    results = []
    for call in (attend, torch.compile(attend, backend=keep)):
        for _ in range(2):
            o = call(q)
            results.append((o, *torch.autograd.grad(o.sum(), q)))
    return [all(torch.equal(a, b) for of in results[1:] for a, b in zip(of, results[0], strict=True)), graphs]


def test_graphs_end_at_a_call_over_ranks() -> None:
    assert run_ranks(1, compile_a_call) == [[True, [["mul"], ["add"]]]]
