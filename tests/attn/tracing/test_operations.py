"""Operations of mods give in kernels what PyTorch gives, on special values; comparisons stay as written."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import cuir.attn.tracing.trace  # noqa: F401  (enters the operations)
from cuir.attn.masks.block_bounds import blocks
from cuir.attn.tracing.dispatch import tracing
from cuir.attn.tracing.mod_evaluator import evaluate
from cuir.attn.tracing.operation_table import HANDLERS
from cuir.attn.tracing.proxy import Proxy
from cuir.attn.tracing.trace import trace
from cuir.spec.specification import Lengths, Specification
from cuir.syntax.nodes import Name
from cuir.syntax.printer import show
from cuir.syntax.types import F32, I32

F = torch.nn.functional
VALUES = [
    0.0,
    -0.0,
    2.0**-149,
    -(2.0**-130),
    2.0**-126,
    1.0,
    -1.0,
    1 + 2.0**-23,
    0.1,
    2.5,
    -3.5,
    7.0,
    2.0**24,
    1e30,
    -3.4028234663852886e38,
    math.inf,
    -math.inf,
    math.nan,
]
WHOLE = [0, 1, -1, 2, -3, 7, 100, -129, 2**24 + 1, 2**30, 2**31 - 1, -(2**31)]
x, y = (t.contiguous() for t in torch.meshgrid(torch.tensor(VALUES), torch.tensor(VALUES), indexing="ij"))
i, j = (
    t.contiguous() for t in torch.meshgrid(torch.tensor(WHOLE, dtype=torch.int32), torch.tensor(WHOLE, dtype=torch.int32), indexing="ij")
)
TENSORS = {"x": x, "y": y, "i": i, "j": j, "k": torch.zeros((), dtype=torch.int32)}

# by a name of the operation; of x, y (f32) or i, j (i32) exactly what PyTorch gives
EXACT: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y + 0.1,
    "sub": lambda x, y: torch.sub(x, y) - torch.sub(y, 1.0, alpha=2),
    "mul": lambda x, y: x * y * 0.3,
    "truediv": lambda x, y: x / y,
    "neg": lambda x, y: -x,
    "pos": lambda x, y: +x,
    "abs": lambda x, y: abs(x),
    "square": lambda x, y: torch.square(x),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "max": torch.max,
    "min": torch.min,
    "clamp": lambda x, y: torch.clamp(x, -1.0, 2.0) + torch.clamp(x, min=0.5) * 0,
    "clip": lambda x, y: x.clip(max=1.5),
    "clamp_min": lambda x, y: x.clamp_min(0.25),
    "clamp_max": lambda x, y: x.clamp_max(0.25),
    "relu": lambda x, y: torch.relu(x),
    "sign": lambda x, y: torch.sign(x),
    "sgn": lambda x, y: torch.sgn(y),
    "where": lambda x, y: torch.where(x < y, x, 0.5),
    "masked_fill": lambda x, y: x.masked_fill(y > 0, -2.0),
    "leaky_relu": lambda x, y: F.leaky_relu(x, 0.5),
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "not_equal": lambda x, y: x.ne(0.1),
    "invert": lambda x, y: ~(x < y),
    "logical_not": lambda x, y: torch.logical_not(x),
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
    "and": lambda x, y: (x < 1) & (y < 1),
    "or": lambda x, y: (x < 1) | (y < 1),
    "xor": lambda x, y: (x < 1) ^ (y < 1),
    "bool": lambda x, y: x.bool(),
    "float": lambda x, y: x.float(),
    "to": lambda x, y: x.to(torch.bool),
    "type_as": lambda x, y: (x > 0).type_as(x),
    "ones_like": lambda x, y: torch.ones_like(x) * x,
    "zeros_like": lambda x, y: torch.zeros_like(x) - y,
    "full_like": lambda x, y: torch.full_like(x, 0.1) + x,
    "reciprocal": lambda x, y: torch.reciprocal(x),
    "pow": lambda x, y: x**3,
    "sqrt": lambda x, y: torch.sqrt(x),
    "floor": lambda x, y: torch.floor(x),
    "ceil": lambda x, y: x.ceil(),
    "trunc": lambda x, y: torch.trunc(x),
    "round": lambda x, y: torch.round(x),
    "frac": lambda x, y: torch.frac(y),
    "fmod": lambda x, y: torch.fmod(x.double(), y.double()).float(),
    "mod": lambda x, y: torch.remainder(x.double(), y.double()).float(),
    "floordiv": torch.floor_divide,
    "div": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "isnan": lambda x, y: torch.isnan(x),
    "isinf": lambda x, y: torch.isinf(x),
    "isfinite": lambda x, y: x.isfinite(),
    "isposinf": lambda x, y: torch.isposinf(x),
    "isneginf": lambda x, y: torch.isneginf(x),
    "nan_to_num": lambda x, y: torch.nan_to_num(x, 0.5) + y.nan_to_num(posinf=3.0),
    "heaviside": torch.heaviside,
    "copysign": lambda x, y: torch.copysign(x, torch.where(y == 0, 1.0, y.nan_to_num(1.0))),
    "lerp": lambda x, y: torch.lerp(x, y, 0.25) if isinstance(x, Proxy) else x + 0.25 * (y - x),
    "addcmul": lambda x, y: torch.addcmul(x, y, torch.full_like(y, 1.0)),
    "addcdiv": lambda x, y: torch.addcdiv(x, y, y),
    "hardtanh": lambda x, y: F.hardtanh(x, -0.5, 2.0),
    "relu6": lambda x, y: F.relu6(x),
    "softsign": lambda x, y: F.softsign(x),
    "threshold": lambda x, y: F.threshold(x, 0.25, -1.0),
    "isclose": lambda x, y: torch.isclose(x, y, 0.5, 0.25),
    "softshrink": lambda x, y: F.softshrink(x, 1.0),
    "hardshrink": lambda x, y: F.hardshrink(x, 1.0),
    "prelu": lambda x, y: torch.where(x > 0, x, y * x) if isinstance(x, torch.Tensor) else F.prelu(x, y),
    "new_tensor": lambda x, y: torch.where(x > y, x, x.new_tensor(-2.0)),
}
WHOLE_EXACT: dict[str, Callable[..., Any]] = {
    "add": lambda i, j: i + j,
    "sub": lambda i, j: i - j,
    "mul": lambda i, j: i * j,
    "truediv": lambda i, j: i / 3,
    "floordiv": lambda i, j: i // 7 + (i // -3),
    "mod": lambda i, j: i % 7 - i % -3,
    "neg": lambda i, j: -i,
    "abs": lambda i, j: abs(i),
    "maximum": torch.maximum,
    "fmin": torch.fmin,
    "clamp": lambda i, j: i.clamp(-2, 9),
    "sign": lambda i, j: torch.sign(i),
    "lt": lambda i, j: i < j,
    "ge": lambda i, j: i >= 0.5,
    "eq": lambda i, j: i == j * 1.0,
    "and": lambda i, j: i & j,
    "or": lambda i, j: i | j,
    "xor": lambda i, j: i ^ j,
    "half": lambda i, j: i.half().float() + 0.5,
    "bfloat16": lambda i, j: (i.bfloat16() * 3).float(),
    "invert": lambda i, j: ~i,
    "rshift": lambda i, j: (i >> 3) - (i >> (j & 15)),
    "lshift": lambda i, j: (i << 2) + ((i & 255) << (j & 15)),
    "bool": lambda i, j: i.bool(),
    "float": lambda i, j: i.float(),
    "where": lambda i, j: torch.where(i < j, i, j) + 1,
    "relu": lambda i, j: torch.relu(i),
    "div": lambda i, j: torch.div(i, 3, rounding_mode="floor") + torch.div(i, -7, rounding_mode="trunc"),
    "fmod": lambda i, j: torch.fmod(i, 7) + torch.fmod(i, -5),
    "remainder": lambda i, j: torch.remainder(i, -5),
    "floor": lambda i, j: torch.floor(i),
    "trunc": lambda i, j: i.trunc(),
    "round": lambda i, j: torch.round(i),
    "pow": lambda i, j: torch.where(abs(i) < 9, i, 2) ** 9,
}
CLOSE: dict[str, Callable[..., Any]] = {  # through exp2, log2 and tanh
    "exp2": lambda x, y: torch.exp2(x),
    "log2": lambda x, y: torch.log2(x),
    "tanh": lambda x, y: torch.tanh(x),
    "exp": lambda x, y: torch.exp(x.clamp(-50, 50)),
    "log": lambda x, y: torch.log(x),
    "log10": lambda x, y: torch.log10(x),
    "sqrt": lambda x, y: torch.sqrt(x.clamp(0.1, 100)),
    "rsqrt": lambda x, y: torch.rsqrt(x.clamp(0.1, 100)),
    "sigmoid": lambda x, y: torch.sigmoid(x.clamp(-50, 50)),
    "silu": lambda x, y: F.silu(x.clamp(-50, 50)),
    "sin": lambda x, y: torch.sin(x),
    "cos": lambda x, y: torch.cos(x),
    "tan": lambda x, y: torch.tan(x),
    "asin": lambda x, y: torch.asin(x),
    "acos": lambda x, y: torch.acos(x),
    "atan": lambda x, y: torch.atan(x),
    "atan2": lambda x, y: torch.atan2(x + 0.0, torch.where(y == 0, 1.0, y)),
    "sinh": lambda x, y: torch.sinh(x.clamp(-50, 50)),
    "cosh": lambda x, y: torch.cosh(x.clamp(-50, 50)),
    "asinh": lambda x, y: torch.asinh(x),
    "acosh": lambda x, y: torch.acosh(x),
    "atanh": lambda x, y: torch.atanh(x),
    "erf": lambda x, y: torch.special.erf(x),
    "erfc": lambda x, y: torch.special.erfc(x),
    "expm1": lambda x, y: torch.special.expm1(x.clamp(max=50)),
    "log1p": lambda x, y: torch.log1p(x),
    "pow": lambda x, y: torch.pow(x, torch.where(y == 0.5, 0.25, y)),
    "logaddexp": torch.logaddexp,
    "logit": lambda x, y: torch.logit(x, 0.01),
    "xlogy": torch.special.xlogy,
    "ldexp": lambda x, y: torch.ldexp(x, y.clamp(-20, 20)),
    "sinc": lambda x, y: torch.sinc(x.clamp(-9, 9)) + 1.0,
    "deg2rad": lambda x, y: torch.deg2rad(x),
    "rad2deg": lambda x, y: torch.rad2deg(x),
    "hypot": torch.hypot,
    "gelu": lambda x, y: (F.gelu(x.double().clamp(-4, 50)) + F.gelu(y.double().clamp(-2, 50), approximate="tanh")).float(),
    "softplus": lambda x, y: F.softplus(x) + F.softplus(y, beta=2, threshold=9),
    "log_sigmoid": lambda x, y: F.logsigmoid(x),
    "mish": lambda x, y: F.mish(x.clamp(min=-50)),
    "elu": lambda x, y: F.elu(x, 0.5),
    "selu": lambda x, y: F.selu(x),
    "celu": lambda x, y: F.celu(x, 2.0),
    "hardsigmoid": lambda x, y: F.hardsigmoid(x),
    "hardswish": lambda x, y: F.hardswish(x),
    "tanhshrink": lambda x, y: F.tanhshrink(x) + 1.0,
}
SEPARATE_TESTS = {"int": "test_conversions_to_integers", "detach": "tests/attn/api/test_learned.py"}


def test_every_operation_is_tried() -> None:
    tried = {HANDLERS[n] for n in (*EXACT, *WHOLE_EXACT, *CLOSE, *SEPARATE_TESTS)}
    missing = sorted({n for n, handler in HANDLERS.items() if handler not in tried})
    assert not missing


def test_no_field_hides_an_operation() -> None:
    assert not {f.name for f in fields(Proxy)} & set(HANDLERS)


def trace_mod(mod: Callable[..., Any], *names: str) -> torch.Tensor:
    with tracing():
        expression = mod(*(Proxy(Name(n), F32 if n in "xy" else I32, True) for n in names)).expr
    return torch.as_tensor(evaluate(expression, TENSORS))


@pytest.mark.parametrize("name", EXACT)
def test_floats(name: str) -> None:
    want, result = EXACT[name](x, y), trace_mod(EXACT[name], "x", "y")
    assert result.dtype == want.dtype
    torch.testing.assert_close(result.expand(want.shape), want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", WHOLE_EXACT)
def test_integers(name: str) -> None:
    want, result = WHOLE_EXACT[name](i, j), trace_mod(WHOLE_EXACT[name], "i", "j")
    assert result.dtype == want.dtype
    torch.testing.assert_close(result.expand(want.shape), want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", CLOSE)
def test_functions(name: str) -> None:
    want = CLOSE[name](x, y)
    torch.testing.assert_close(trace_mod(CLOSE[name], "x", "y"), want, rtol=3e-6, atol=2.0**-126, equal_nan=True)


TAILS = ("sinh", "cosh", "expm1", "elu", "mish", "softplus", "log_sigmoid", "gelu")  # whose exponent is rounded, by 88 units
CONSTRUCTORS = {
    "tan": torch.tan,
    "asin": torch.asin,
    "acos": torch.acos,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "asinh": torch.asinh,
    "acosh": torch.acosh,
    "atanh": torch.atanh,
    "expm1": torch.expm1,
    "log1p": torch.log1p,
    "rsqrt": torch.rsqrt,
    "gelu": F.gelu,
    "softplus": F.softplus,
    "log_sigmoid": F.logsigmoid,
    "mish": F.mish,
    "elu": F.elu,
    "erf": torch.erf,
    "erfc": torch.erfc,
    "sin": torch.sin,
    "cos": torch.cos,
    "atan": torch.atan,
    "sqrt": torch.sqrt,
}


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_formulas_keep_their_accuracy_over_all_magnitudes(name: str) -> None:
    """Against float64: where a result is tiny, near 1, where a sum cancels, and up to the ends of the range."""
    rng = torch.Generator().manual_seed(7)
    bits = torch.randint(-(2**31), 2**31, (20000,), generator=rng).to(torch.int32).view(torch.float32)
    sizes = torch.randn(20000, generator=rng) * 10.0 ** torch.randint(-6, 3, (20000,), generator=rng)
    near = 1 + torch.randn(5000, generator=rng) * 10.0 ** torch.randint(-7, 0, (5000,), generator=rng)
    values = torch.cat([bits, sizes, near, -near])
    exact = (
        CONSTRUCTORS[name](values.double()) if name != "gelu" else values.double() / 2 * torch.erfc(-values.double() / math.sqrt(2.0))
    )  # PyTorch's cancels
    values, exact = values[(away := exact.abs() > 2.0**-119) | exact.isnan()], exact[away | exact.isnan()]
    with tracing():
        expression = CONSTRUCTORS[name](Proxy(Name("x"), F32, True)).expr
    result = torch.as_tensor(evaluate(expression, {"x": values}))
    torch.testing.assert_close(result, exact.float(), rtol=3e-5 if name in TAILS else 2e-6, atol=0, equal_nan=True)


def test_conversions_to_integers() -> None:
    """PyTorch leaves open what a NaN and what lies outside gives; a kernel has 0 and the nearest end."""
    result = trace_mod(lambda x, y: x.to(torch.int32), "x", "y")
    inside = x.abs() < 2**31
    assert torch.equal(result[inside], x[inside].to(torch.int32))
    assert (result[x.isnan()] == 0).all() and (result[x >= 2**31] == 2**31 - 1).all() and (result[x <= -(2**31)] == -(2**31)).all()
    assert torch.equal(trace_mod(lambda x, y: (x < y).int(), "x", "y"), (x < y).int())


# ---- whole mods
AT = Lengths(B=1, H=2, HK=1, M=48, N=48)
TABLE = torch.tensor([*VALUES, *VALUES, *VALUES])[: AT.M]
QUOTA = torch.tensor([3.0, math.nan])


def evaluate_mask(mask_mod: Callable[..., Any]) -> torch.Tensor:
    """The traced mask [H, M, N], evaluated on tensors."""
    traced_mod = trace(Specification("test", mask_mod=mask_mod))
    assert traced_mod.keep is not None
    names = {p.name: p.argument(Specification("test", mask_mod=mask_mod), AT) for p in traced_mod.parameters}
    q, k = torch.arange(AT.M, dtype=torch.int32)[:, None], torch.arange(AT.N, dtype=torch.int32)
    lengths = {n: getattr(AT, n) for n in ("B", "H", "HK", "M", "N")}
    return torch.stack(
        [
            torch.as_tensor(evaluate(traced_mod.keep, {**names, **lengths, "b": 0, "h": h, "q": q, "k": k})).expand(AT.M, AT.N)
            for h in range(AT.H)
        ]
    )


def evaluate_by_pytorch(mask_mod: Callable[..., Any]) -> torch.Tensor:
    q, k = torch.arange(AT.M)[:, None], torch.arange(AT.N)
    return torch.stack([torch.as_tensor(mask_mod(torch.tensor(0), torch.tensor(h), q, k)).expand(AT.M, AT.N) for h in range(AT.H)])


MASKS: dict[str, Callable[..., Any]] = {
    "a difference": lambda b, h, q, k: q * 0.1 - k * 0.1 >= 0,
    "quotients": lambda b, h, q, k: q / 3.0 >= k / 3.0,
    "quotient and product": lambda b, h, q, k: q / 3.0 == q * (1 / 3.0),
    "two factors": lambda b, h, q, k: (q * 0.1) * 3.0 > k * 0.3,
    "in a condition": lambda b, h, q, k: torch.where(q * 0.1 * 3.0 > k * 0.3, q >= k, k / 7 * 7 != k),
    "maximum with a NaN": lambda b, h, q, k: torch.maximum(TABLE[q], TABLE[k]) > 0.5,
    "fmax with a NaN": lambda b, h, q, k: torch.fmax(TABLE[q], TABLE[k]) > 0.5,
    "negated": lambda b, h, q, k: ~(TABLE[q] < TABLE[k]),
    "clamped": lambda b, h, q, k: torch.clamp(TABLE[q] * 2, -1, 3) <= torch.relu(TABLE[k]),
    "a head's NaN": lambda b, h, q, k: (QUOTA[h] >= 2.0) | (k <= q),
    "cast": lambda b, h, q, k: (q * 0.7).to(torch.int32) >= k,
    "Python's numbers": (lambda a, c: lambda b, h, q, k: q * (a * c) >= k * 0.1 * c)(0.1, 3.0),
    "Python's comparison": (lambda a, c: lambda b, h, q, k: (q >= k) & (a + c > 0.3))(0.1, 0.2),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_are_computed_as_written(name: str) -> None:
    assert torch.equal(evaluate_mask(MASKS[name]), evaluate_by_pytorch(MASKS[name]))


@given(st.floats(0.0625, 8, width=32), st.floats(0.0625, 8, width=32), st.sampled_from(["*", "/"]))
def test_no_factor_moves_in_a_comparison(a: float, c: float, sign: str) -> None:
    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        return q * a * c >= k * a * c + a if sign == "*" else q / a / c >= (k + 1) / a / c

    assert torch.equal(evaluate_mask(mask), evaluate_by_pytorch(mask))


def test_factors_of_scores_are_taken_together_and_those_of_their_conditions_are_not() -> None:
    traced_mod = trace(Specification("test", score_mod=lambda s, b, h, q, k: torch.where(s / 3.0 > q * 0.5 * 0.1, s / 4.0 * 0.5, q / 8.0)))
    assert show(traced_mod.score) == "where(S * scale / 3.0 > cast(q, f32) * 0.5 * 0.1, S * (scale / 4.0 * 0.5), cast(q, f32) * 0.125)"


def test_a_negated_comparison_of_a_nan_is_not_the_flipped_one() -> None:
    """Blocks that no pair is dropped from are found by the opposite of the mask: with a NaN both comparisons are false."""
    traced_mod = trace(Specification("test", mask_mod=MASKS["a head's NaN"]))
    result = blocks(traced_mod.keep)
    assert result is not None and not any("QUOTA[h] < 2.0" in show(f) for f in result.functions.values())
