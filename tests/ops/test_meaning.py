"""Every operation on numbers gives the same wherever it is worked out: where constants fold, on scalars and tiles of the interpreter, of traced masks,
in contracts; and that is what NumPy and PyTorch give. The operations are those of the table."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import cuir
from cuir.attn.tracing.mod_evaluator import evaluate
from cuir.attn.verification.splice_evaluator import Evaluator
from cuir.checking.fold import fold
from cuir.ops import OPERATORS, TABLE
from cuir.ops.base import Effects
from cuir.ops.meaning import Meaning, tiles
from cuir.syntax.nodes import Binary, Call, Expr, IfExp, Literal, Name, Program, Unary
from cuir.syntax.printer import show
from cuir.syntax.types import BF16, BOOL, F8E4M3, F16, F32, I32, DType

LOW, HIGH = -(2**31), 2**31 - 1
ENTRIES = {**TABLE, **OPERATORS}
OPS: dict[str, Meaning] = {n: o.evaluate for n, o in ENTRIES.items() if o.evaluate is not None}
ROWS, LINES, VOTES, ORDERS, CONVERSIONS = (
    ("row_max", "row_sum"),
    ("col_max", "col_sum"),
    ("warp_any",),
    ("interleave",),
    ("cast",),
)  # with tests of their own below
OF_SCALARS, OF_TILES = ("and", "or", "not", "ifexp", "cdiv"), ("where", *ROWS, *LINES, *VOTES)
SMALLEST, NORMAL, LARGEST = 2.0**-149, 2.0**-126, float(np.finfo(np.float32).max)
FLOATS = [0.0, -0.0, SMALLEST, -SMALLEST, NORMAL - SMALLEST, NORMAL, -NORMAL, 1.0, -1.0, 1 + 2.0**-23, 1 - 2.0**-24, 0.1, 0.5, 1.5, 2.5, 3.0, -7.0,
          2.0**24 + 2, 2.0**31, -(2.0**31), 126.0, -126.0, -126.00001, -149.0, -150.0, 127.99999, 128.0, 65504.0, 65520.0, LARGEST, -LARGEST,
          math.inf, -math.inf, math.nan]  # fmt: skip
INTEGERS = [0, 1, -1, 2, -2, 3, 7, -7, 10, 2**16, -(2**16) - 1, 2**24 + 1, 2**30, HIGH - 1, HIGH, LOW + 1, LOW]
VALUES: dict[DType, list[Any]] = {F32: [float(np.float32(v)) for v in FLOATS], I32: INTEGERS, BOOL: [False, True]}
NUMPY_DTYPES = {F32: np.float32, I32: np.int64, BOOL: np.bool_}
STORED = {F32: torch.float32, I32: torch.int32, BOOL: torch.bool}


def wrap(n: int) -> int:
    return (n - LOW) % 2**32 + LOW


def of_f32(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *xs: function(*(np.float32(x) for x in xs)).item()


def in_double(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *xs: float(np.float32(function(*(np.float64(x) for x in xs))))


def of_double(function: Callable[[float], float]) -> Callable[..., Any]:
    def run(x: float) -> float:
        try:
            result = function(x)
        except (OverflowError, ValueError):
            result = -math.inf if x == 0 else math.inf if x > 0 else math.nan
        return float(np.float32(result))

    return run


def power(x: float) -> float:
    result = 2.0**x if x <= 1000 else math.inf if x == x else x
    return 0.0 if result < NORMAL else result


def of_tf32(x: float) -> float:
    with np.errstate(all="ignore"):
        return float(((np.float32(x) * np.float32(1 + 355 / 2**20)).view(np.int32) & np.int32(-(2**13))).view(np.float32))


def choose_by_type(ints: Callable[..., Any], floats: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *xs: of_f32(floats)(*xs) if isinstance(xs[0], float) else wrap(ints(*xs))


def same(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *xs: function(*xs)


ORACLE: dict[str, Callable[..., Any]] = {
    "+": choose_by_type(lambda a, b: a + b, np.add), "-": choose_by_type(lambda a, b: a - b, np.subtract), "*": choose_by_type(lambda a, b: a * b, np.multiply),
    "/": of_f32(np.divide), "//": lambda a, b: wrap(a // b), "%": lambda a, b: a % b, "cdiv": lambda a, b: wrap(-(-a // b)),
    "neg": choose_by_type(lambda a: -a, np.negative), "abs": choose_by_type(abs, np.abs), "min": choose_by_type(min, np.minimum), "max": choose_by_type(max, np.maximum),
    "&": lambda a, b: a & b, "|": lambda a, b: a | b, "^": lambda a, b: a ^ b, "~": lambda a: not a if isinstance(a, bool) else ~a,
    "not": lambda a: not a, "and": lambda a, b: a and b, "or": lambda a, b: a or b,
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b, "ifexp": lambda c, a, b: a if c else b, "where": lambda c, a, b: a if c else b,
    "exp2": of_double(power), "log2": of_double(math.log2), "tanh": of_double(math.tanh),
    "sqrt": of_f32(np.sqrt), "floor": of_f32(np.floor), "round": of_f32(np.rint), "sin": in_double(np.sin), "cos": in_double(np.cos),
    "atan": of_double(math.atan), "log1p": in_double(np.log1p), "erf": of_double(math.erf), "erfc": of_double(math.erfc), "power": in_double(lambda x, y: np.power([x, x], [y, y])[0]),
    "fmod": of_f32(np.fmod), "round_tf32": of_tf32, "bit": lambda a, i: bool((a % 2**32) >> (i % 32) & 1),
}  # fmt: skip


def cases() -> Iterator[tuple[str, DType]]:
    for name, meaning in OPS.items():
        if name not in (*ROWS, *LINES, *VOTES, *CONVERSIONS):
            yield from ((name, dtype) for dtype in (F32, I32, BOOL) if meaning.scalar(dtype) is not None)


CASES = list(cases())


def test_every_operation_on_numbers_has_a_meaning_and_an_oracle() -> None:
    bare = {n for n, o in ENTRIES.items() if o.evaluate is None and o.effects == Effects() and o.family in ("operators", "compute")}
    assert bare == {"view", "T"}, "places; an operation on numbers says what it gives: evaluate=meaning(...)"
    assert set(OPS) == {*ORACLE, *ROWS, *LINES, *VOTES, *ORDERS, *CONVERSIONS}
    assert all(OPS[n].name == n for n in OPS)
    for name, dtype in CASES:
        assert OPS[name].tile(dtype) is not None, f"{name} of {dtype}"


def arity(name: str) -> int:
    if name in ("where", "ifexp"):
        return 3
    return 2 if ENTRIES[name].params[0].variadic else len(ENTRIES[name].params)


def expression(name: str, args: list[Expr]) -> Expr:
    if name == "ifexp":
        return IfExp(*args)
    if name in TABLE:
        return Call(Name(name), tuple(args))
    return Binary(name, *args) if len(args) == 2 else Unary({"neg": "-"}.get(name, name), *args)


NAMES = [Name("c"), Name("x"), Name("y")]


def make_expression(name: str) -> Expr:
    n = arity(name)
    return expression(name, list(NAMES[1 : n + 1] if n < 3 else NAMES))


def columns(name: str, dtype: DType, pairs: list[tuple[Any, Any]]) -> dict[str, list[Any]]:
    """c, x, y of each pair that the operation takes."""
    retained = [(x, y) for x, y in pairs if not (OPS[name].divides and y == 0)]
    return {"c": [bool(i % 2) for i in range(len(retained))], "x": [x for x, _ in retained], "y": [y for _, y in retained]}


def compute_expected(name: str, inputs: dict[str, list[Any]]) -> list[Any]:
    n = arity(name)
    with np.errstate(all="ignore"):
        return (
            [ORACLE[name](*row) for row in zip(*(inputs[k] for k in ("x", "y", "c")[:n]))]
            if n < 3
            else [ORACLE[name](*r) for r in zip(*inputs.values())]
        )


def distance(a: float, b: float) -> float:
    """In units in the last place of f32 at b."""
    if a == b or (a != a and b != b):
        return 0
    return abs(a - b) / max(float(np.spacing(np.float32(abs(b)))), SMALLEST) if math.isfinite(a) and math.isfinite(b) else math.inf


def agree(name: str, result: list[Any], want: list[Any], inputs: dict[str, list[Any]], owner: str) -> None:
    assert len(result) == len(want)
    rows = list(zip(*inputs.values()))
    for f, w, row in zip(result, want, rows):
        if isinstance(w, float) and not OPS[name].rounded:
            assert distance(f, w) <= OPS[name].ulps, (owner, name, row, f, w)
            continue
        assert type(f) is type(w), (owner, name, row, f, w)
        assert f == w or (f != f and w != w), (owner, name, row, f, w)
        if isinstance(w, float) and name not in ("min", "max") and w == w:
            assert math.copysign(1, f) == math.copysign(1, w), (owner, name, row, f, w)


def lanes(dtype: DType, values: list[Any]) -> np.ndarray:
    return np.array(values, dtype=NUMPY_DTYPES[dtype])


def together(name: str, dtype: DType, pairs: list[tuple[Any, Any]]) -> None:
    """Folding, the functions on numbers and lanes, masks of tensors and of numbers, contracts on arrays and on numbers."""
    inputs = columns(name, dtype, pairs)
    want = compute_expected(name, inputs)
    say = functools.partial(agree, name, want=want, inputs=inputs)
    e, n = make_expression(name), arity(name)
    rows = list(zip(*inputs.values()))
    scalar = OPS[name].scalar(dtype)
    assert scalar is not None
    operands = [r if n == 3 else r[1 : n + 1] for r in rows]
    say([scalar(*r) for r in operands], owner="numbers")
    arrays = {k: lanes(BOOL if k == "c" else dtype, v) for k, v in inputs.items()}
    tensors = {k: torch.tensor(v, dtype=torch.bool if k == "c" else STORED[dtype]) for k, v in inputs.items()}
    with np.errstate(all="ignore"):
        say(scalar(*(arrays[k] for k in ("c", "x", "y")[0 if n == 3 else 1 : 1 + n if n < 3 else 3])).tolist(), owner="lanes")
    say(evaluate(e, tensors).tolist(), owner="masks of tensors")
    say([evaluate(e, dict(zip("cxy", r))) for r in rows], owner="masks of numbers")
    with np.errstate(all="ignore"):
        say(np.asarray(Evaluator(Program(()), arrays).evaluate_expr(e, {})).tolist(), owner="contracts on arrays")
    say([np.asarray(Evaluator(Program(()), dict(zip("cxy", r))).evaluate_expr(e, {})).item() for r in rows], owner="contracts on numbers")
    for row, w in zip(operands, want):
        if any(isinstance(v, float) and not math.isfinite(v) for v in row):
            continue  # no literal
        folded = fold(expression(name, [Literal(v) for v in row]))
        if isinstance(folded, Literal):
            value = float(np.float32(folded.value)) if dtype == F32 and isinstance(folded.value, float) else folded.value
            agree(name, [value], [w], {"operands": [row]}, "folding")
        else:
            assert not OPS[name].rounded or name == "where" or not math.isfinite(w), (name, row)


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
def test_special_values(name: str, dtype: DType) -> None:
    together(name, dtype, list(itertools.product(VALUES[dtype], repeat=2)) if arity(name) > 1 else [(v, v) for v in VALUES[dtype]])


def from_bits(dtype: DType, bits: bytes) -> list[Any]:
    if dtype == BOOL:
        return [bool(b % 2) for b in bits[:64]]
    return np.frombuffer(bits, np.float32 if dtype == F32 else np.int32).astype(NUMPY_DTYPES[dtype]).tolist()


@given(st.binary(min_size=128, max_size=128))
def test_random_bits(bits: bytes) -> None:
    with np.errstate(all="ignore"):
        for name, dtype in CASES:
            values = from_bits(dtype, bits)
            together(name, dtype, list(zip(values[::2], values[1::2])))


# ---- the interpreter
TILE = """\
@kernel(arch="sm_80")
def tiles_of(C: Global[i32, R, 32], X: Global[T, R, 32], Y: Global[T, R, 32], Z: Global[OUT, R, 32], *, T: const, OUT: const):
    with role("all", warps=1):
        for i in range(R // 16):
            c, x, y = load(C[i * 16 : i * 16 + 16, :]) != 0, load(X[i * 16 : i * 16 + 16, :]), load(Y[i * 16 : i * 16 + 16, :])
            store(Z[i * 16 : i * 16 + 16, :], EXPRESSION)
"""
SCALAR = """\
@kernel(arch="sm_80")
def scalars_of(C: Global[i32, N], X: Global[T, N], Y: Global[T, N], Z: Global[OUT, N], *, T: const, OUT: const):
    work = tiles(N)
    with role("all", warps=1):
        for i in work:
            c, x, y = C[i] != 0, X[i], Y[i]
            store(Z[i], EXPRESSION)
"""


def interpret(
    text: str, name: str, dtype: DType, inputs: dict[str, list[Any]], want: list[Any], shape: tuple[int, ...], **options: Any
) -> torch.Tensor:
    """Return the stored result of a kernel of this operation; bools as i32, as no tensor holds them."""
    memory, out = (I32 if dtype == BOOL else dtype), (F32 if isinstance(want[0], float) else I32)
    out = dtype if dtype in (F16, BF16) else out
    body = show(make_expression(name))
    if isinstance(want[0], bool):
        body = f"cast({body}, i32)"
    if dtype == BOOL:
        text = text.replace("X[i]", "X[i] != 0").replace("Y[i]", "Y[i] != 0")
        text = text.replace("load(X[i * 16 : i * 16 + 16, :])", "load(X[i * 16 : i * 16 + 16, :]) != 0")
        text = text.replace("load(Y[i * 16 : i * 16 + 16, :])", "load(Y[i * 16 : i * 16 + 16, :]) != 0")
    stored = {F32: torch.float32, I32: torch.int32, F16: torch.float16, BF16: torch.bfloat16}
    full = math.prod(shape)

    def tensor(values: list[Any], kind: DType) -> torch.Tensor:
        return torch.tensor((values * (full // len(values) + 1))[:full], dtype=stored[kind]).reshape(shape)

    z = torch.zeros(shape, dtype=stored[out])
    arguments = {
        "C": tensor([int(v) for v in inputs["c"]], I32),
        "X": tensor(inputs["x"], memory),
        "Y": tensor(inputs["y"], memory),
        "Z": z,
    }
    cuir.run(cuir.check(cuir.parse(text.replace("EXPRESSION", body)), consts={"T": memory, "OUT": out}), arguments, **options)
    return z.reshape(-1)[: len(inputs["x"])]


def pairs_of(name: str, dtype: DType) -> list[tuple[Any, Any]]:
    values = VALUES[dtype]
    rng = np.random.default_rng(7)
    more = from_bits(dtype, rng.bytes(4 * 512))
    return [*(itertools.product(values, repeat=2) if arity(name) > 1 else ((v, v) for v in values)), *zip(more[::2], more[1::2])]


@pytest.mark.parametrize(("name", "dtype"), [c for c in CASES if c[0] not in OF_SCALARS], ids=str)
def test_tiles_of_the_interpreter(name: str, dtype: DType) -> None:
    inputs = columns(name, dtype, pairs_of(name, dtype))
    want = compute_expected(name, inputs)
    actual = interpret(TILE, name, dtype, {**inputs, "y": inputs["y"]}, want, (-(-len(want) // 512) * 16, 32)).tolist()
    agree(name, [type(w)(f) for f, w in zip(actual, want)], want, inputs, "tiles")


@pytest.mark.parametrize("lanes_", [1, 8])
@pytest.mark.parametrize(("name", "dtype"), [c for c in CASES if c[0] not in OF_TILES], ids=str)
def test_scalars_of_the_interpreter(name: str, dtype: DType, lanes_: int) -> None:
    """One value of a batch, and another in each lane."""
    pairs = pairs_of(name, dtype)
    inputs = columns(name, dtype, pairs if len(pairs) <= 64 else pairs[:: len(pairs) // 64])
    want = compute_expected(name, inputs)
    n = len(want) if lanes_ == 1 else -(-len(want) // lanes_) * lanes_
    actual = interpret(SCALAR, name, dtype, inputs, want, (n,), grid=lanes_, lanes=lanes_).tolist()
    agree(name, [type(w)(f) for f, w in zip(actual, want)], want, inputs, "scalars")


OF_F32 = [n for n, o in ENTRIES.items() if o.params and o.params[0].description.startswith("f32")]
HALVES = [
    n for n, d in CASES if d == F32 and n not in (*OF_SCALARS, *OF_F32) and OPS[n].rounded and n not in ("==", "!=", "<", "<=", ">", ">=")
]


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
@pytest.mark.parametrize("name", HALVES)
def test_half_precision_rounds_once(name: str, dtype: DType) -> None:
    """Computed in f32 and rounded to the dtype, as PyTorch does."""
    kind = torch.float16 if dtype == F16 else torch.bfloat16
    narrow = [tuple(torch.tensor(p).to(kind).float().tolist()) for p in pairs_of(name, F32)]
    inputs = columns(name, F32, narrow)
    want = [float(torch.tensor(w).to(kind)) for w in compute_expected(name, inputs)]
    actual = interpret(TILE, name, dtype, inputs, want, (-(-len(want) // 512) * 16, 32)).float().tolist()
    agree(name, actual, want, inputs, str(dtype))


# ---- conversions and rows
def convert(v: Any, target: DType) -> Any:
    if target == BOOL:
        return v != 0
    if target == I32:
        return 0 if v != v else max(LOW, min(HIGH, math.trunc(v))) if math.isfinite(v) else (HIGH if v > 0 else LOW)
    return float(np.float32(v))


@pytest.mark.parametrize("target", [F32, I32, BOOL], ids=str)
@pytest.mark.parametrize("source", [F32, I32, BOOL], ids=str)
def test_casts(source: DType, target: DType) -> None:
    from cuir.ops.meaning import cast
    from cuir.ops.meaning.tiles import cast as cast_tile

    values = [*VALUES[source], *from_bits(source, np.random.default_rng(5).bytes(1024))]
    want = [convert(v, target) for v in values]
    say = functools.partial(agree, "cast", want=want, inputs={"x": values})
    array, tensor, e = lanes(source, values), torch.tensor(values, dtype=STORED[source]), Call(Name("cast"), (Name("x"), Name(target.name)))
    say([cast(v, source, target) for v in values], owner="numbers")
    with np.errstate(all="ignore"):
        say(cast(array, source, target).tolist(), owner="lanes")
        say(Evaluator(Program(()), {"x": array}).evaluate_expr(e, {}).tolist(), owner="contracts")
    say(cast_tile(tensor, source, target).tolist(), owner="tiles")
    say(evaluate(e, {"x": tensor}).tolist(), owner="masks")


@pytest.mark.parametrize("target", [F16, BF16], ids=str)
@pytest.mark.parametrize("source", [F32, I32, BOOL], ids=str)
def test_casts_to_half_precision_round_to_nearest_even(source: DType, target: DType) -> None:
    from cuir.ops.meaning.tiles import cast as cast_tile

    values = torch.tensor([*VALUES[source], *from_bits(source, np.random.default_rng(5).bytes(1024))], dtype=STORED[source])
    want = values.float().to(torch.float16 if target == F16 else torch.bfloat16).float()
    assert torch.equal(cast_tile(values, source, target).nan_to_num(7.0), want.nan_to_num(7.0))


def test_rows_with_a_nan() -> None:
    x = torch.randn(1, 16, 32)
    x[0, 3, 5], x[0, 4], x[0, 5, 0], x[0, 6] = torch.nan, torch.nan, torch.inf, -torch.inf
    top, total = (OPS[n].tile(F32) for n in ROWS)
    assert top is not None and total is not None
    torch.testing.assert_close(top(x), x.amax(-1, keepdim=True), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(total(x), x.sum(-1, keepdim=True), equal_nan=True)
    assert torch.isnan(top(x)[0, 3:5]).all() and torch.isnan(total(x)[0, 3:5]).all()


def test_columns_with_a_nan() -> None:
    """Reductions of columns are those of the rows of the transpose."""
    x = torch.randn(2, 16, 32)
    x[0, 3, 5], x[0, :, 4], x[1, 0, 5], x[1, :, 6] = torch.nan, torch.nan, torch.inf, -torch.inf
    for line, row in zip(LINES, ROWS, strict=True):
        actual, expected = OPS[line].tile(F32), OPS[row].tile(F32)
        assert actual is not None and expected is not None
        torch.testing.assert_close(actual(x), expected(x.mT).mT, equal_nan=True)


EXACTLY = {
    "exp2": np.exp2,
    "log2": np.log2,
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "atan": np.arctan,
    "erf": np.vectorize(math.erf),
    "erfc": np.vectorize(math.erfc),
}


@pytest.mark.parametrize("name", EXACTLY)
def test_bounds_hold_for_tiles(name: str) -> None:
    """Also near 1, near 0, of subnormal arguments, and where exp2 comes to the least normal number."""
    rng = np.random.default_rng(3)
    near = np.float32(1) + np.arange(-2000, 2000, dtype=np.float32) * np.float32(2.0**-23)
    small = rng.integers(1, 2**23, 2000, dtype=np.int32).view(np.float32)
    edge = np.linspace(-127, -125, 4001, dtype=np.float32)
    x = np.concatenate([near, small, -small, edge, rng.standard_normal(20000).astype(np.float32) * 40, rng.integers(0, 2**32, 20000, dtype=np.uint32).view(np.float32)])  # fmt: skip
    with np.errstate(all="ignore"):
        exact = EXACTLY[name](x.astype(np.float64))
        want = np.where(np.abs(exact) < NORMAL, 0, exact) if name == "exp2" else exact
        tile = OPS[name].tile(F32)
        assert tile is not None
        result = tile(torch.from_numpy(x)).numpy().astype(np.float64)
        unit = np.maximum(np.spacing(np.abs(want).astype(np.float32)).astype(np.float64), SMALLEST)
        error = np.where((result == want.astype(np.float32)) | (np.isnan(result) & np.isnan(want)), 0, np.abs(result - want) / unit)
    assert float(np.max(error)) <= OPS[name].ulps


@pytest.mark.parametrize("name", [*EXACTLY, "sqrt", "floor", "round", *ROWS, *LINES])
@pytest.mark.parametrize("shape", [(1, 16, 1), (3, 16, 1), (1, 16, 40), (2, 64, 24), (5, 1, 8)])
def test_bits_do_not_depend_on_layout_or_on_what_is_computed_with_them(name: str, shape: tuple[int, int, int]) -> None:
    function = tiles.TILES[name][F32]
    x = torch.randn(8, *shape[1:], generator=torch.Generator().manual_seed(sum(shape))).abs() + 0.01
    lanes = shape[0]
    expected = function(x.clone())
    part = function(x[:lanes].clone())
    turned = function(x[:lanes].mT.contiguous().mT)
    assert torch.equal(part, expected[:lanes]) and torch.equal(turned, expected[:lanes])


@pytest.mark.parametrize("rows", [1, 16, 24, 64])
def test_a_vote_holds_for_the_sixteen_rows_of_a_warp(rows: int) -> None:
    x = torch.rand(2, rows, 5, generator=torch.Generator().manual_seed(rows)) > 0.98
    function = OPS["warp_any"].tile(BOOL)
    assert function is not None
    result = function(x)
    assert result.shape == (2, rows, 1)
    for lane in range(2):
        for r in range(rows):
            assert bool(result[lane, r]) == bool(x[lane, r // 16 * 16 : r // 16 * 16 + 16].any())


@pytest.mark.parametrize("shape", [(1, 64, 32), (3, 16, 96)])
def test_columns_are_interleaved_within_each_sixteen(shape: tuple[int, int, int]) -> None:
    function = OPS["interleave"].tile(F8E4M3)
    assert function is not None
    x = torch.arange(shape[0] * shape[1] * shape[2], dtype=torch.float32).reshape(shape)
    order = [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15]
    assert torch.equal(function(x), x[..., [16 * i + c for i in range(shape[2] // 16) for c in order]])
