"""Gradients of some of the inputs of `flex_attention`: those that require one, beside the dense formula in float64, and nothing launched or allocated for the others.

A backward pass that is made again: the launches of the one before, for other tensors that lie as its did. Kernels are the interpreter's, called as compiled ones are.

`torch.use_deterministic_algorithms`: gradients by kernels that add nothing up between CTAs, right, and with the same bits under every schedule.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

import cuir
from cuir import Specification, attention, create_block_mask, flex_attention
from cuir.arguments.guards import make_call_guard
from cuir.attn.kernels import autograd as gradients
from cuir.attn.kernels import autograd as module
from cuir.attn.kernels import backward_kernels
from cuir.attn.kernels.backward_kernels import RequestedGradients
from cuir.checking.checked import Checked
from cuir.interp import run
from cuir.spec.dropout_hash import Dropout
from cuir.spec.gradients import forward
from cuir.spec.specification import Lengths
from cuir.verification.inputs import find_accumulated
from cuir.verification.schedules import run_under_all

from ..kernels.test_autograd import causal, close, compute_gradients, dense, documents, softcap, tensors

N = 70


def near(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q - k < 100) & (k - q < 100)


def make_bias(table: torch.Tensor) -> Any:
    return lambda s, b, h, q, k: s + table[h, k]


def wide(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    """O in float64: a sink is a key of its own, whose value is 0."""
    o, lse = dense(q, k, v, None, make_bias(table))
    return o * torch.sigmoid(lse - sink[:, None])[..., None]


def record_launches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """The launches from now on: kernels, and what they are given."""
    launches: list[tuple[str, dict[str, Any]]] = []
    launch = gradients.Interpreted.launch

    def record(self: Any, arguments: dict[str, Any]) -> object:
        launches.append((self.checked.name, arguments))
        return launch(self, arguments)

    monkeypatch.setattr(gradients.Interpreted, "launch", record)
    return launches


@pytest.mark.sweep
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("requests", "kernels"),
    [
        ("q", ["flash_bwd_dq"]),
        ("kv", ["prepare", "flash_bwd"]),
        ("v", ["prepare", "flash_bwd"]),
        ("t", ["prepare", "flash_bwd"]),
        ("qt", ["prepare", "flash_bwd", "finish"]),
        ("s", ["prepare"]),
    ],
)
def test_only_what_is_asked_for(requests: str, kernels: list[str], compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = record_launches(monkeypatch)
    q, k, v = tensors(1, 2, 2, N, N, 64)
    g = torch.Generator().manual_seed(3)
    inputs = {"q": q, "k": k, "v": v, "t": torch.randn(2, N, generator=g), "s": torch.randn(2, generator=g)}
    for name in requests:
        inputs[name].requires_grad_()
    score_mod, sink = make_bias(inputs["t"]), inputs["s"]

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return flex_attention(q, k, v, score_mod, sink=sink, enable_gqa=True, backend="interpret", verify="off")

    o = (torch.compile(call, fullgraph=True, backend="aot_eager") if compiled else call)(q, k, v)
    do = torch.randn(o.shape, generator=g).half()
    result = torch.autograd.grad(o, [inputs[name] for name in requests], do)
    exact = {n: x.detach().double().requires_grad_() for n, x in inputs.items()}
    close(result, torch.autograd.grad(wide(*exact.values()), [exact[name] for name in requests], do.double()))
    assert [name for name, _ in launches] == kernels
    sizes = {n: x.untyped_storage().nbytes() for _, inputs in launches for n, x in inputs.items() if n in ("dQ", "dK", "dV")}
    written = {"dQ"} if "q" in requests else set()
    written |= {"dK", "dV"} if "v" in requests else set()
    assert all((size > 256) == (name in written) for name, size in sizes.items()), sizes


@pytest.mark.sweep
@pytest.mark.parametrize("requests", ["kv", "v", "k", "q", "qkv", "qv"])
@pytest.mark.parametrize(("keys", "values"), [(64, 128), (16, 72), (96, 64), (64, 192), (192, 128)])
def test_head_dims_that_differ(keys: int, values: int, requests: str) -> None:
    """Several blocks of queries for each block of keys: of the heads of a group, and of one."""
    g = torch.Generator().manual_seed(4)
    inputs = dict(
        zip("qkv", (torch.randn(1, h, n, d, generator=g).half() for h, n, d in ((2, 150, keys), (1, 130, keys), (1, 130, values))))
    )
    for name in requests:
        inputs[name].requires_grad_()
    o = flex_attention(*inputs.values(), enable_gqa=True, backend="interpret", verify="off")
    assert isinstance(o, torch.Tensor)
    do = torch.randn(o.shape, generator=g).half()
    exact = {n: x.detach().double().requires_grad_() for n, x in inputs.items()}
    expected = torch.autograd.grad(dense(*exact.values(), None, None)[0], [exact[name] for name in requests], do.double())
    close(torch.autograd.grad(o, [inputs[name] for name in requests], do), expected)


@pytest.mark.sweep(4)
@pytest.mark.parametrize(("requests", "finished", "dim"), [("v", 2, 64), ("qkv", 3, 64), ("q", 0, 64), ("qkv", 3, 192)])
def test_heads_of_a_group_are_added_up(requests: str, finished: int, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """dK and dV of key heads that several query heads share are sums in f32, which a launch each converts."""
    launches = record_launches(monkeypatch)
    monkeypatch.setattr(backward_kernels, "LEAST_SPREAD", 0)
    inputs = dict(zip("qkv", tensors(1, 4, 2, N, N, dim), strict=True))
    expected = [inputs[name].requires_grad_() for name in requests]
    block_mask = create_block_mask(causal, None, None, N, N, device="cpu")
    o = flex_attention(*inputs.values(), block_mask=block_mask, enable_gqa=True, backend="interpret", verify="off")
    do = torch.randn(o.shape, generator=torch.Generator().manual_seed(3)).half()  # type: ignore[union-attr]
    actual = torch.autograd.grad(o, expected, do)  # type: ignore[arg-type]
    exact = {n: x.detach().double().requires_grad_() for n, x in inputs.items()}
    close(actual, torch.autograd.grad(dense(*exact.values(), causal, None)[0], [exact[n] for n in requests], do.double()))
    assert [name for name, _ in launches].count("finish") == finished
    sums = [inputs["dK"].dtype for name, inputs in launches if name == "flash_bwd"]
    assert sums == ([torch.float32] if finished else [])


@pytest.mark.parametrize(
    ("mask", "heads", "length", "expected"),
    [
        (causal, (8, 2), 2048, True),
        (documents, (8, 2), 2048, True),
        (causal, (8, 8), 2048, False),
        (causal, (8, 2), 1024, False),
        (near, (8, 2), 2048, False),
        (None, (8, 2), 2048, False),
    ],
)
def test_where_they_are(mask: Any, heads: tuple[int, int], length: int, expected: bool) -> None:
    """Heads of a group that would not stay together, and have queries enough."""
    result = attention(mask or Specification("full"), dtype=torch.float16, head_dim=64, verify="off")
    assert backward_kernels.deals_heads(result, Lengths(1, *heads, length, length)) == expected


def test_what_no_score_reads_launches_nothing() -> None:
    q, k, v = tensors(1, 1, 1, 20, 20, 64)
    limit = torch.tensor(9.0, requires_grad=True)
    o = flex_attention(q, k, v, lambda s, b, h, q, k: torch.where(k < limit, s, -torch.inf), backend="interpret")
    assert torch.autograd.grad(o.sum(), limit, allow_unused=True) == (None,)  # type: ignore[union-attr]


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


def tensors_of_gradients_again(seed: int, M: int = 70, D: int = 64) -> list[torch.Tensor]:
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


@pytest.mark.sweep(4)
@pytest.mark.parametrize("made_by", [tensors_of_gradients_again, project])
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
    inputs = tensors_of_gradients_again(1)
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
    short = tensors_of_gradients_again(2, 50)
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
    inputs = tensors_of_gradients_again(1)
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


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.sweep(4)
@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize(
    ("shape", "mask_mod", "score_mod"),
    [
        ((2, 4, 2, 70, 130, 128), documents, softcap),
        ((1, 1, 1, 60, 60, 64, 128), causal, softcap),
        ((1, 2, 1, 140, 70, 256), causal, softcap),
    ],
)
def test_gradients(shape: tuple[int, ...], mask_mod: Any, score_mod: Any) -> None:
    close(*compute_gradients(tensors(*shape), mask_mod, score_mod))


@pytest.mark.usefixtures("deterministic")
@pytest.mark.sweep
@pytest.mark.parametrize("step", ["flash_bwd", "flash_bwd_dq"])
def test_the_same_bits_under_every_schedule(step: str) -> None:
    q, k, v = tensors(1, 2, 1, 140, 140, 64)
    attention = cuir.attention(causal, dtype=torch.float16, head_dim=64, verify="off")
    checked = attention.gradients(RequestedGradients(in_order=True)).plan.steps[step].checked
    assert not find_accumulated(checked) and find_accumulated(attention.gradients().plan.steps["flash_bwd"].checked) == {"dQ"}
    inputs = {"Q": q, "K": k, "V": v, "dO": q.flip(2), "L": torch.ones(1, 2, 256), "DL": torch.zeros(1, 2, 256), "scale": 0.125}
    outputs = {"dK": k.clone(), "dV": v.clone(), "dQ": torch.zeros(1, 2, 140, 64)}
    if step == "flash_bwd_dq":  # which makes the rows itself
        outputs = {"dQ": q.clone(), "FO": q.clone(), "FL": torch.ones(1, 2, 140)}
    assert len(run_under_all(checked, inputs | outputs, grid=2)) > 10


@pytest.mark.parametrize("compiled", [False, True])
def test_batch_invariant_calls_have_gradients(compiled: bool) -> None:
    """A graph's operator has the option among its arguments, and gives one gradient for each."""
    q, k, v = (torch.randn(1, 1, 20, 64, dtype=torch.float16, requires_grad=True) for _ in range(3))

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, invariant: bool) -> torch.Tensor:
        o: torch.Tensor = flex_attention(q, k, v, backend="interpret", verify="off", batch_invariant=invariant)
        return o

    run = torch.compile(call, fullgraph=True, backend="aot_eager") if compiled else call
    found = [torch.autograd.grad(run(q, k, v, invariant).float().sum(), (q, k, v)) for invariant in (True, False)]
    for ours, usual in zip(*found, strict=True):
        torch.testing.assert_close(ours, usual, atol=1e-3, rtol=1e-3)
