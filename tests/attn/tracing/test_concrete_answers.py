"""Numbers that a mod captures answer what Python's own answer, in whatever way the mod asks; those that need not be constants stay parameters."""

from __future__ import annotations

import copy
import enum
import functools
import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cuir.attn.tracing.trace import trace
from cuir.spec.specification import Specification
from cuir.text.diagnostics import CuirError
from tests.attn.tracing.test_trace import agrees
from tests.strategies.selection import examples

Mod = Callable[..., Any]
BIAS = torch.tensor([0.5, -1.0, 2.0, 4.0])


@functools.singledispatch
def double(x: Any) -> Any:
    return x


@double.register
def _(x: float) -> Any:
    return 2 * x


@dataclass
class Window:
    size: int
    gain: float

    def width(self) -> Any:
        return self.size if isinstance(self.size, int) and isinstance(self.gain, float) else 1

    def __call__(self, s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * self.width()


def match_type(gain: Any) -> Any:
    match gain:
        case float():
            return 3.0
        case _:
            return 1.0


def parameters(mod: Mod) -> list[str]:
    return sorted(p.name for p in trace(Specification("asked", score_mod=mod)).parameters)


def stay(gain: float, n: int, bias: torch.Tensor) -> dict[str, Mod]:
    """Mods whose captured numbers are parameters of the kernel."""
    return {
        "isinstance float": lambda s, b, h, q, k: s * gain if isinstance(gain, float) else s,
        "isinstance not int": lambda s, b, h, q, k: s if isinstance(gain, int) else s * gain,
        "isinstance of one of several": lambda s, b, h, q, k: s * n if isinstance(n, (str, int)) else s,
        "isinstance of a union": lambda s, b, h, q, k: s * n if isinstance(n, int | torch.Tensor) else s,
        "isinstance of an abstract class": lambda s, b, h, q, k: s * gain if isinstance(gain, numbers.Real) else s,
        "isinstance of a sum": lambda s, b, h, q, k: s * (n + gain) if isinstance(n + gain, float) and isinstance(n + 1, int) else s,
        "type": lambda s, b, h, q, k: s * n if type(n) is int and type(gain) is float else s,
        "match": lambda s, b, h, q, k: s * gain * match_type(gain),
        "singledispatch": lambda s, b, h, q, k: s * double(gain),
        "in a method": Window(n, gain),
        "a product": lambda s, b, h, q, k: s * n**2,
        "a copy": lambda s, b, h, q, k: s * copy.deepcopy(n),
        "a tensor": lambda s, b, h, q, k: s * n + bias[h] if isinstance(bias, torch.Tensor) else s,
        "no tensor": lambda s, b, h, q, k: s if isinstance(gain, torch.Tensor) else s + gain,
        "a score": lambda s, b, h, q, k: s * gain if isinstance(s, torch.Tensor) and isinstance(q, torch.Tensor) else s,
        "a class": lambda s, b, h, q, k: s * n if isinstance(int, type) and isinstance(type(s), type) else s,
    }


def become(gain: float, n: int, bias: torch.Tensor) -> dict[str, Mod]:
    """Mods that ask for what only a constant can answer."""
    table, cached = {n: 7.0}, functools.lru_cache(lambda x: x + 1.0)
    return {
        "a key": lambda s, b, h, q, k: s * table.get(n, 1.0),
        "in a set": lambda s, b, h, q, k: s * 2 if n in {n, 100} else s,
        "text": lambda s, b, h, q, k: s * {str(n): 5.0}.get(f"{n:d}", 1.0),
        "rounded": lambda s, b, h, q, k: s * round(gain) + math.floor(gain),
        "a method of float": lambda s, b, h, q, k: s if gain.is_integer() else s * 3,
        "a method of int": lambda s, b, h, q, k: s * n.bit_length(),
        "floor of a float": lambda s, b, h, q, k: s * (gain // 1) + gain % 1,
        "a power": lambda s, b, h, q, k: s + q // 2**n,
        "a negative power": lambda s, b, h, q, k: s * n**-1,
        "a shift": lambda s, b, h, q, k: s + (k << n),
        "a power of the score": lambda s, b, h, q, k: s.abs() ** n,
        "the power of a score": lambda s, b, h, q, k: n ** s.abs(),
        "divmod": lambda s, b, h, q, k: s * divmod(n, 2)[0] + divmod(7, n)[1],
        "beside text": lambda s, b, h, q, k: s if n == "all" else s * 2,
        "a tensor of it": lambda s, b, h, q, k: s + torch.tensor(gain),
        "tensor's own": lambda s, b, h, q, k: s + bias[-n],
        "remembered": lambda s, b, h, q, k: s * cached(n),
    }


@pytest.mark.parametrize("name", stay(2.5, 3, BIAS))
def test_questions_of_a_class_leave_numbers_parameters(name: str) -> None:
    for gain, n in ((2.5, 3), (-0.75, 1)):
        mod = stay(gain, n, BIAS)[name]
        agrees(mod)
        assert parameters(mod)


@pytest.mark.parametrize("name", become(2.5, 3, BIAS))
def test_what_only_a_constant_answers(name: str) -> None:
    for gain, n in ((2.5, 3), (4.0, 1)):
        agrees(become(gain, n, BIAS)[name])
    assert not {"n", "gain"} & set(parameters(become(2.5, 3, BIAS)[name]))


def test_nothing_of_a_trace_stays_in_the_users_own_memory() -> None:
    memory: dict[Any, Any] = {}

    @functools.cache
    def factor(x: float) -> float:
        return 2 * x

    def remembering(gain: float) -> Mod:
        def score_mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            try:
                memory.setdefault(gain, 0.5)
            except Exception:
                return s
            return s * factor(gain) * memory[gain]

        return score_mod

    for gain in (1.5, 2.5):
        agrees(remembering(gain))
    assert factor(2.5) == 5.0 and type(factor(2.5)) is float
    assert all(type(x) is float for x in memory)


@pytest.mark.parametrize("ask", [lambda M: {7: 1.0}.get(M, 2.0), lambda M: str(M), lambda M: round(M)])
def test_a_length_has_no_value_in_a_program(ask: Mod) -> None:
    def score_mod(s: Any, b: Any, h: Any, q: Any, k: Any, *, M: int) -> Any:
        return s * 1.0 if ask(M) else s

    with pytest.raises(CuirError) as caught:
        trace(Specification("asked", score_mod=score_mod))
    assert caught.value.diagnostics[0].code == "X121"
    assert "only known when the kernel runs" in caught.value.diagnostics[0].message


def test_a_length_is_an_integer() -> None:
    def score_mod(s: Any, b: Any, h: Any, q: Any, k: Any, *, M: int, N: int) -> Any:
        return s + (N - M) if isinstance(N - M, int) and not isinstance(N - M + q, int) else s

    agrees(score_mod)


def test_a_score_is_no_key() -> None:
    agrees(lambda s, b, h, q, k: s * {0: 3.0}.get(h, 2.0))  # as with PyTorch's tensors, which are keys by identity


def test_failures_are_those_of_the_number() -> None:
    gain = 2.5
    with pytest.raises(CuirError) as caught:
        trace(Specification("asked", score_mod=lambda s, b, h, q, k: s * gain.exp()))  # type: ignore[attr-defined]
    assert "'float' object has no attribute 'exp'" in caught.value.diagnostics[0].message


LEAVES = st.sampled_from(["gain", "n", "3", "0.5", "7"])
SIGNS = st.sampled_from(["+", "-", "*", "//", "%", "**", "max", "round", "==", "<"])


@examples(3)
@given(
    st.floats(0.25, 4.0).map(lambda x: round(x, 2)),
    st.integers(1, 6),
    st.recursive(LEAVES, lambda c: st.tuples(SIGNS, c, c), max_leaves=5),
)
def test_arithmetic_of_numbers_is_pythons(gain: float, n: int, tree: Any) -> None:
    def value(node: Any, e: dict[str, Any]) -> Any:
        if isinstance(node, str):
            return e[node] if node in e else float(node) if "." in node else int(node)
        sign, a, b = node[0], value(node[1], e), value(node[2], e)
        if sign == "max":
            return max(a, b)
        if sign == "round":
            return round(a) if isinstance(b, int) else a
        if sign in ("//", "%") and b == 0:
            return a
        if sign == "**" and (abs(a) > 8 or abs(b) > 4 or a == 0):
            return a
        return {
            "+": lambda: a + b,
            "-": lambda: a - b,
            "*": lambda: a * b,
            "//": lambda: a // b,
            "%": lambda: a % b,
            "**": lambda: abs(a) ** b,
            "==": lambda: 2 if a == b else 3,
            "<": lambda: a if a < b else b,
        }[sign]()

    def score_mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + value(tree, {"gain": gain, "n": n}) * 0.01

    if abs(value(tree, {"gain": gain, "n": n})) < 1e4:
        agrees(score_mod)


# ---- what an adversary found: another branch, or another number, in silence
class Mode(enum.IntEnum):
    CAUSAL = 1
    FULL = 2


class Percent(float):
    def __mul__(self, second: Any) -> Any:
        return float(self) / 100 * second


class Marker:
    pass


MARKER = Marker()
SLOPES = {MARKER: 4.0}
FLAG = torch.tensor([False])


def same_as_pytorch(g: float, n: int, t: torch.Tensor) -> dict[str, Mod]:
    mode, half, marker, d64 = Mode.CAUSAL, Percent(50), MARKER, 1 / np.sqrt(64)
    return {
        "a member of an enumeration": lambda s, b, h, q, k: s * 3 if mode is Mode.CAUSAL and isinstance(mode, Mode) else s,
        "a float of a class": lambda s, b, h, q, k: s * (half * 8.0),
        "a float of NumPy": lambda s, b, h, q, k: s * d64,
        "an object that is itself": lambda s, b, h, q, k: s * SLOPES.get(marker, 1.0) if marker is MARKER else s,
        "a power of a negative number": lambda s, b, h, q, k: s * (-g) ** 5 + (-g) ** 0,
        "a power of 0": lambda s, b, h, q, k: s * (0.0 * g) ** n + (g - g) ** 0,
        "sums of bools": lambda s, b, h, q, k: s * ((n > 0) + (g > 0)) + abs(n > 0) + (n > 0) ** 2 + ~(n > 0),
        "powers of bools": lambda s, b, h, q, k: s * ((k < q) ** 2 + (k > 3) ** 2 + torch.square(k > 1)),
        "the dtype of another": lambda s, b, h, q, k: (
            s * ((k < q).to(s) + (k > 3).type(torch.FloatTensor) + (k > 1).type("torch.IntTensor"))
        ),
        "the dtype of a score": lambda s, b, h, q, k: s * torch.tensor(2.0, dtype=s.dtype) if torch.finfo(s.dtype).bits >= 32 else s,
        "methods that ask": Learned(t, g),
        "a module that asks": Learning(t, g).forward,
        "the dtype of a tensor": lambda s, b, h, q, k: s + t[h] if t.dtype == torch.float32 else s,
        "an index of NumPy": lambda s, b, h, q, k: s + t[np.int64(2)] * t[h],
        "no attribute of a tensor": lambda s, b, h, q, k: s * 2 if hasattr(s, "foo") or hasattr(t, "foo") else s * 3,
        "a shape": lambda s, b, h, q, k: s * 2 if h.shape == () and h.ndim == 0 else s,
        "no attribute of a number": lambda s, b, h, q, k: s * 2 if hasattr(n, "ndim") or hasattr(g, "device") else s * 3,
        "text by repr": lambda s, b, h, q, k: s * {repr(n): 5.0}.get(f"{n!r}", 1.0) * {str([n]): 2.0}.get(f"[{n}]", 1.0),
        "NumPy's functions": lambda s, b, h, q, k: s * np.sqrt(n) + np.exp(-g),
        "1 and 1.0": lambda s, b, h, q, k: s * pair(1, 1.0)(),
    }


class Learned:
    """Module with parameters: numbers or tensors."""

    def __init__(self, bias: Any, gain: Any):
        self.bias, self.gain = bias, gain

    @staticmethod
    def is_number(x: Any) -> bool:
        return isinstance(x, (float, torch.Tensor))

    @property
    def factor(self) -> Any:
        return self.gain if type(self.gain) is float and type(self) is Learned else 1.0

    def __call__(self, s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * self.factor + (self.bias[h] if isinstance(self.bias, torch.Tensor) and self.is_number(self.bias) else self.bias)


class Learning(torch.nn.Module):
    def __init__(self, bias: torch.Tensor, gain: float):
        super().__init__()
        self.bias, self.gain = torch.nn.Parameter(bias, requires_grad=False), gain

    def of(self, k: Any) -> Any:
        return self.bias[k % 4] if isinstance(self.bias, torch.nn.Parameter) else 0.0

    def forward(self, s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * self.gain + self.of(k)


def pair(*sizes: float) -> Mod:
    return lambda: sum(2 if isinstance(size, float) else 1 for size in sizes)


@pytest.mark.parametrize("name", same_as_pytorch(2.5, 3, BIAS))
def test_what_an_adversary_asked(name: str) -> None:
    for g, n in ((2.5, 3), (0.5, 1)):
        agrees(same_as_pytorch(g, n, BIAS)[name])


@pytest.mark.parametrize(
    ("mod", "code"),
    [
        (lambda s, b, h, q, k: s * 4 if FLAG else s, "X121"),
        (lambda s, b, h, q, k: s * sum(list(BIAS.cumsum(0))), "X120"),
        (lambda s, b, h, q, k: s if s.requires_grad else s * 2, "X120"),
        (lambda s, b, h, q, k: try_lgamma(s), "X120"),
        (lambda s, b, h, q, k, *, n=65536: s + k * 5e9 / (n * n), "U417"),
    ],
)
def test_what_is_refused_and_not_answered(mod: Mod, code: str) -> None:
    with pytest.raises(CuirError) as caught:
        trace(Specification("asked", score_mod=mod))
    assert caught.value.diagnostics[0].code == code


def try_lgamma(s: Any) -> Any:
    try:
        return torch.lgamma(s)
    except Exception:  # of PyTorch's there is none
        return s


MEMORY: dict[str, Any] = {}


class Store:
    slope: Any = None


def test_what_a_mod_keeps_is_not_the_users() -> None:
    def make(g: float) -> Mod:
        def score_mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            if "f" not in MEMORY:
                MEMORY["f"] = g * 2.0
            return s * MEMORY["f"]

        return score_mod

    for g in (2.0, 3.0):
        trace(Specification("kept", score_mod=make(g)))
        assert not MEMORY


def keeping(g: float) -> Mod:
    """A mod that keeps what it computed first in a class."""

    def score_mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        Store.slope = Store.slope if Store.slope is not None else g * 2.0
        return s * Store.slope

    return score_mod


def test_what_a_mod_keeps_in_a_class_is_refused_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "slope", None)
    trace(Specification("kept", score_mod=keeping(2.0)))
    assert f"{Store.slope}" == "4.0"  # outside of a trace a number answers by itself
    with pytest.raises(CuirError) as caught:
        trace(Specification("kept", score_mod=keeping(3.0)))
    assert "earlier call" in caught.value.diagnostics[0].message


class Final(type):
    def __new__(cls, name: str, bases: tuple[type, ...], contents: dict[str, Any], **keywords: Any) -> Any:
        if bases:
            raise TypeError(f"{bases[0].__name__} is final")
        return super().__new__(cls, name, bases, contents)


class Sealed(metaclass=Final):
    def __init__(self, gain: float):
        self.gain = gain

    def __call__(self, s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s * self.gain if isinstance(self.gain, float) else s


def test_a_class_that_forbids_to_be_derived_from_is_refused() -> None:
    with pytest.raises(CuirError) as caught:
        trace(Specification("sealed", score_mod=Sealed(2.0)))
    result = caught.value.diagnostics[0]
    assert result.code == "X120" and "`Sealed` ask for classes (__call__)" in result.message and "is final" in result.message
