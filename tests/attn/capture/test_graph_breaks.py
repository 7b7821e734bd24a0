"""A compiled graph ends before a call that is left as it is, and another one begins behind it."""

from __future__ import annotations

import torch

from cuir.attn.capture.graph_breaks import break_graphs


@break_graphs
def double(x: torch.Tensor, *, offset: float = 0.0) -> torch.Tensor:
    """Twice a tensor, plus a number; reads the data, which a graph cannot."""
    return x * 2 + offset if float(x.sum()) else x


def test_graphs_end_at_the_call_and_results_are_the_same() -> None:
    graphs: list[list[str]] = []

    def keep(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        graphs.append([node.target.__name__ for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    def step(x: torch.Tensor) -> torch.Tensor:
        return double(torch.exp(x), offset=1.0) - 3

    x = torch.arange(4.0)
    compiled = torch.compile(step, backend=keep)
    assert torch.equal(compiled(x), step(x)) and torch.equal(compiled(x + 1), step(x + 1))
    assert graphs == [["exp"], ["sub"]]
    assert double.__name__ == "double" and "plus a number" in (double.__doc__ or "")
