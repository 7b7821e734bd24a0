"""The derivative of a traced score is autograd's: of every operation that a mod may use, alone and chained, and for every variant of the corpus.

Derivatives at special points are PyTorch's, for every function of the table: at 0, bounds, equal operands, infinities, NaN and the largest numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import corpus
import cuir.attn.tracing.trace  # noqa: F401  (enters the functions)
from cuir.attn.splicing.derivative import differentiate, dscore, of_read
from cuir.attn.tracing.captured_rows import Array
from cuir.attn.tracing.derivative_marks import remove_marks
from cuir.attn.tracing.dispatch import tracing
from cuir.attn.tracing.mod_evaluator import CONSTANTS, evaluate
from cuir.attn.tracing.operation_table import FUNCTIONS as OPERATIONS_ON_ROWS
from cuir.attn.tracing.operation_table import HANDLERS
from cuir.attn.tracing.proxy import Proxy, lift, to
from cuir.attn.tracing.read_ranges import trace_without_clashes
from cuir.attn.tracing.trace import trace
from cuir.ops import OPERATORS, TABLE
from cuir.ops.derivatives import _RULES
from cuir.spec.specification import Specification
from cuir.syntax.nodes import Literal, Name
from cuir.syntax.printer import show
from cuir.syntax.types import F32
from cuir.text.diagnostics import CuirError
from tests.strategies.selection import examples

SCALE = 0.125
S = torch.linspace(-24, 24, 97) + 0.01  # no corner
SCORES: dict[str, Callable[..., Any]] = {
    "identity": lambda s: s,
    "linear": lambda s: 2.0 * s - 1.0,
    "quotient": lambda s: s / 3.0,
    "inverse": lambda s: 1.0 / (s + 7.5),
    "product": lambda s: s * (s - 1.0),
    "soft cap": lambda s: 2.0 * torch.tanh(s / 2.0),
    "sine": lambda s: torch.sin(s) + torch.cos(2 * s),
    "atan": lambda s: torch.atan(s),
    "exp": lambda s: torch.exp(s * 0.5),
    "log1p": lambda s: torch.log1p(s * s),
    "log": lambda s: torch.log(s * s + 0.5),
    "sqrt": lambda s: torch.sqrt(s * s + 1.0),
    "abs": lambda s: torch.abs(s) - s,
    "relu": lambda s: torch.relu(s) * 0.5 + s,
    "clamp": lambda s: s.clamp(-1.5, 2.0),
    "minimum": lambda s: torch.minimum(s, 1.0 - s),
    "maximum": lambda s: torch.maximum(s * 2.0, s * s),
    "where": lambda s: torch.where(s > 0.5, s, 0.1 * s),
    "gelu": lambda s: torch.nn.functional.gelu(s),
    "erf": lambda s: torch.erf(s) - torch.erfc(0.5 * s),
    "sigmoid": lambda s: torch.sigmoid(s),
    "softplus": lambda s: torch.nn.functional.softplus(s),
    "power": lambda s: torch.pow(torch.abs(s) + 0.5, 1.7),
    "of a power": lambda s: torch.pow(torch.full_like(s, 1.3), s),
    "fmod": lambda s: torch.fmod(s, 1.7),
    "jumps": lambda s: s + torch.floor(s) - torch.round(s),
    "cube": lambda s: s**3,
}


def derivative_of(mod: Callable[..., Any]) -> torch.Tensor:
    """dscore, evaluated."""
    traced = trace(Specification("score", None, lambda s, b, h, q, k: mod(s)))
    value = evaluate(dscore(traced.score, traced.factor), {"S": S, "scale": SCALE, "inf": torch.inf, **CONSTANTS})
    return torch.as_tensor(value).expand(S.shape)


def autograd_of(mod: Callable[..., Any]) -> torch.Tensor:
    s = (S.double() * SCALE).requires_grad_()
    return torch.autograd.grad(mod(s).sum(), s)[0]


@pytest.mark.parametrize("name", SCORES)
def test_is_autograds(name: str) -> None:
    torch.testing.assert_close(derivative_of(SCORES[name]).double(), autograd_of(SCORES[name]), rtol=2e-4, atol=2e-5)


@examples(2)
@given(
    st.sampled_from(sorted(set(SCORES) - {"jumps", "fmod", "inverse", "exp", "cube"})),
    st.sampled_from(["soft cap", "linear", "sigmoid", "sine", "sqrt", "relu"]),
)
def test_of_one_after_another(inner: str, outer: str) -> None:
    def mod(s: Any) -> Any:
        return SCORES[outer](SCORES[inner](s))

    torch.testing.assert_close(derivative_of(mod).double(), autograd_of(mod), rtol=2e-3, atol=2e-4)


LEARNED = torch.tensor([0.7])
OF_READS: dict[str, Callable[..., Any]] = {
    "soft cap": lambda s, t: t * torch.tanh(s / t),
    "twice": lambda s, t: s * t + torch.sin(t),
    "sigmoid": lambda s, t: s * torch.sigmoid(t),
    "where": lambda s, t: torch.where(s > t, s * t, t * t),
    "power": lambda s, t: torch.pow(torch.abs(s) + 0.5, t),
    "clamp": lambda s, t: torch.minimum(s, t) + t,
    "jumps": lambda s, t: s + torch.floor(t) * t,
}


@pytest.mark.parametrize("name", OF_READS)
def test_of_a_captured_element(name: str) -> None:
    traced = trace(Specification("score", None, lambda s, b, h, q, k: OF_READS[name](s, LEARNED[0])))
    (read,) = traced.reads
    names = {"S": S, "scale": SCALE, "inf": torch.inf, **CONSTANTS, traced.parameters[0].name: LEARNED}
    result = torch.as_tensor(evaluate(of_read(traced.score, traced.factor, read), names)).expand(S.shape)
    exact = torch.func.jacfwd(lambda t: OF_READS[name](S.double() * SCALE, t))(LEARNED[0].double())
    torch.testing.assert_close(result.double(), exact.expand(S.shape), rtol=2e-4, atol=2e-5)


def test_every_function_of_floats_has_a_rule() -> None:
    """A function without one chooses, converts, compares, returns an operand, or is no function of floats."""
    from cuir.syntax.types import F32

    entries = [op for op in (*TABLE.values(), *OPERATORS.values()) if op.evaluate is not None and op.traits.elementwise]
    for op in entries:
        expected_values = op.traits.chooses or op.traits.converts or op.traits.compares or op.traits.extremum or op.traits.votes
        of_floats = op.evaluate is not None and op.evaluate.tile(F32) is not None
        assert op.name in _RULES or expected_values or not of_floats, op.name


def test_what_does_not_depend_on_the_product_has_none() -> None:
    assert dscore(Name("bias"), Name("LOG2E")) == Literal(0.0)


@pytest.mark.parametrize(
    ("variant", "text"),
    [
        ("causal", "1.0"),
        ("alibi", "1.0"),
        ("relative_position_table", "1.0"),
        ("softcap", "1.0 - tanh(S * (scale / cap)) * tanh(S * (scale / cap))"),
    ],
)
def test_of_the_corpus(variant: str, text: str) -> None:
    traced = trace_without_clashes(corpus.specification(variant)())
    assert show(dscore(traced.score, traced.factor)) == text


def test_an_unknown_one_is_refused() -> None:
    from cuir.syntax.nodes import Call

    with pytest.raises(CuirError, match="X109"):
        dscore(Call(Name("row_max"), (Name("S"),)), Literal(1.0))


F = torch.nn.functional
LARGEST = torch.finfo(torch.float32).max
POINTS = [
    0.0,
    0.25,
    -0.25,
    0.75,
    1.0,
    -1.0,
    2.0,
    3.0,
    -3.0,
    6.0,
    20.0,
    -120.0,
    1e30,
    -1e30,
    LARGEST,
    -LARGEST,
    torch.inf,
    -torch.inf,
    torch.nan,
]
X, Y = (t.contiguous() for t in torch.meshgrid(torch.tensor(POINTS), torch.tensor(POINTS), indexing="ij"))

# by a name of the operation; the bounds that are written here are among the points
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "truediv": lambda x, y: x / y, "div": lambda x, y: torch.div(x, y, rounding_mode="trunc"), "neg": lambda x, y: -x,
    "pos": lambda x, y: +x, "abs": lambda x, y: abs(x), "square": lambda x, y: torch.square(x), "reciprocal": lambda x, y: torch.reciprocal(x), "pow": torch.pow, "mod": torch.remainder, "fmod": torch.fmod,
    "maximum": torch.maximum, "minimum": torch.minimum, "fmax": torch.fmax, "fmin": torch.fmin, "relu": lambda x, y: torch.relu(x), "leaky_relu": lambda x, y: F.leaky_relu(x, 0.25),
    "clamp": lambda x, y: torch.clamp(x, -1.0, 2.0), "clamp_min": lambda x, y: x.clamp_min(y), "clamp_max": lambda x, y: x.clamp_max(y), "where": lambda x, y: torch.where(x < y, x, y),
    "masked_fill": lambda x, y: x.masked_fill(x > 0, -2.0), "float": lambda x, y: x.float() if isinstance(x, Proxy) else x * 1, "half": lambda x, y: x.half().float() if isinstance(x, Proxy) else x * 1,
    "bfloat16": lambda x, y: x.bfloat16().float() if isinstance(x, Proxy) else x * 1, "to": lambda x, y: x.to(torch.float32) if isinstance(x, Proxy) else x * 1, "type_as": lambda x, y: x.type_as(y),
    "sqrt": lambda x, y: torch.sqrt(x), "rsqrt": lambda x, y: torch.rsqrt(x), "exp": lambda x, y: torch.exp(x), "exp2": lambda x, y: torch.exp2(x), "expm1": lambda x, y: torch.expm1(x),
    "log": lambda x, y: torch.log(x), "log2": lambda x, y: torch.log2(x), "log10": lambda x, y: torch.log10(x), "log1p": lambda x, y: torch.log1p(x), "logaddexp": torch.logaddexp, "logit": lambda x, y: torch.logit(x, 0.25),
    "xlogy": torch.xlogy, "ldexp": torch.ldexp, "sin": lambda x, y: torch.sin(x), "cos": lambda x, y: torch.cos(x), "tan": lambda x, y: torch.tan(x), "asin": lambda x, y: torch.asin(x), "acos": lambda x, y: torch.acos(x),
    "atan": lambda x, y: torch.atan(x), "atan2": torch.atan2, "sinc": lambda x, y: torch.sinc(x), "deg2rad": lambda x, y: torch.deg2rad(x), "rad2deg": lambda x, y: torch.rad2deg(x), "hypot": torch.hypot,
    "sinh": lambda x, y: torch.sinh(x), "cosh": lambda x, y: torch.cosh(x), "tanh": lambda x, y: torch.tanh(x), "asinh": lambda x, y: torch.asinh(x), "acosh": lambda x, y: torch.acosh(x), "atanh": lambda x, y: torch.atanh(x),
    "erf": lambda x, y: torch.erf(x), "erfc": lambda x, y: torch.erfc(x), "floor": lambda x, y: torch.floor(x), "ceil": lambda x, y: torch.ceil(x), "trunc": lambda x, y: torch.trunc(x), "round": lambda x, y: torch.round(x),
    "frac": lambda x, y: torch.frac(x), "sign": lambda x, y: torch.sign(x), "nan_to_num": lambda x, y: torch.nan_to_num(x), "copysign": torch.copysign, "lerp": lambda x, y: torch.lerp(x, y, 0.25),
    "addcmul": lambda x, y: torch.addcmul(x, x, y), "addcdiv": lambda x, y: torch.addcdiv(x, x, y), "gelu": lambda x, y: F.gelu(x), "softplus": lambda x, y: F.softplus(x, 2, 6), "log_sigmoid": lambda x, y: F.logsigmoid(x),
    "sigmoid": lambda x, y: torch.sigmoid(x), "silu": lambda x, y: F.silu(x), "mish": lambda x, y: F.mish(x), "elu": lambda x, y: F.elu(x, 0.5), "selu": lambda x, y: F.selu(x), "celu": lambda x, y: F.celu(x, 2.0),
    "hardtanh": lambda x, y: F.hardtanh(x, -1.0, 2.0), "relu6": lambda x, y: F.relu6(x), "hardsigmoid": lambda x, y: F.hardsigmoid(x), "hardswish": lambda x, y: F.hardswish(x), "softsign": lambda x, y: F.softsign(x),
    "threshold": lambda x, y: F.threshold(x, 1.0, -1.0), "detach": lambda x, y: x.detach() * y,
    "prelu": lambda x, y: torch.prelu(x, y) if isinstance(x, Proxy) else torch.where(x > 0, x, y * x), "tanhshrink": lambda x, y: F.tanhshrink(x), "softshrink": lambda x, y: F.softshrink(x, 1.0), "hardshrink": lambda x, y: F.hardshrink(x, 1.0),
}  # fmt: skip
MORE: dict[str, Callable[..., Any]] = {  # other arguments
    "maximum with 0": lambda x, y: torch.maximum(x, torch.zeros_like(x)), "minimum of a sum": lambda x, y: torch.minimum(x + y, x * 2.0), "clamp from below": lambda x, y: x.clamp(min=0.0), "clamp from above": lambda x, y: x.clamp(max=2.0),
    "clamp between operands": lambda x, y: x.clamp(torch.full_like(x, -1.0), y), "clamp by a sum": lambda x, y: (x - y).clamp(y, x), "gelu by tanh": lambda x, y: F.gelu(x, approximate="tanh"), "logit without bounds": lambda x, y: torch.logit(x),
    "power of 0.5": lambda x, y: x**0.5, "power of -0.5": lambda x, y: x**-0.5, "power of 2.5": lambda x, y: x**2.5, "power of 0": lambda x, y: x**0.0 + x, "cube": lambda x, y: x**3, "power of a number": lambda x, y: 2.0**x,
    "softplus": lambda x, y: F.softplus(x), "elu": lambda x, y: F.elu(x), "leaky relu, negative": lambda x, y: F.leaky_relu(x, -1.0), "threshold at 0": lambda x, y: F.threshold(x, 0.0, 0.0), "nested": lambda x, y: torch.relu(F.logsigmoid(x) + 1.0),
    "of a difference": lambda x, y: torch.asinh(x - y), "a product of choices": lambda x, y: torch.relu(x - 1.0) * torch.maximum(x, y), "a root of relu": lambda x, y: torch.sqrt(torch.relu(x)),
    "a root of what is chosen": lambda x, y: torch.sqrt(torch.where(x > y, x - y, 0.0)), "a logarithm of a clamp": lambda x, y: torch.log(x.clamp(0.0, 2.0)), "a root of a maximum": lambda x, y: torch.rsqrt(torch.maximum(x, y)),
}  # fmt: skip
OF_NAN: dict[str, Callable[..., Any]] = {  # made of functions, and asked of NaN, too
    "maximum of two functions": lambda x, y: torch.maximum(x * 2.0, x * y), "minimum of two functions": lambda x, y: torch.minimum(x - y, x * 3.0),
    "maximum of three": lambda x, y: torch.maximum(torch.maximum(x, x * y), y * 2.0), "a minimum of shares": lambda x, y: torch.minimum(x * 0.25, torch.minimum(y, x)),
}  # fmt: skip
SCALAR = {
    "hardtanh",
    "relu6",
    "softshrink",
    "hardshrink",
}  # of NaN PyTorch's vectorised code on CPUs gives 0; its scalar code and its GPU kernels give 1
WITHOUT = {"floordiv", "and", "or", "xor", "rshift", "lshift", "logical_and", "logical_or", "logical_xor", "invert", "logical_not", "eq", "ne", "lt", "le", "gt", "ge", "int", "bool", "ones_like", "zeros_like",
           "full_like", "isnan", "isinf", "isfinite", "isposinf", "isneginf", "isclose", "new_tensor", "heaviside"}  # fmt: skip  # PyTorch differentiates them by no float
ROWS: dict[str, Callable[[Any], Any]] = {  # of a row of four
    "sum": lambda r: r.sum(-1), "mean": lambda r: r.mean(-1), "prod": lambda r: r.prod(-1), "amax": lambda r: r.amax(-1), "amin": lambda r: r.amin(-1), "max": lambda r: r.max(-1).values, "min": lambda r: r.min(-1).values,
    "norm": lambda r: r.norm(dim=-1), "dot": lambda r: r.dot(r) if isinstance(r, Array) else (r * r).sum(-1), "inner": lambda r: r.inner(r) if isinstance(r, Array) else (r * r).sum(-1),
    "vdot": lambda r: r.vdot(r) if isinstance(r, Array) else (r * r).sum(-1), "matmul": lambda r: r @ r if isinstance(r, Array) else (r * r).sum(-1), "mm": lambda r: r.mm(r) if isinstance(r, Array) else (r * r).sum(-1),
    "vector_norm": lambda r: torch.linalg.vector_norm(r, 3, -1), "linalg_vector_norm": lambda r: torch.linalg.vector_norm(r, 1.5, -1), "linalg_norm": lambda r: torch.linalg.norm(r, 0.5, -1),
    "linalg_matrix_norm": lambda r: torch.linalg.matrix_norm(r.unflatten(-1, (2, 2)), torch.inf), "linalg_vecdot": lambda r: torch.linalg.vecdot(r, r), "dist": lambda r: torch.dist(r[:2], r[2:]) if isinstance(r, Array) else (r[..., :2] - r[..., 2:]).norm(dim=-1),
    "pairwise_distance": lambda r: F.pairwise_distance(r[..., :2], r[..., 2:], eps=0.0), "normalize": lambda r: F.normalize(r, dim=-1)[..., 1], "cosine_similarity": lambda r: F.cosine_similarity(r[..., :2], r[..., 2:], -1),
    "logsumexp": lambda r: r.logsumexp(-1), "softmax": lambda r: r.softmax(-1)[..., 1], "softmin": lambda r: F.softmin(r, -1)[..., 2], "log_softmax": lambda r: torch.log_softmax(r, -1)[..., 0],
    "var": lambda r: r.var(-1), "std": lambda r: r.std(-1), "var_mean": lambda r: sum(torch.var_mean(r, -1)), "std_mean": lambda r: sum(torch.std_mean(r, -1, correction=0)),
    "layer_norm": lambda r: F.layer_norm(r, (4,))[..., 1], "rms_norm": lambda r: F.rms_norm(r, (4,), eps=1e-5)[..., 0],
    "linear": lambda r: F.linear(r, like(r, [[1.0, -2.0, 0.5, 3.0]]))[..., 0], "einsum": lambda r: torch.einsum("i,i->", r, r) if isinstance(r, Array) else (r * r).sum(-1),
    "outer": lambda r: torch.outer(r, r)[0, 1] if isinstance(r, Array) else r[..., 0] * r[..., 1], "ger": lambda r: r.ger(r)[2, 3] if isinstance(r, Array) else r[..., 2] * r[..., 3],
    "mv": lambda r: r.mv(r) if isinstance(r, Array) else (r * r).sum(-1),
}  # fmt: skip
MORE_ROWS: dict[str, Callable[[Any], Any]] = {
    "max of all": lambda r: r.max() if isinstance(r, Array) else r.amax(-1), "min of all": lambda r: r.min() if isinstance(r, Array) else r.amin(-1), "amax of relu": lambda r: torch.relu(r).amax(-1),
    "amin of maxima": lambda r: torch.maximum(r, 1.0 - r).amin(-1), "order 1": lambda r: torch.linalg.vector_norm(r, 1, -1), "order 0": lambda r: torch.linalg.vector_norm(r, 0, -1) + r[..., 0], "order inf": lambda r: torch.linalg.vector_norm(r, torch.inf, -1),
    "order -inf": lambda r: torch.linalg.vector_norm(r, -torch.inf, -1), "order -1": lambda r: torch.linalg.vector_norm(r, -1, -1), "norm of zeros": lambda r: (r[..., :3] - r[..., :3]).norm(dim=-1) + r[..., 0],
    "order 3 of two": lambda r: torch.linalg.vector_norm(r[..., :2], 3, -1), "order 0.5 of two": lambda r: torch.linalg.vector_norm(r[..., 1:3], 0.5, -1), "norm of two": lambda r: r[..., :2].norm(dim=-1), "norm of relu": lambda r: torch.relu(r).norm(dim=-1),
    "biased deviation": lambda r: r.std(-1, unbiased=False), "deviation of equal elements": lambda r: r[..., 1:3].std(-1) + r[..., 0], "softmax of two": lambda r: r[..., :2].softmax(-1)[..., 0],
    "layer norm with weight": lambda r: F.layer_norm(r[..., :2], (2,), like(r, [2.0, -1.0]), like(r, [0.5, 0.25]))[..., 1], "logsumexp of two": lambda r: r[..., 1:3].logsumexp(-1),
    "cosine below its eps": lambda r: F.cosine_similarity(r[..., :2], r[..., 2:], -1, 1.5),
}  # fmt: skip
SIZES_AND_PLACES = {
    "ndim", "dim", "size", "numel", "device", "T", "mT", "unsqueeze", "squeeze", "permute", "transpose", "swapaxes", "swapdims", "t", "expand", "expand_as", "broadcast_to", "reshape", "view", "flatten", "unflatten",
    "select", "narrow", "flip", "unbind", "any", "all", "count_nonzero", "equal", "stack", "cat", "concat", "concatenate", "hstack", "vstack", "row_stack", "gather", "take", "take_along_dim", "index_select", "embedding",
    "one_hot", "isin", "bucketize", "searchsorted", "argmax", "argmin", "split", "chunk", "roll", "repeat", "tile", "repeat_interleave", "ravel", "tril", "triu", "getitem",
}  # fmt: skip  # elements as they are, at other places, and numbers that are not differentiated


def like(row: Any, values: list[Any]) -> torch.Tensor:
    return torch.tensor(values, dtype=row.dtype if isinstance(row, torch.Tensor) else torch.float32)


def test_every_function_is_tried() -> None:
    tried = {HANDLERS[n] for n in (*FUNCTIONS, *WITHOUT)}
    assert not {n for n, handler in HANDLERS.items() if handler not in tried}
    assert not OPERATIONS_ON_ROWS.keys() - ROWS.keys() - SIZES_AND_PLACES


def check(f: Callable[..., Any], varies: bool, several: bool, scalar: bool = False) -> None:
    """Compares derivatives by both operands with autograd in float64, or in float32 where intermediate numbers leave its range. several: f is made of functions, of which neither NaN nor what overflows on the way is asked. scalar: compare with PyTorch's scalar code."""
    with tracing():
        e = to(f(*(Proxy(Name(n), F32, varies) for n in "xy")), F32).expr
    names = {"x": X, "y": Y, "k": torch.zeros((), dtype=torch.int32)}
    ours = [torch.as_tensor(evaluate(differentiate(e, Name(n)), names)).float().expand(X.shape) for n in "xy"]
    value = torch.as_tensor(evaluate(remove_marks(e), names)).float().expand(X.shape)
    size = torch.maximum(X.abs(), Y.abs())
    overflow = several & (size > 1e18) & size.isfinite()  # of squares on the way
    expected = [_autograd(f, dtype, scalar) for dtype in (torch.float64, torch.float32)]
    for n, result, exact, single in zip("xy", ours, *expected, strict=True):
        good = _close(result, exact.float()) | _close(result, single)
        unknown = exact.isnan() & (
            value.isnan() | ~X.isfinite() | ~Y.isfinite()
        )  # PyTorch has no number, of an infinity or of what is none itself
        good |= overflow | unknown | (value.isnan() & (result.isnan() | several))
        first = [(x, y, a, b) for x, y, a, b, g in zip(*(t.flatten().tolist() for t in (X, Y, result, exact, good))) if not g]
        assert not first, f"by {n}: (x, y, ours, PyTorch's) {first[:8]}, {len(first)} in all"


def _autograd(f: Callable[..., Any], dtype: torch.dtype, scalar: bool) -> tuple[torch.Tensor, ...]:
    leaves = [t.to(dtype, copy=True).requires_grad_() for t in (X, Y)]
    value = f(*(torch.stack([t, t], -1)[..., 0] if scalar else t for t in leaves))  # elements apart are no vector
    if not value.requires_grad:
        return torch.zeros_like(X, dtype=dtype), torch.zeros_like(X, dtype=dtype)
    return torch.autograd.grad(value.sum(), leaves, allow_unused=True, materialize_grads=True)


def _close(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.isclose(a, b, rtol=3e-4, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("varies", [True, False])
def test_derivatives_are_pytorchs(varies: bool) -> None:
    wrong = []
    for name, f in (*FUNCTIONS.items(), *MORE.items(), *OF_NAN.items()):
        try:
            check(f, varies, name in MORE, name in SCALAR)
        except AssertionError as error:
            wrong.append(f"{name}: {error}".splitlines()[0])
    assert not wrong, "\n".join(wrong)


def _of_row(f: Callable[[Any], Any]) -> Callable[..., Any]:
    def of(x: Any, y: Any) -> Any:
        if isinstance(x, Proxy):
            row = [x, y, y, lift(1.0)]
            return f(Array(torch.Size([4]), lambda index: row[index[0]]))
        return f(torch.stack([x, y, y, torch.ones_like(x)], -1))

    return of


def test_derivatives_of_rows_are_pytorchs() -> None:
    wrong = []
    for name, f in {**ROWS, **MORE_ROWS}.items():
        try:
            check(_of_row(f), True, True)
        except AssertionError as error:
            wrong.append(f"{name}: {error}".splitlines()[0])
    assert not wrong, "\n".join(wrong)


def test_the_evaluators_gradients_are_the_derivatives() -> None:
    """Verification differentiates mods that work on rows by evaluating their expressions."""
    of_rows = {f"{name} of a row": _of_row(f) for name, f in (*ROWS.items(), *MORE_ROWS.items())}
    finite = [t[:15, :15].contiguous() for t in (X, Y)]  # points but infinities and NaN
    wrong = []
    for name, f in (*FUNCTIONS.items(), *of_rows.items()):
        with tracing():
            e = to(f(*(Proxy(Name(n), F32, True) for n in "xy")), F32).expr
        leaves = {n: t.clone().requires_grad_() for n, t in zip("xy", finite, strict=True)}
        value = torch.as_tensor(evaluate(e, leaves)).expand(15, 15)
        result = [torch.zeros(15, 15)] * 2
        if value.requires_grad:
            result = list(torch.autograd.grad(value.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True))
        for n, gradient in zip("xy", result, strict=True):
            exact = torch.as_tensor(evaluate(differentiate(e, Name(n)), dict(zip("xy", finite, strict=True)))).float().expand(15, 15)
            requests = exact.isfinite() & gradient.isfinite()
            if not torch.allclose(gradient[requests], exact[requests], rtol=1e-3, atol=1e-6) or requests.sum() < 30:
                wrong.append(f"{name} by {n}: {int(requests.sum())} of 225")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("varies", [True, False])
def test_a_root_behind_a_choice_has_derivative_0_where_pytorchs_is_nan(varies: bool) -> None:
    """PyTorch multiplies the 0 of the branch that is not taken by the infinite slope of the root there."""
    roots: list[tuple[Callable[..., Any], float]] = [
        (lambda x: torch.where(x > 0, torch.sqrt(x), 0.0), 0.0),
        (lambda x: torch.sqrt(x).masked_fill(x <= 0, 0.0), 0.0),
        (lambda x: torch.where(x > 0, torch.log(x), 0.0), 0.0),
        (lambda x: torch.where(x == 0, 0.0, 1.0 / x), 0.0),
    ]
    for f, at in roots:
        x = torch.tensor([at], dtype=torch.float64, requires_grad=True)
        (expected,) = torch.autograd.grad(f(x).sum(), x)
        with tracing():
            e = to(f(Proxy(Name("x"), F32, varies)), F32).expr
        names = {"x": torch.tensor([at]), "k": torch.zeros((), dtype=torch.int32)}
        ours = torch.as_tensor(evaluate(differentiate(e, Name("x")), names))
        assert expected.isnan().all() and not ours.any(), (expected, ours)
