"""Names of users: whatever a captured value is called, it meets no name of ours.

Calls whose mods capture float64: looked at when the numbers are new, in every kind of call.
"""

from __future__ import annotations

import builtins
import functools
import keyword
import sys
import types
import unicodedata
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

import corpus
import cuir
from cuir import CuirError, create_block_mask, flex_attention, varlen_attention
from cuir.attn.kernels import attention_kernel
from cuir.attn.tracing.float64_captures import Doubles
from cuir.attn.tracing.splice_names import names_of
from cuir.ops import TABLE
from cuir.runtime.compiled import CompiledKernel
from cuir.syntax.parser import parse

N, D = 16, 16
KINDS = ("tensor", "integer", "float")
Value = torch.Tensor | int | float


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _codes(inner)


def _functions(holder: Any, package: str) -> Iterator[types.FunctionType]:
    for value in list(vars(holder).values()):
        plain = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value.fget if isinstance(value, property) else value
        if isinstance(plain, types.FunctionType) and plain.__module__ == package:
            yield plain
        elif isinstance(value, type) and value.__module__ == package and value is not holder:
            yield from _functions(value, package)


@functools.cache
def our_names() -> list[str]:
    """Every parameter and variable of the functions that a call runs through, every name of our kernels, and the primitives."""
    rooms = ("cuir.flex", "cuir.attn", "cuir.runtime", "cuir.arguments", "cuir.interp.interpreted_launch")
    result = {op.written for op in TABLE.values()} | {n for place in corpus.kernels().values() for n in names_of(parse(place.read_text()))}
    for module in [m for name, m in sorted(sys.modules.items()) if name.startswith(rooms)]:
        for function in _functions(module, module.__name__):
            for code in _codes(function.__code__):
                result.update((*code.co_varnames, *code.co_freevars))
    return sorted(n for n in result if _usable(n))


def _usable(name: str) -> bool:
    plain = unicodedata.normalize("NFKC", name) == name  # else Python has it under another name
    return (
        plain
        and name.isidentifier()
        and not keyword.iskeyword(name)
        and name not in ("__debug__", "score", "b", "h", "q_idx", "kv_idx", "values")
    )


identifiers = st.one_of(
    st.text(st.characters(categories=("Lu", "Ll", "Lo", "Nd", "Pc"), max_codepoint=0x2FF), min_size=1, max_size=8),
    st.sampled_from(
        ["_", "__", "x", "x_", "x_d0", "x_d0_", "grad_x", "sum0", "int", "asm", "threadIdx", *dir(builtins), "é" * 3, "a" * 400]
    ),
).filter(_usable)
names = st.lists(st.one_of(st.deferred(lambda: st.sampled_from(our_names())), identifiers), min_size=6, max_size=9, unique=True)


def mod_of(captured: dict[str, Value]) -> Callable[..., Any]:
    """A score_mod that closes over values of these names."""
    retained = "\n".join(f"    {n} = values[{i}]" for i, n in enumerate(captured))
    terms = " + ".join(
        f"0.01 * {n}[kv_idx]" if isinstance(v, torch.Tensor) else f"0.001 * {n} * (kv_idx - q_idx)" for n, v in captured.items()
    )
    text = f"def made(values):\n{retained}\n    def mod(score, b, h, q_idx, kv_idx):\n        return score + {terms}\n    return mod\n"
    module: dict[str, Any] = {}
    exec(text, module)  # the only way to a closure over any name
    mod: Callable[..., Any] = module["made"](list(captured.values()))
    return mod


def values_of(chosen: list[str]) -> dict[str, Value]:
    kinds: dict[str, Callable[[int], Value]] = {
        "tensor": lambda i: torch.linspace(-1, 1, N).roll(i).requires_grad_(),
        "integer": lambda i: 3 + i,
        "float": lambda i: 0.3 + i,
    }
    return {n: kinds[KINDS[i % 3]](i) for i, n in enumerate(chosen)}


def inputs() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [x.half().requires_grad_() for x in torch.randn(3, 1, 1, N, D)]


def compute_expected(mod: Callable[..., Any], x: list[torch.Tensor], learned: list[torch.Tensor]) -> list[torch.Tensor]:
    q, k, v = (t.double() for t in x)
    at = torch.arange(N)
    o = mod(q @ k.mT * D**-0.5, 0, 0, at[:, None], at).softmax(-1) @ v
    return [o, *torch.autograd.grad(o.square().sum(), [*x, *learned])]


def judge(attention: Callable[..., torch.Tensor], chosen: list[str]) -> None:
    captured, x = values_of(chosen), inputs()
    mod, learned = mod_of(captured), [v for v in captured.values() if isinstance(v, torch.Tensor)]
    o = attention(*x, mod)
    actual = [o, *torch.autograd.grad(o.float().square().sum(), [*x, *learned])]
    for a, b in zip(actual, compute_expected(mod, x, learned), strict=True):
        torch.testing.assert_close(a.double(), b.double(), atol=1e-2, rtol=1e-2)


OPTIONS: dict[str, Any] = {"backend": "interpret", "verify": "off"}


@settings(max_examples=3, phases=(Phase.explicit, Phase.generate))  # an example takes a second, and shrinking hundreds of them
@example(["step", "self", "scale", "Q", "S", "k", "launch", "T", "D", "out", "arguments"])
@example(["x", "three", "x_d0", "grad_x", "x_", "sums", "x_d0_", "dX", "P"])
@given(names)
def test_a_captured_name_meets_no_name_of_ours(chosen: list[str]) -> None:
    judge(lambda q, k, v, mod: flex_attention(q, k, v, mod, **OPTIONS), chosen)


@pytest.mark.parametrize("chosen", [["step", "self", "scale", "captured", "handle", "out", "q", "wanted", "learned"]])
def test_the_same_names_in_a_compiled_function_and_in_packed_sequences(chosen: list[str]) -> None:
    compiled = torch.compile(lambda q, k, v, mod: flex_attention(q, k, v, mod, **OPTIONS), backend="eager", fullgraph=True)
    judge(compiled, chosen)
    places = torch.tensor([0, N], dtype=torch.int32)

    def attend_packed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mod: Any) -> torch.Tensor:
        o = cuir.varlen_attention(*(x[0].transpose(0, 1) for x in (q, k, v)), places, places, score_mod=mod, **OPTIONS)
        return o.transpose(0, 1)[None]

    judge(attend_packed, chosen)


def test_the_same_names_over_a_cache() -> None:
    captured = {n: v.detach() if isinstance(v, torch.Tensor) else v for n, v in values_of(["self", "step", "out", "KEYS", "PAGES"]).items()}
    mod, (q, k, v) = mod_of(captured), (x.detach().transpose(1, 2) for x in inputs())
    o = cuir.attention_with_kv_cache(q, k, v, cache_seqlens=N, score_mod=mod, **OPTIONS)
    want = compute_expected(mod, inputs(), [])[0]
    torch.testing.assert_close(o.transpose(1, 2).double(), want, atol=1e-2, rtol=1e-2)


def test_a_keyword_parameter_keeps_its_default_whatever_it_is_called() -> None:
    """PyTorch passes nothing by keyword, so that `N=3` of a user is 3 and `sink` is no sink of the call's."""

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, N: int = 3, M: int = 1) -> Any:
        return (q_idx - kv_idx < N) & (q_idx >= kv_idx - M + 1)

    def biased(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, sink: float = 0.25) -> Any:
        return score - sink * kv_idx

    q, k, v = (x.detach() for x in inputs())
    block_mask = create_block_mask(mask, None, None, 16, 16, device="cpu")
    o = flex_attention(q, k, v, biased, block_mask, sink=1.0, **OPTIONS)
    at = torch.arange(16)
    scores = biased(q.double() @ k.double().mT * D**-0.5, 0, 0, at[:, None], at).masked_fill(~mask(0, 0, at[:, None], at), -torch.inf)
    weights = torch.cat([scores, torch.ones(1, 1, 16, 1)], -1).softmax(-1)[..., :-1]
    torch.testing.assert_close(o.double(), weights @ v.double(), atol=2e-3, rtol=1e-2)


def test_a_launch_takes_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments of a compiled kernel are a mapping: `self` and `out` are names like others."""
    record: dict[str, Any] = {}

    def examine(args: tuple[Any, ...], named: dict[str, Any], outs: tuple[Any, ...], values: tuple[Any, ...]) -> Any:
        record.update(named)
        raise LookupError

    kernel = object.__new__(CompiledKernel)
    kernel._repeats, kernel._records = (), {}
    monkeypatch.setattr(kernel, "_examine", examine, raising=False)
    arguments = {"self": 1, "out": 2, "args": 3, "named": 4}
    with pytest.raises(LookupError):
        kernel.launch(arguments)
    assert record == arguments
    record.clear()
    interface = SimpleNamespace(origin=SimpleNamespace(params=[SimpleNamespace(name=n) for n in ("self", "out")]))
    monkeypatch.setattr(CompiledKernel, "_interface", interface)
    with pytest.raises(LookupError):
        kernel(self=1, out=2)
    assert record == {"self": 1, "out": 2}


N, D = 16, 16
torch.manual_seed(0)
Q, K, V = (x.half() for x in torch.randn(3, 1, 1, N, D))
PLACES = torch.tensor([0, N], dtype=torch.int32)


def call(how: str, mask: Any) -> torch.Tensor:
    q, k, v = (x[0].transpose(0, 1) for x in (Q, K, V))
    if how == "packed":
        o: torch.Tensor = varlen_attention(q, k, v, PLACES, PLACES, block_mask=mask, **OPTIONS)
        return o.transpose(0, 1)[None]
    if how == "cache":
        o = cuir.attention_with_kv_cache(q[None], k[None], v[None], cache_seqlens=N, block_mask=mask, **OPTIONS)
        return o.transpose(1, 2)
    attention = torch.compile(flex_attention, backend="eager", fullgraph=True) if how == "compiled" else flex_attention
    o = attention(Q, K, V, block_mask=create_block_mask(mask, None, None, N, N, device="cpu"), **OPTIONS)
    return o


@pytest.mark.sweep(4)
@pytest.mark.parametrize("how", ["dense", "compiled", "packed", "cache"])
def test_what_counts_is_what_counts_in_float64(how: str) -> None:
    seconds = 1.7e9 + torch.arange(N, dtype=torch.float64) * 7

    def near(x: torch.Tensor) -> Any:
        return lambda b, h, q_idx, kv_idx: (x[q_idx] - x[kv_idx]).abs() < 20

    with pytest.raises(CuirError, match="U417"):
        call(how, near(seconds))
    o = call(how, near(seconds - seconds.min() + 0.1))  # no numbers of float32, and the same pairs
    scores = (Q.double() @ K.double().mT * D**-0.5).masked_fill((seconds[:, None] - seconds).abs() >= 20, -torch.inf)
    torch.testing.assert_close(o.double(), scores.softmax(-1) @ V.double(), atol=2e-3, rtol=1e-2)


@pytest.mark.parametrize("how", ["dense", "compiled"])
def test_numbers_are_looked_at_when_they_change_and_not_again(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gates, looks = torch.rand(N, dtype=torch.float64), []
    check = Doubles.check
    monkeypatch.setattr(Doubles, "check", lambda self, *args: (looks.append(1), check(self, *args)))
    mask = create_block_mask(lambda b, h, q_idx, kv_idx: gates[kv_idx] > 0.5, None, None, N, N, device="cpu")
    attention = torch.compile(flex_attention, backend="eager", fullgraph=True) if how == "compiled" else flex_attention
    for _ in range(3):
        attention(Q, K, V, block_mask=mask, **OPTIONS)
    assert len(looks) == 1
    gates[3] = 0.5 + 2.0**-40
    with pytest.raises(CuirError, match="U417"):
        attention(Q, K, V, block_mask=mask, **OPTIONS)
    gates[3] = 0.75
    attention(Q, K, V, block_mask=mask, **OPTIONS)
    assert len(looks) == 3


def test_learned_biases_of_float64_have_gradients() -> None:
    bias = torch.rand(N, dtype=torch.float64, requires_grad=True)
    o = flex_attention(Q, K, V, lambda s, b, h, q_idx, kv_idx: s + bias[kv_idx], **OPTIONS)
    (result,) = torch.autograd.grad(o.double().square().sum(), bias)  # type: ignore[union-attr]
    w = (Q.double() @ K.double().mT * D**-0.5 + bias).softmax(-1) @ V.double()
    torch.testing.assert_close(result, torch.autograd.grad(w.square().sum(), bias)[0], atol=2e-3, rtol=1e-2)


def test_a_tensor_that_does_not_fit_is_refused_before_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU too: verification would find another mask, and say so of a program that is right."""
    times = 1.7e9 + torch.arange(40, dtype=torch.float64) * 7
    attention = attention_kernel.attention(lambda b, h, q, k: (times[q] - times[k]).abs() < 20, head_dim=32)
    monkeypatch.setattr(attention_kernel, "need_gpu", lambda device, arch: None)
    monkeypatch.setattr(
        type(attention.settings), "compile_for", lambda *args: pytest.fail("verified before its captured tensors were checked")
    )
    x = torch.randn(1, 1, 40, 32).half()
    with pytest.raises(CuirError, match="U417"):
        attention.ready(x, x, x, None, "auto")
