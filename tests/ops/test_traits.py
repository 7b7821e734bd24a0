"""Traits say what is so: of operations on numbers held against what they give, of others against parameters and effects."""

from __future__ import annotations

import itertools
import math
import operator
from typing import Any

import pytest

from cuir.ops import OPERATORS, TABLE, Op, entries
from cuir.ops.base import Effects
from cuir.ops.build_calls import cast, cdiv, exp2, greatest, least, log2, magnitude, tanh, where
from cuir.ops.expressions import comparison, get_called_op, get_declaration, is_where, method, operation, subscript, traits
from cuir.ops.traits import Signs, exchange_operands, invert_comparison
from cuir.syntax.nodes import Binary, Call, IfExp, Keyword, Literal, Name, Unary
from cuir.syntax.types import BOOL, F32, I32, DType, Scalar, TileType

ENTRIES = {**TABLE, **OPERATORS}
NUMBERS: dict[DType, list[Any]] = {I32: [-7, -2, -1, 0, 1, 2, 3, 8], F32: [-7.0, -0.5, 0.0, 0.5, 2.0, 8.0], BOOL: [False, True]}
PAIRS = [(op, dtype) for op in ENTRIES.values() for dtype in NUMBERS if op.evaluate is not None and op.evaluate.scalar(dtype) is not None]
each = pytest.mark.parametrize("op", ENTRIES.values(), ids=list(ENTRIES))


def operands(op: Op, dtype: DType) -> list[tuple[Any, ...]]:
    n = 2 if op.params[0].variadic else len(op.params)
    values: list[list[Any]] = (
        [NUMBERS[BOOL if p.name == op.traits.chooses else dtype] for p in op.params] if n == len(op.params) else [NUMBERS[dtype]] * n
    )
    divides = op.traits.divisor is not None
    return [xs for xs in itertools.product(*values) if not (divides and xs[-1] == 0)]


@each
def test_traits_name_parameters_and_fit_effects(op: Op) -> None:
    t, params = op.traits, {p.name for p in op.params}
    assert {*t.alike, *(t.takes or ()), *t.lazy, *t.factors} <= params
    assert {t.converts, t.chooses, t.divisor, t.repeats} - {None} <= params
    assert {op.effects.expects} - {None} <= params
    assert (op.memory_effect == "none") == (op.effects == Effects())
    assert not t.elementwise or (op.memory_effect == "none" and op.evaluate is not None and not op.reduces)
    assert op.memory_effect == "none" or op.evaluate is None
    assert op.speculatable or op.memory_effect != "none" or (op.evaluate is not None and op.evaluate.divides)
    interleaved = t.interleaves and op.memory_effect == "none"
    assert bool(t.reduction or t.column_reduction or t.product or t.votes or interleaved) == op.reduces
    assert ("sum" in (t.reduction, t.column_reduction) or t.product) == op.sums
    assert t.declares == (op.where == "declaration" and t.makes != "workers") and (t.makes is None) == (op.where != "declaration")
    assert t.slip in {"", *ENTRIES} and t.slip != op.name
    assert op.evaluate is None or op.evaluate.divides == bool(t.rounds or t.remainder)
    assert not t.special or t.cost > 1
    assert not op.effects.joins or t.joins_worker
    assert not op.effects.waits or t.joins_worker or t.one_lane


@pytest.mark.parametrize(("op", "dtype"), PAIRS, ids=lambda x: x.name)
def test_algebra_is_what_the_operation_gives(op: Op, dtype: DType) -> None:
    assert op.evaluate is not None
    of, t, run = op.evaluate, op.traits, op.evaluate.scalar(dtype)
    assert run is not None
    for xs in operands(op, dtype):
        result, x = run(*xs), xs[0]
        y = xs[1] if len(xs) > 1 else None
        if t.commutative and len(xs) == 2:
            assert result == run(y, x)
        if t.linear:
            assert result == sum(map(operator.mul, t.linear, xs))
        if t.multiplies:
            assert result == math.prod(xs)
        if t.exponential:
            assert result == pytest.approx(float(t.exponential) ** x, rel=1e-6)
        if t.logarithm and x > 0:
            assert result == pytest.approx(math.log(x, t.logarithm), rel=1e-6)
        if t.root and x >= 0:
            assert result**t.root == pytest.approx(x, rel=1e-6)
        if t.quarters is not None:
            assert result == pytest.approx(math.sin(x + t.quarters * math.pi / 2), abs=1e-6)
        if t.logistic:
            assert result == pytest.approx(2 / (1 + 2 ** (-t.logistic * x)) - 1, rel=1e-6)
        if t.compares and dtype != BOOL:
            assert result == ((x > y) - (x < y) in t.compares)
        if t.decided_by is not None and dtype == BOOL:
            assert result is t.decided_by if t.decided_by in xs else result is not t.decided_by
        if t.involutive:
            assert run(result, *xs[1:]) == x
        if t.complements and dtype == BOOL:
            assert result is not x
        if t.extremum:
            assert result == (min if t.extremum == "min" else max)(xs)
        if t.magnitude:
            assert result == max(x, -x)
        if t.rounds or t.remainder:
            down = x // y
            assert result == (x - down * y if t.remainder else down if t.rounds == "down" else -(-x // y))
        for i, p in enumerate(op.params):
            if p.name in t.factors and dtype == F32:
                assert run(*(2 * v if j == i else v for j, v in enumerate(xs))) == 2 * result
        if t.chooses:
            assert result == of(*xs) == (xs[1] if x else xs[2])


def test_every_comparison_is_known_by_its_signs() -> None:
    signs = [op.traits.compares for op in ENTRIES.values() if op.traits.compares]
    assert len(set(signs)) == len(signs) == 6
    assert [comparison(s) for s in ((-1,), (-1, 0), (0,), (0, 1), (1,), (-1, 1))] == ["<", "<=", "==", ">=", ">", "!="]


@each
def test_what_a_tile_is_made_of_and_what_reads_elements(op: Op) -> None:
    t, reads = op.traits, [a.arg for a in op.effects.accesses if a.mode == "read"]
    assert sum((t.constant is not None, t.repeats is not None, t.index_of is not None, t.measures, t.rank, t.place)) <= 1
    if t.constant is not None or t.repeats or t.index_of:
        assert (
            op.speculatable
            and op.evaluate is None
            and op.rule(Recorder()) == TileType(I32, *(s if t.index_of in (None, w) else 1 for s, w in ((3, "row"), (3, "column"))))
        )
    if t.place:
        assert op.evaluate is None and op.effects == Effects()
    if t.indexed:
        assert reads == [p.name for p in op.params] and subscript(Scalar(I32)).traits.indexed
    assert t.indexed == (OPERATORS.get(op.name) is op and bool(reads))


class Recorder:
    """A call whose arguments are 3 by 3, or 3, and i32."""

    def type(self, arg: str) -> Any:
        return Scalar(I32)

    def const(self, arg: str) -> Any:
        return {"dtype": I32, "dims": (3, 3), "n": 3}[arg]

    value = const

    def has(self, arg: str) -> bool:
        return True


SIGNS = [signs for op in ENTRIES.values() if (signs := op.traits.compares)]


@pytest.mark.parametrize("signs", SIGNS)
def test_turned_and_opposite_comparisons(signs: Signs) -> None:
    for x, y in itertools.product(NUMBERS[I32], repeat=2):
        holds, back = ((x > y) - (x < y)) in signs, (y > x) - (y < x)
        assert holds == (back in exchange_operands(signs)) == (((x > y) - (x < y)) not in invert_comparison(signs))
    assert {exchange_operands(signs), invert_comparison(signs)} <= set(SIGNS)
    assert entries.COMPARISONS[signs].traits.compares == signs


def test_named_entries_do_what_their_words_say() -> None:
    run = {word: getattr(entries, word).evaluate for word in entries.__all__ if isinstance(getattr(entries, word), Op)}
    x, y = 7, -2
    messages = {
        "ADD": 5,
        "SUBTRACT": 9,
        "MULTIPLY": -14,
        "FLOOR_DIVIDE": -4,
        "CEIL_DIVIDE": -3,
        "REMAINDER": -1,
        "AND": 6,
        "OR": -1,
        "EXCLUSIVE_OR": -7,
        "LEAST": -2,
        "GREATEST": 7,
    }
    assert {word: run[word](x, y) for word in messages} == messages
    assert (
        run["NEGATE"](x) == -7 and run["DIVIDE"](7.0, 2.0) == 3.5 and run["CHOOSE"](True, x, y) == run["CHOOSE_BY_ELEMENT"](True, x, y) == 7
    )
    assert run["EXP2"](3.0) == 8 and run["LOG2"](8.0) == 3 and run["TANH"](0.0) == 0
    assert entries.CAST.traits.converts and entries.FULL.traits.repeats
    for name, dual in entries.DUALS.items():
        for a, b in itertools.product((False, True), repeat=2):
            assert ENTRIES[name].evaluate(a, b) is not dual.evaluate(not a, not b)  # type: ignore[misc]


X, Y, C = Name("x"), Name("y"), Name("c")


@pytest.mark.parametrize(
    ("built", "name"),
    [
        (where(C, X, Y), "where"),
        (cast(X, F32), "cast"),
        (magnitude(X), "abs"),
        (least(X, Y), "min"),
        (greatest(X, Y), "max"),
        (exp2(X), "exp2"),
        (log2(X), "log2"),
        (tanh(X), "tanh"),
        (cdiv(X, Y), "cdiv"),
        (Unary("-", X), "neg"),
        (Unary("not", C), "not"),
        (Binary("+", X, Y), "+"),
        (IfExp(C, X, Y), "ifexp"),
    ],
)
def test_what_is_built_is_read_as_the_same(built: Any, name: str) -> None:
    result = operation(built)
    assert result is not None and result[0] is ENTRIES[name] and traits(built) is ENTRIES[name].traits
    assert is_where(built) == (name == "where")


def test_of_two_that_are_written_alike_the_arguments_tell() -> None:
    def of(n: int, *keywords: str) -> str:
        op = get_called_op(Call(Name("copy_async"), (X,) * n, tuple(Keyword(k, Literal(True)) for k in keywords)))
        return op.name if op is not None else ""

    assert of(2) == of(1) == of(2, "nothing") == "copy_async.cp"
    assert of(3) == of(4) == of(2, "bar") == of(2, "cluster") == of(2, "hint") == "copy_async.bulk"
    assert get_called_op(Call(Name("f"), (X,))) is None and get_called_op(X) is None


def test_declarations_and_methods_are_found_by_what_they_do() -> None:
    assert [get_declaration(description).name for description in ("array", "units", "workers")] == ["shared", "tiles", "role"]
    assert method("mbarrier", "wait") is TABLE["mbarrier.wait"] and method("named_barrier", "wait") is None
    assert [op.name for op in TABLE.values() if op.effects.expects] == ["mbarrier.expect"]
    assert [op.name for op in TABLE.values() if op.effects.releases] == ["mbarrier.arrive", "named_barrier.arrive"]
