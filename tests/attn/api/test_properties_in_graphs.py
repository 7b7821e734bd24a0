"""Properties that mods read, in a graph of torch.compile: one that is replaced in its class is noticed, and nothing else makes another graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cuir import flex_attention

Q, K, V = (torch.randn(1, 1, 16, 16).half() for _ in range(3))


class Base:
    @property
    def size(self) -> float:
        return 3.0


class Custom:
    @property
    def size(self) -> float:
        return 3.0


class Inherited(Base):
    pass


class Nearer(Base):
    @property
    def size(self) -> float:
        return Base.size.__get__(self) + 1.0


def make_property(size: float) -> property:
    return property(lambda self: size)


@pytest.mark.parametrize(("result", "changed"), [(Custom, Custom), (Inherited, Base), (Nearer, Nearer), (Nearer, Base)])
def test_a_property_that_is_replaced_is_noticed(result: type, changed: type, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    initial, graphs = result(), 0

    def backend(graph: Any, inputs: Any) -> Callable[..., Any]:
        nonlocal graphs
        graphs += 1
        return graph.forward  # type: ignore[no-any-return]

    def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * initial.size

    def call() -> torch.Tensor:
        return flex_attention(Q, K, V, score, backend="interpret", verify="off")  # type: ignore[no-any-return]

    compiled = torch.compile(call, backend=backend, fullgraph=True)
    before = compiled()
    assert torch.equal(compiled(), before) and graphs == 1
    monkeypatch.setattr(changed, "size", make_property(0.25))
    after = compiled()
    assert torch.equal(after, call()) and not torch.equal(after, before) and graphs == 2
