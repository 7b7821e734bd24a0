"""A backward pass that is made again: the launches of the one before, for other tensors that lie as its did. Kernels are the interpreter's, called as compiled ones are."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from cuir.arguments.guards import make_call_guard
from cuir.attn.kernels import autograd as module
from cuir.attn.kernels.attention_kernel import attention
from cuir.checking.checked import Checked
from cuir.interp import run
from cuir.spec import Specification
from cuir.spec.dropout_hash import Dropout
from cuir.spec.gradients import forward

TABLE = torch.linspace(-1, 1, 200)


class Kernel:
    """What a CompiledKernel is to its caller. calls: how often it was called and called again."""

    def __init__(self, checked: Checked, calls: list[str]):
        self.checked, self.calls = checked, calls

    def launch(self, arguments: Mapping[str, Any]) -> None:
        self.calls.append("called")
        run(self.checked, arguments, budget=math.inf)

    def make_replay(self, varying: Mapping[str, torch.Tensor], arguments: Mapping[str, Any]) -> Callable[..., Any] | None:
        repeat = make_call_guard((), tuple(varying.values()))
        assert repeat is not None, "tensors that want gradients are not recognised"
        written = {t.name: arguments[t.name] for t in self.checked.tensors if t.written and t.name not in varying}
        constant = {n: x for n, x in arguments.items() if n not in varying and n not in written}

        def launch(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...] | None:
            if not repeat.covers((), tensors):
                return None
            self.calls.append("again")
            result = {n: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).fill_(math.nan) for n, x in written.items()}
            run(self.checked, {**constant, **dict(zip(varying, tensors, strict=True)), **result}, budget=math.inf)
            return tuple(result.values())

        return launch


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []

    def runs(self: module.Gradients, ready: Any, device: torch.device) -> Mapping[str, Kernel]:
        if not self.kernels:
            self.kernels = {name: Kernel(step.checked, names) for name, step in self.plan.steps.items()}  # type: ignore[assignment]
        return self.kernels  # type: ignore[return-value]

    monkeypatch.setattr(module.Gradients, "_runs", runs)
    return names


def tensors(seed: int, M: int = 70, D: int = 64) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(1, 2, M, D, generator=g).half().requires_grad_() for _ in range(3)]


def project(seed: int) -> list[torch.Tensor]:
    """Views of one tensor, as a projection to query, key and value gives them."""
    x = torch.randn(1, 70, 3, 2, 64, generator=torch.Generator().manual_seed(seed)).half().requires_grad_()
    return list(x.permute(2, 0, 3, 1, 4))


def ready_of(result: Any, inputs: list[torch.Tensor], scale: float | None = None) -> Any:
    """A call that was made ready, as if its kernel were compiled."""
    return dataclasses.replace(result.ready(*inputs, scale, "interpret"), kernel=object())


def exact(inputs: list[torch.Tensor], do: torch.Tensor, bias: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    q, k, v = (x.detach().double().requires_grad_() for x in inputs)
    s = q @ k.mT * 64**-0.5
    at = torch.arange(s.shape[-1])
    if bias is not None:
        s = s + bias.double()[at[:, None] - at + 100]
    o = s.masked_fill(at > at[:, None], -math.inf).softmax(-1) @ v
    return torch.autograd.grad(o, (q, k, v), do.double())


@pytest.mark.parametrize("made_by", [tensors, project])
@pytest.mark.parametrize("few", [False, True], ids=["dQ added up", "dQ apart"])
@pytest.mark.parametrize("bias", [None, TABLE], ids=["causal", "captured"])
def test_the_second_pass_repeats_the_launches_of_the_first(
    calls: list[str], bias: torch.Tensor | None, few: bool, made_by: Callable[[int], list[torch.Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "has_few_keys", lambda *_: few)

    def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + TABLE[q - k + 100]

    spec = Specification("causal", lambda b, h, q, k: q >= k, None if bias is None else score)
    created = attention(spec, dtype=torch.float16, head_dim=64, verify="off")
    ready, first = None, ()
    for turn in range(3):
        inputs = made_by(turn)
        do = torch.randn(1, 2, 70, 64, generator=torch.Generator().manual_seed(9)).half()
        if ready is None:
            ready = ready_of(created, inputs)
        with torch.no_grad():
            o, lse = (x.detach() for x in _outputs(created, inputs))
        calls.clear()
        result = module.backward(ready, module.BackwardInputs(*inputs, o, lse, do))
        assert calls == ["called" if turn == 0 else "again"] * (2 if few else 3)  # the kernel of dQ makes what `prepare` would have
        (gradients,) = [g for requests, g in created._gradients.items() if requests.queries]
        assert gradients.plan.adds == (not few)
        for a, b in zip(result, exact(inputs, do, bias), strict=True):
            assert a is not None and (a.double() - b).norm() < 3e-3 * b.norm()
        first = tuple(a.stride() for a in result) if turn == 0 else first
        assert tuple(a.stride() for a in result) == first


def _outputs(result: Any, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    o, lse = result(*(x.detach() for x in inputs), backend="interpret", return_lse=True)
    return o, lse


def test_other_passes_are_made_anew(calls: list[str]) -> None:
    """Other lengths, strides, a gradient of LSE, fewer gradients, another scale, data that changed."""
    table = TABLE.clone()
    spec = Specification("biased", None, lambda s, b, h, q, k: s + table[q - k + 100])
    result = attention(spec, dtype=torch.float16, head_dim=64, verify="off")
    inputs = tensors(1)
    ready = ready_of(result, inputs)
    o, lse = _outputs(result, inputs)
    do = torch.randn_like(o)

    def pass_of(ready: Any, *inputs: Any, **more: Any) -> str:
        calls.clear()
        module.backward(ready, module.BackwardInputs(*inputs), **more)
        return calls[0]

    assert [pass_of(ready, *inputs, o, lse, do, None) for _ in range(2)] == ["called", "again"]
    assert pass_of(ready, *inputs, o, lse, do, torch.zeros_like(lse)) == "called"
    assert pass_of(ready, *inputs, o, lse, do, None, needed=(True, False, False)) == "called"
    assert pass_of(ready, *inputs, o, lse, do.transpose(1, 2).contiguous().transpose(1, 2), None) == "called"
    short = tensors(2, 50)
    assert pass_of(ready_of(result, short), *short, *_outputs(result, short), torch.randn(1, 2, 50, 64).half(), None) == "called"
    assert pass_of(ready_of(result, inputs, 0.5), *inputs, o, lse, do, None) == "called"
    assert [pass_of(ready, *inputs, o, lse, do, None) for _ in range(2)] == ["called", "again"]
    table.mul_(2)  # behind the forward pass
    assert [pass_of(ready, *inputs, o, lse, do, None) for _ in range(2)] == ["called", "again"]
    changed = ready_of(result, inputs)
    assert [pass_of(changed, *inputs, o, lse, do, None) for _ in range(2)] == ["called", "again"]


@pytest.mark.parametrize("few", [False, True], ids=["dQ added up", "dQ apart"])
def test_passes_with_dropout_are_repeated_with_their_own_seeds(calls: list[str], few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each probability has launches of its own, and each pass drops by its own seed."""
    monkeypatch.setattr(module, "has_few_keys", lambda *_: few)
    spec = Specification("causal", lambda b, h, q, k: q >= k, dropout=Dropout())
    created = attention(spec, dtype=torch.float16, head_dim=64, verify="off")
    inputs = tensors(1)
    base = ready_of(created, inputs)
    do = torch.randn(1, 2, 70, 64, generator=torch.Generator().manual_seed(9)).half()
    for turn, p in enumerate((0.2, 0.2, 0.6, 0.2, 0.6)):
        dropout = p, torch.tensor([turn, 5], dtype=torch.int32)
        ours = replace(spec, dropout=Dropout(*dropout))
        leaves = [x.detach().double().requires_grad_() for x in inputs]
        o, lse = forward(ours, *leaves, 64**-0.5)
        calls.clear()
        result = module.backward(base.with_dropout(dropout), module.BackwardInputs(*inputs, o.detach().half(), lse.float(), do))
        assert calls == ["called" if turn in (0, 2) else "again"] * (2 if few else 3)
        for a, b in zip(result, torch.autograd.grad(o, leaves, do.double()), strict=True):
            assert a is not None and (a.double() - b).norm() < 3e-3 * b.norm()
