"""Numbers that a mod captures answer what Python's own answer, in whatever way the mod asks; those that need not be constants stay parameters."""

from __future__ import annotations

import copy
import functools
import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cuir.diagnostics import CuirError
from cuir.spec import Specification
from cuir.transfer import trace
from tests.strategies.effort import examples
from tests.transfer.test_trace import agrees

Mod = Callable[..., Any]
BIAS = torch.tensor([0.5, -1.0, 2.0, 4.0])


@functools.singledispatch
def doubled(x: Any) -> Any:
    return x


@doubled.register
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


def matched(gain: Any) -> Any:
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
        "match": lambda s, b, h, q, k: s * gain * matched(gain),
        "singledispatch": lambda s, b, h, q, k: s * doubled(gain),
        "in a method": Window(n, gain),
        "a product": lambda s, b, h, q, k: s * n**2,
        "a copy": lambda s, b, h, q, k: s * copy.deepcopy(n),
        "a tensor": lambda s, b, h, q, k: s * n + bias[h] if isinstance(bias, torch.Tensor) else s,
        "no tensor": lambda s, b, h, q, k: s if isinstance(gain, torch.Tensor) else s + gain,
        "a score": lambda s, b, h, q, k: s * gain if isinstance(s, torch.Tensor) and isinstance(q, torch.Tensor) else s,
        "a class": lambda s, b, h, q, k: s * n if isinstance(int, type) and isinstance(type(s), type) else s,
    }  # fmt: skip


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
    }  # fmt: skip


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
    seen: dict[Any, Any] = {}

    @functools.cache
    def factor(x: float) -> float:
        return 2 * x

    def remembering(gain: float) -> Mod:
        def score_mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            try:
                seen.setdefault(gain, 0.5)
            except Exception:
                return s
            return s * factor(gain) * seen[gain]

        return score_mod

    for gain in (1.5, 2.5):
        agrees(remembering(gain))
    assert factor(2.5) == 5.0 and type(factor(2.5)) is float
    assert all(type(x) is float for x in seen)


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
        return {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "//": lambda: a // b, "%": lambda: a % b,
                "**": lambda: abs(a) ** b, "==": lambda: 2 if a == b else 3, "<": lambda: a if a < b else b}[sign]()  # fmt: skip

    def score_mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + value(tree, {"gain": gain, "n": n}) * 0.01

    if abs(value(tree, {"gain": gain, "n": n})) < 1e4:
        agrees(score_mod)
