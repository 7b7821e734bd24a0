"""Traced mods give what PyTorch gives, and what cannot be traced is refused at the user's line and column."""

from __future__ import annotations

import enum
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cuir.attn.tracing.mod_evaluator import evaluate
from cuir.attn.tracing.trace import trace
from cuir.attn.tracing.traced_result import Traced
from cuir.attn.verification.splice_evaluator import Evaluator
from cuir.spec.specification import Lengths, Specification
from cuir.syntax.nodes import Program
from cuir.syntax.printer import show
from cuir.syntax.types import F32, I32
from cuir.text.diagnostics import CuirError
from tests.strategies.selection import examples

AT = Lengths(B=2, H=4, HK=2, M=7, N=9)


def arguments(spec: Specification, traced: Traced, at: Lengths = AT) -> dict[str, Any]:
    values = {p.name: p.argument(spec, at) for p in traced.parameters}
    results: dict[str, Any] = {
        n: v.numpy() if isinstance(v, torch.Tensor) else np.float32(v) if isinstance(v, float) else v for n, v in values.items()
    }
    return results | {
        "B": at.B,
        "H": at.H,
        "HK": at.HK,
        "M": at.M,
        "N": at.N,
        "scale": np.float32(0.5),
        "LOG2E": math.log2(math.e),
        "LN2": math.log(2),
    }


def scores(spec: Specification, b: int, h: int, S: np.ndarray, at: Lengths = AT) -> np.ndarray:
    """Natural logits of the traced program."""
    traced = trace(spec)
    names = arguments(spec, traced, at) | {
        "S": S.astype(np.float32),
        "b": b,
        "h": h,
        "q": np.arange(at.M)[:, None],
        "k": np.arange(at.N)[None, :],
    }
    with np.errstate(all="ignore"):
        run = Evaluator(Program(()), names)
        return run.evaluate_expr(traced.score, {}) * run.evaluate_expr(traced.factor, {}) * math.log(2) + np.zeros_like(S)


def agrees(score_mod: Callable[..., Any], captured: dict[str, Any] | None = None, positive: bool = False) -> str:
    """The mod's program computes what the mod computes; returns the program's text."""
    spec = Specification("test", score_mod=score_mod, captured=captured or {})
    rng = np.random.default_rng(0)
    S = rng.standard_normal((AT.M, AT.N)) * 3
    S = abs(S) + 0.1 if positive else S
    _, mod = spec.mods(AT)
    assert mod is not None
    q, k = torch.arange(AT.M)[:, None], torch.arange(AT.N)[None, :]
    for b in range(AT.B):
        for h in range(AT.H):
            expected = mod(torch.from_numpy(S) * 0.5, torch.tensor(b), torch.tensor(h), q, k)
            np.testing.assert_allclose(scores(spec, b, h, S), torch.as_tensor(expected).expand(AT.M, AT.N).numpy(), rtol=2e-5, atol=2e-5)
    return show(trace(spec).score)


SCORES: dict[str, Callable[..., Any]] = {
    "add": lambda s, b, h, q, k: s + 1,
    "integer times float": lambda s, b, h, q, k: s + 0.25 * (k - q),
    "division": lambda s, b, h, q, k: s / 3 / 2,
    "division of integers": lambda s, b, h, q, k: s + (q - k) / 4,
    "division by a vector": lambda s, b, h, q, k: s / (q + 1),
    "floor": lambda s, b, h, q, k: s + (q - k) // 2 + (q - k) % 3,
    "tanh": lambda s, b, h, q, k: 5.0 * torch.tanh(s / 5.0),
    "exp": lambda s, b, h, q, k: torch.exp(s * 0.1),
    "exp2": lambda s, b, h, q, k: torch.exp2(-s),
    "log": lambda s, b, h, q, k: torch.log(s + 1) + torch.log2(s + 2),
    "sigmoid": lambda s, b, h, q, k: torch.sigmoid(s) * 2.0,
    "relu": lambda s, b, h, q, k: torch.relu(s) + torch.nn.functional.relu(-s),
    "clamp": lambda s, b, h, q, k: torch.clamp(s, -0.5, 1) + s.clamp(min=0.25) + s.clip(max=0.5),
    "where": lambda s, b, h, q, k: torch.where(k <= q, s, s * 0.5),
    "where of a head": lambda s, b, h, q, k: torch.where(h < 2, s, s - 1.0),
    "where of scalars": lambda s, b, h, q, k: s * torch.where(h < 2, 0.5, 2.0),
    "minimum": lambda s, b, h, q, k: torch.minimum(s, s * s) - torch.maximum(s, torch.tensor(0.5)),
    "abs": lambda s, b, h, q, k: abs(q - k) * 0.1 + s.abs() + torch.abs(s),
    "power": lambda s, b, h, q, k: s**2 + 2**s + torch.pow(s, 3) + 1.5**s,
    "roots": lambda s, b, h, q, k: torch.sqrt(s) + torch.rsqrt(s) + s**0.5,
    "methods": lambda s, b, h, q, k: s.tanh().mul(2).add(1).neg(),
    "casts": lambda s, b, h, q, k: s + (k <= q).to(torch.float32) + q.float() + k.to(s.dtype) * (k > q),
    "alpha": lambda s, b, h, q, k: torch.add(s, k, alpha=2) - torch.sub(s, q, alpha=3),
    "reversed": lambda s, b, h, q, k: 1 - s + 2 * s - (1 / (s * s + 1)),
    "logic": lambda s, b, h, q, k: torch.where((k < q) & ~(k == 3) | torch.logical_and(q > 2, k > 5) ^ (k == q), s, 0.0),
    "bool arithmetic": lambda s, b, h, q, k: s * (k < q) + (k == q) * 2,
    "shifts": lambda s, b, h, q, k: s + ((q >> 1) - (k << 2) + ((q - k) >> 2)) + torch.bitwise_right_shift(k, 1),
    "bits": lambda s, b, h, q, k: s + ((q & 5) | (k ^ 3)),
    "sign": lambda s, b, h, q, k: s * torch.sign(q - k) + torch.sign(s),
    "more functions": lambda s, b, h, q, k: torch.reciprocal(abs(s) + 1) + torch.log10(abs(s) + 1) + torch.nn.functional.silu(s),
    "leaky": lambda s, b, h, q, k: torch.nn.functional.leaky_relu(s, 0.1) + s.masked_fill(q < k, -2.0),
    "logical": lambda s, b, h, q, k: torch.where(torch.logical_xor(q > 2, k > 2) | torch.logical_not(k < 5), s, s.new_zeros(())),
    "truth of numbers": lambda s, b, h, q, k: torch.where(torch.logical_and(q, k), s, 0.0) + (q - k).bool() * 2,
    "chosen numbers": lambda s, b, h, q, k: s + torch.where(k < 3, 1, 0) + torch.where(q < 3, torch.full_like(k, 7), k),
    "extrema of three": lambda s, b, h, q, k: torch.max(s, torch.min(q, k) * 0.5) + torch.fmin(s, -s),
    "closure": (lambda w, c: lambda s, b, h, q, k: s * c + (k - q) * w)(3, 0.5),
    "scaled twice": lambda s, b, h, q, k: s * 2.0 * (h + 1) / 3.0,
    "constant": lambda s, b, h, q, k: 1.0,
}


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", SCORES)
def test_scores_agree_with_pytorch(name: str) -> None:
    agrees(SCORES[name], positive=name in ("log", "roots", "power"))


def test_divisions_by_what_is_the_same_in_a_block_are_multiplications() -> None:
    assert agrees(lambda s, b, h, q, k: torch.tanh(s / 50.0)) == "tanh(S * (scale / 50.0))"


def test_a_positive_factor_leaves_the_score() -> None:
    cap = 20.0
    traced = trace(Specification("cap", score_mod=lambda s, b, h, q, k: cap * torch.tanh(s / cap)))
    assert (show(traced.score), show(traced.factor)) == ("tanh(S * (scale / cap))", "cap * LOG2E")


FACTORS = torch.ones(4)


@pytest.mark.parametrize(
    ("mod", "factor"),
    [
        (lambda s, b, h, q, k: s * FACTORS[h].clamp(min=0.5), "scale * max(FACTORS[h], 0.5) * LOG2E"),
        (lambda s, b, h, q, k: s * FACTORS[h].clamp(min=0.0), "LOG2E"),
        (lambda s, b, h, q, k: s * FACTORS[h], "LOG2E"),
    ],
)
def test_a_captured_factor_leaves_the_score_if_it_is_at_least_a_positive_number(mod: Any, factor: str) -> None:
    traced = trace(Specification("scaled", score_mod=mod))
    assert show(traced.factor) == factor and (show(traced.score) == "S") == (factor != "LOG2E")


def test_a_negative_factor_stays() -> None:
    assert "* -2.0" in agrees(lambda s, b, h, q, k: -2.0 * torch.tanh(s))


def test_score_of_minus_infinity_becomes_a_mask() -> None:
    traced = trace(Specification("masked", score_mod=lambda s, b, h, q, k: torch.where(q >= k, s, -float("inf"))))
    assert traced.keep is not None and show(traced.keep) == "q >= k" and show(traced.score) == "S * scale"


# ---- capturing
def test_numbers_become_run_time_parameters() -> None:
    window, slope = 12, 0.5
    traced = trace(Specification("w", lambda b, h, q, k: q - k <= window, lambda s, b, h, q, k: s + slope * k))
    assert [(p.name, p.dtype, p.value) for p in traced.parameters] == [("slope", F32, 0.5), ("window", I32, 12)]


def test_an_infinite_number_is_part_of_the_program() -> None:
    """No launch takes an infinite scalar; as a floor it masks, as a bound it bounds nothing."""
    floor, bound = -math.inf, math.inf
    traced = trace(Specification("floor", score_mod=lambda s, b, h, q, k: torch.where(k <= q, s, floor)))
    assert traced.parameters == () and traced.keep is not None and show(traced.keep) == "k <= q"
    assert (
        "inf" in agrees(lambda s, b, h, q, k: torch.clamp(s, -bound, bound))
        and not trace(Specification("window", lambda b, h, q, k: q - k <= bound)).parameters
    )


@pytest.mark.parametrize("value", [math.nan, 1e39, -1e39, 2**31])
def test_a_number_that_no_kernel_holds_is_refused(value: float) -> None:
    with pytest.raises(CuirError, match="U417"):
        trace(Specification("plus", score_mod=lambda s, b, h, q, k: s + value))


def test_a_tensor_is_gathered_and_its_dims_are_its_own() -> None:
    table = torch.randn(4, 40)
    spec = Specification("bias", score_mod=lambda s, b, h, q, k: s + table[h, q - k + 20])
    assert agrees(spec.score_mod) == "S * scale + table[h, q - k + 20]"  # type: ignore[arg-type]
    assert [(p.name, p.rank) for p in trace(spec).parameters] == [("table", 2)]


def test_a_bool_tensor_and_a_half_tensor() -> None:
    flags, half = torch.tensor([True, False, True, True, False, True, True, False, True]), torch.randn(9).half()
    assert agrees(lambda s, b, h, q, k: torch.where(flags[k], s, s + half[k])) == "where(flags[k] != 0, S * scale, S * scale + half[k])"


def test_a_tensor_without_dims_is_read_when_the_kernel_runs() -> None:
    cap, window, on = torch.tensor(3.0), torch.tensor(4), torch.tensor(True)
    spec = Specification("tensors", lambda b, h, q, k: (q - k <= window) & on, lambda s, b, h, q, k: cap * torch.tanh(s / cap))
    traced = trace(spec)
    assert traced.keep is not None and show(traced.keep) == "(q - k <= window[0]) & (on[0] != 0)"
    assert {p.name: (p.rank, tuple(p.argument(spec, AT).shape)) for p in traced.parameters} == dict.fromkeys(
        ("cap", "window", "on"), (1, (1,))
    )  # type: ignore[union-attr]
    agrees(lambda s, b, h, q, k: cap * torch.tanh(s / cap) + torch.where(on, window, 0))
    expect_refusal("X121", lambda b, h, q, k: (q - k <= 3) if window > 3 else (q >= k), "window > 3", "only known when the kernel runs")


def test_elementwise_methods_of_a_tensor_and_its_shape() -> None:
    bias, flags = torch.arange(80).view(4, 20), torch.tensor([True, False] * 5)
    agrees(lambda s, b, h, q, k: s + bias.float()[h][q - k + 10] / bias.shape[1] + bias.size(0) + bias.ndim + len(bias) + bias.numel())
    agrees(lambda s, b, h, q, k: s * flags.to(torch.float32)[k] + bias.to(s.device).contiguous()[h, k] * flags[k].float() + bias[h].dim())
    agrees(lambda s, b, h, q, k: s + bias.bool()[h, k] + flags.int()[q])


def test_a_negative_constant_counts_from_the_end() -> None:
    slopes, bias = torch.arange(8) * 0.5, torch.arange(80).view(4, 20)
    assert agrees(lambda s, b, h, q, k: s + slopes[-1] + bias[-2][k]) == "S * scale + slopes[7] + cast(bias[2, k], f32)"
    agrees(lambda s, b, h, q, k: s + bias[h, -20] + slopes[len(slopes) - 9])
    expect_refusal("U416", lambda s, b, h, q, k: s + slopes[-9], "slopes[-9]", "`slopes` has 8 elements, and its element -9 is read")
    expect_refusal("U416", lambda s, b, h, q, k: s + bias[h, -21], "bias[h, -21]", "20 elements along dim 1, and its element -21")
    table = {"edges": lambda at: torch.zeros(at.N)}
    with pytest.raises(CuirError, match=r"U416.*`edges`, whose shape follows the lengths"):
        trace(Specification("following", score_mod=lambda s, b, h, q, k, *, edges: s + edges[-1], captured=table))


def test_complex_tensors_are_refused() -> None:
    table = torch.zeros(4, dtype=torch.complex64)
    with pytest.raises(CuirError, match=r"X120.*`table` holds torch.complex64"):
        trace(Specification("complex", score_mod=lambda s, b, h, q, k: s + table[h]))


def test_a_tensor_indexed_step_by_step() -> None:
    doc = torch.arange(18).view(2, 9) // 4
    assert agrees(lambda s, b, h, q, k: s + doc[b][k]) == "S * scale + cast(doc[b, k], f32)"


def test_combined_masks_as_in_attention_gym() -> None:
    def and_masks(*mods: Callable[..., Any]) -> Callable[..., Any]:
        def and_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            result = True
            for mod in mods:
                result = mod(b, h, q_idx, kv_idx) & result
            return result

        return and_mask

    def window_of(size: int) -> Callable[..., Any]:
        return lambda b, h, q_idx, kv_idx: q_idx - kv_idx <= size

    traced = trace(Specification("both", and_masks(lambda b, h, q, k: k <= q, window_of(5))))
    assert traced.keep is not None and show(traced.keep) == "(q - k <= size) & (k <= q)"
    assert [p.name for p in traced.parameters] == ["size"]


def test_combinations_of_flex_attention() -> None:
    from torch.nn.attention.flex_attention import and_masks, noop_mask, or_masks

    size = 7
    mask = or_masks(and_masks(lambda b, h, q, k: k <= q, lambda b, h, q, k: q - k <= size), lambda b, h, q, k: k == 0)
    traced = trace(Specification("flex", mask))
    assert traced.keep is not None and show(traced.keep) == "(k <= q) & (q - k <= size) | (k == 0)"
    assert [p.name for p in traced.parameters] == ["size"]
    assert trace(Specification("all", noop_mask)).keep is None


def test_callable_objects_and_methods() -> None:
    class Window:
        def __init__(self, size: int):
            self.size, self.flags = size, torch.arange(300) % 3 != 0

        def __call__(self, b: Any, h: Any, q: Any, k: Any) -> Any:
            return (q - k <= self.size) & self.flags[k]

        def open(self, b: Any, h: Any, q: Any, k: Any) -> Any:
            return q >= self.size

    window = Window(20)
    for mod, text in ((window, "(q - k <= size) & (flags[k] != 0)"), (window.open, "q >= size")):
        traced = trace(Specification("object", mod))
        assert traced.keep is not None and show(traced.keep) == text
    assert window.size == 20


class Kind(enum.Enum):
    LOCAL = 3


def test_objects_that_a_mod_closes_over() -> None:
    class Settings:
        def __init__(self) -> None:
            self.window, self.kind, self.itself = 20, Kind.LOCAL, self

        def mod(self, b: Any, h: Any, q: Any, k: Any) -> Any:
            return (q - k <= self.window) & (k >= 0 if self.itself.kind is Kind.LOCAL else k >= 9)

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias, self.inner = torch.nn.Parameter(torch.rand(4)), torch.nn.Linear(2, 2)
            self.register_buffer("doc", torch.arange(300))

        def mods(self) -> tuple[Any, Any]:
            return lambda b, h, q, k: self.doc[q] == self.doc[k], lambda s, b, h, q, k: s + self.bias[h]

    settings = Settings()
    assert show(trace(Specification("method", settings.mod)).keep) == "(q - k <= window) & (k >= 0)"  # type: ignore[arg-type]
    assert show(trace(Specification("closure", lambda b, h, q, k: k - q < settings.window)).keep) == "k - q < window"  # type: ignore[arg-type]
    assert settings.window == 20 and Kind.LOCAL.value == 3
    traced = trace(Specification("module", *Layer().mods()))
    assert [(p.rank, p.dtype) for p in traced.parameters] == [(1, F32), (1, I32)]


class _Holder:
    def __init__(self) -> None:
        self.slopes, self.size = torch.tensor([0.5, 0.25, 2.0, 1.0]), 3


HOLDER, TABLES, ROWS = _Holder(), {"slopes": torch.tensor([1.0, 2.0, 3.0, 4.0]), "size": 5}, [torch.tensor([1.0, 0.5, 0.25, 2.0])]


def test_tensors_that_objects_and_containers_of_the_file_hold() -> None:
    """The numbers beside them are constants, as all numbers of a file."""
    for mod in (
        lambda s, b, h, q, k: s * HOLDER.slopes[h] + HOLDER.size,
        lambda s, b, h, q, k: s * TABLES["slopes"][h] + TABLES["size"],
        lambda s, b, h, q, k: s + ROWS[0][h],
    ):
        agrees(mod)
        (result,) = trace(Specification("held", score_mod=mod)).parameters
        assert result.rank == 1 and result.dtype == F32


def test_partials_defaults_and_the_lengths() -> None:
    def mod(b: Any, h: Any, q: Any, k: Any, *, M: int, N: int, window: int = 4) -> Any:
        return q + (N - M) - k <= window

    traced = trace(Specification("p", functools.partial(mod)))
    assert traced.keep is not None and show(traced.keep) == "q + (N - M) - k <= window"


def test_a_number_that_decides_control_flow_is_part_of_the_program() -> None:
    def make(window: int) -> Callable[..., Any]:
        def mask_mod(b: Any, h: Any, q: Any, k: Any) -> Any:
            return (q - k <= window) & (k <= q) if window > 0 else k <= q

        return mask_mod

    some, empty = trace(Specification("w", make(3))), trace(Specification("w", make(0)))
    assert some.keep is not None and show(some.keep) == "(q - k <= 3) & (k <= q)" and not some.parameters
    assert empty.keep is not None and show(empty.keep) == "k <= q" and "`window`" in empty.notes[0]


def test_names_that_a_kernel_uses_are_avoided() -> None:
    S, b = 3, 4
    traced = trace(Specification("n", lambda _b, h, q, k: q - k <= S + b), reserved={"S", "b", "S_"})
    assert sorted(p.name for p in traced.parameters) == ["S_2", "b_"]


def test_mods_are_the_users_own_afterwards() -> None:
    window = 5

    def mask_mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        return q - k <= window

    trace(Specification("w", mask_mod))
    assert mask_mod(0, 0, 9, 4) is True


# ---- what cannot be traced
def expect_refusal(code: str, mod: Callable[..., Any], marked: str, says: str) -> None:
    """Tracing reports `code`, with the caret under `marked` in this file, and a message that names the operation."""
    kind = "mask_mod" if len(inspect.signature(mod).parameters) == 4 else "score_mod"
    with pytest.raises(CuirError) as caught:
        trace(Specification("bad", **{kind: mod}))
    result = caught.value.diagnostics[0]
    assert result.code == code and result.span is not None
    assert result.span.source.name == __file__ and result.span.text() == marked, result.render()
    assert says in result.message, result.message


def test_unknown_operations_name_themselves() -> None:
    expect_refusal("X120", lambda s, b, h, q, k: s + torch.lgamma(s), "torch.lgamma(s)", "`lgamma`")
    expect_refusal("X120", lambda s, b, h, q, k: s.cumsum(0), "s.cumsum(0)", "`cumsum`")
    table = torch.zeros(8)
    expect_refusal("X120", lambda s, b, h, q, k: s + table.add_(1)[k], "table.add_", "only reads")
    expect_refusal("X120", lambda s, b, h, q, k: s.add_(1), "s.add_", "in place")
    expect_refusal("X120", lambda s, b, h, q, k: s + q**k, "q**k", "a power of two integers")
    step = 0
    expect_refusal("X120", lambda s, b, h, q, k: s + q % step, "q % step", "`%` by step, which is 0")
    expect_refusal("X120", lambda s, b, h, q, k: s[0], "s[0]", "no elements")


def test_control_flow_on_indices_is_refused() -> None:
    expect_refusal("X121", lambda b, h, q, k: k <= q and q < 5, "k <= q and q < 5", "`and`")
    expect_refusal("X121", lambda b, h, q, k: q < k < 5, "q < k < 5", "chained comparison")
    expect_refusal("X121", lambda b, h, q, k: bool(k <= q), "bool(k <= q)", "only known when the kernel runs")
    expect_refusal("X121", lambda s, b, h, q, k: s * math.exp(s), "math.exp(s)", "math")


def test_rows_that_no_kernel_reads_are_refused() -> None:
    table, long = torch.zeros(4, 5), torch.zeros(4, 300)
    expect_refusal("X120", lambda s, b, h, q, k: s + long[h].sum(), "long[h].sum()", "300 elements are summed")
    expect_refusal("X120", lambda s, b, h, q, k: s + torch.dot(long[h], long[q]), "torch.dot(long[h], long[q])", "300 elements are summed")
    expect_refusal("X120", lambda s, b, h, q, k: s + table[h].item(), "table[h].item()", "`item` of elements of shape [5]")
    expect_refusal("X123", lambda s, b, h, q, k: s + table[h], "table[h]", "found elements of shape [5]: `table[h]` has shape [5]")
    expect_refusal(
        "X123", lambda s, b, h, q, k: 1 + (s * table[h, :2]).exp()[:1], "table[h, :2]", "shape [1]: `table[h, :2]` has shape [2]"
    )
    expect_refusal("X123", lambda s, b, h, q, k: table[h], "table[h]", "`table[h]` has shape [5]")
    with pytest.raises(CuirError, match=r"a mod gives one number, found elements of shape \[4, 5\]\n"):
        trace(Specification("whole", score_mod=lambda s, b, h, q, k: s + table))
    expect_refusal("X120", lambda s, b, h, q, k: s + table[h, :k].sum(), "table[h, :k]", "only known when the kernel runs")
    expect_refusal("X120", lambda s, b, h, q, k: s + table.view(3, 7)[h, k], "table.view(3, 7)", "a view of [4, 5] as [3, 7]")
    expect_refusal(
        "X120",
        lambda s, b, h, q, k: s + torch.where(table[h] > 0, table[h, :3], 0.0).sum(),
        "torch.where(table[h] > 0, table[h, :3], 0.0)",
        "arrays of [5]",
    )
    expect_refusal("X120", lambda s, b, h, q, k: s + table[h].cumsum(0)[k], "table[h].cumsum(0)", "`cumsum` of a row")
    expect_refusal("X121", lambda s, b, h, q, k: s if (table[h] > 0) else s * 2, "table[h] > 0", "a row of a captured tensor")
    expect_refusal("X120", lambda s, b, h, q, k: s + table[h, k, 0], "table[h, k, 0]", "2 dims")
    expect_refusal("X120", lambda s, b, h, q, k: s + table[s, k], "table[s, k]", "indexed by integers")
    expect_refusal("X120", lambda s, b, h, q, k: s + table[h] @ long[q], "table[h] @ long[q]", "a product of [5] and [300]")
    expect_refusal("X120", lambda s, b, h, q, k: s << q, "s << q", "a shift is of integers")


def test_expressions_that_explode_are_refused() -> None:
    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        for _ in range(40):
            s = s * s + s
        return s

    expect_refusal("X120", mod, "s * s", "more than 2000 operations")


def test_failures_of_the_mod_keep_their_place() -> None:
    expect_refusal("X122", lambda s, b, h, q, k: s + [][0], "[][0]", "IndexError")


def test_a_mask_that_gives_numbers_is_refused() -> None:
    with pytest.raises(CuirError) as caught:
        trace(Specification("bad", lambda b, h, q, k: q - k))
    assert caught.value.diagnostics[0].code == "X123"


@examples(2)
@given(
    st.integers(0, 2**31 - 1),
    st.recursive(
        st.sampled_from(["s", "q", "k", "h", "1.5", "3"]),
        lambda c: st.tuples(st.sampled_from(["+", "-", "*", "where", "max", "tanh"]), c, c),
        max_leaves=8,
    ),
)
def test_random_arithmetic_agrees_with_pytorch(seed: int, tree: Any) -> None:
    def value(node: Any, e: dict[str, Any]) -> Any:
        if isinstance(node, str):
            return e[node] if node in e else float(node) if "." in node else int(node)
        op, a, b = node[0], value(node[1], e), value(node[2], e)
        if op == "where":
            return torch.where(e["k"] <= e["q"], a * e["one"], b * e["one"])
        if op == "max":
            return torch.maximum(a + 0 * e["s"], b + 0 * e["s"])
        return (
            torch.tanh(a * e["one"] - b)
            if op == "tanh"
            else {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: torch.tanh(a * e["one"]) * b}[op]()
        )

    spec = Specification(
        "random", score_mod=lambda s, b, h, q, k: value(tree, {"s": s, "q": q, "k": k, "h": h, "one": 1.0 + 0.0 * s}) + 0.0 * s
    )
    S = np.random.default_rng(seed).standard_normal((AT.M, AT.N))
    assert spec.score_mod is not None
    q, k = torch.arange(AT.M)[:, None], torch.arange(AT.N)[None, :]
    expected = spec.score_mod(torch.from_numpy(S) * 0.5, 0, torch.tensor(3), q, k).numpy()
    actual = scores(spec, 0, 3, S)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4 * max(1.0, float(np.abs(expected).max())))


def test_a_score_that_is_a_bool_is_refused() -> None:
    with pytest.raises(CuirError, match="X123") as caught:
        trace(Specification("five", score_mod=lambda b, h, q, k, extra: q >= k))
    assert "taken for a score_mod" in str(caught.value)


@pytest.mark.parametrize("mod", [lambda s, b, h, q, k: q * 0.5, lambda s, b, h, q, k: 1.5, lambda s, b, h, q, k: k * 0.25 + h])
def test_scores_from_the_indices_alone(mod: Any) -> None:
    spec = Specification("indices", score_mod=mod)
    S = np.random.default_rng(0).standard_normal((AT.M, AT.N))
    q, k = torch.arange(AT.M)[:, None], torch.arange(AT.N)[None, :]
    expected = np.broadcast_to(np.asarray(mod(torch.from_numpy(S), 0, 3, q, k)), S.shape)
    np.testing.assert_allclose(np.broadcast_to(scores(spec, 0, 3, S), S.shape), expected, rtol=1e-5)


def test_a_renamed_parameter_is_noted() -> None:
    traced = trace(Specification("window", mask_mod=lambda b, h, q, k, *, size=64: q - k <= size), reserved=("size",))
    assert [p.name for p in traced.parameters] == ["size_"]
    assert "`size` is a name of the kernel: its parameter is called `size_`" in traced.notes


def test_the_exponential_of_a_negative_square() -> None:
    """Its factors are taken together with log2(e), so that a pair costs one product less; of anything else log2(e) is a factor of its own."""
    wide = 30.0

    def bell(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + torch.exp(-(((q - k) / wide) ** 2))

    traced_mod = trace(Specification("bell", None, bell))
    assert "LOG2E" not in show(traced_mod.score)
    q, k = torch.arange(50, dtype=torch.int32)[:, None], torch.arange(70, dtype=torch.int32)[None]
    names = {"S": torch.zeros(50, 70), "scale": 1.0, "q": q, "k": k, **{p.name: p.value for p in traced_mod.parameters}}
    torch.testing.assert_close(evaluate(traced_mod.score, names), bell(torch.zeros(50, 70), 0, 0, q, k), rtol=2e-6, atol=1e-9)
    spelled: list[Any] = [
        lambda s, b, h, q, k: s + torch.exp(-0.5 * ((q - k) / wide).square()),
        lambda s, b, h, q, k: s + torch.exp(-((q - k) / wide) * ((q - k) / wide) / 2.0),
        lambda s, b, h, q, k: s + torch.exp(((q - k) / wide) ** 2 * -0.5),
    ]
    assert len({show(trace(Specification("bell", None, mod)).score) for mod in spelled}) == 1
    rest: list[Any] = [lambda s, b, h, q, k: torch.exp(-s * q), lambda s, b, h, q, k: torch.exp(s + q)]
    for second in rest:
        text = trace(Specification("other", None, second))
        assert "LOG2E" in show(text.score) + show(text.factor)


@pytest.mark.parametrize("mod", [lambda s, b, h, q, k: -0.1 * (q - k).abs(), lambda s, b, h, q, k: torch.where(h > 0, 2.0, 1.0)])
def test_a_mod_that_ignores_the_score_gives_numbers_where_products_overflow(mod: Any) -> None:
    spec = Specification("ignores", score_mod=mod)
    S = np.full((AT.M, AT.N), np.inf, dtype=np.float32)
    np.testing.assert_array_equal(scores(spec, 1, 2, S), scores(spec, 1, 2, np.zeros_like(S)))


def test_a_variable_that_is_bound_after_the_trace_and_not_read_before_is_no_error() -> None:
    flag = True

    def mod(b: Any, h: Any, q: Any, k: Any) -> Any:
        return q >= k if flag else q >= later

    assert show(trace(Specification("late", mod, None)).keep) == "q >= k"
    later = 3
    assert later == 3
