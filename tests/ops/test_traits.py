"""Traits say what is so: of operations on numbers held against what they give, of others against parameters and effects."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import pytest

from cuir.ops import OPERATORS, TABLE, Op
from cuir.ops.base import Effects
from cuir.ops.build import cast, cdiv, exp2, greatest, least, log2, magnitude, tanh, where
from cuir.ops.expressions import called, comparison, is_where, maker, method, operation, traits
from cuir.syntax.nodes import Binary, Call, IfExp, Keyword, Literal, Name, Unary
from cuir.syntax.types import BOOL, F32, I32, DType

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
    assert {t.converts, t.chooses, t.divisor} - {None} <= params
    assert {op.effects.expects} - {None} <= params
    assert not t.pure or op.effects == Effects()
    assert not t.elementwise or (t.pure and op.evaluate is not None and not op.reduces)
    assert t.pure or op.evaluate is None
    assert bool(t.reduction or t.product) == op.reduces and (t.reduction == "sum" or t.product) == op.sums
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
        found, x = run(*xs), xs[0]
        y = xs[1] if len(xs) > 1 else None
        if t.commutative and len(xs) == 2:
            assert found == run(y, x)
        if t.linear:
            assert found == sum(map(operator.mul, t.linear, xs))
        if t.compares and dtype != BOOL:
            assert found == ((x > y) - (x < y) in t.compares)
        if t.decided_by is not None and dtype == BOOL:
            assert found is t.decided_by if t.decided_by in xs else found is not t.decided_by
        if t.involutive:
            assert run(found, *xs[1:]) == x
        if t.complements and dtype == BOOL:
            assert found is not x
        if t.extremum:
            assert found == (min if t.extremum == "min" else max)(xs)
        if t.magnitude:
            assert found == max(x, -x)
        if t.rounds or t.remainder:
            down = x // y
            assert found == (x - down * y if t.remainder else down if t.rounds == "down" else -(-x // y))
        for i, p in enumerate(op.params):
            if p.name in t.factors and dtype == F32:
                assert run(*(2 * v if j == i else v for j, v in enumerate(xs))) == 2 * found
        if t.chooses:
            assert found == of(*xs) == (xs[1] if x else xs[2])


def test_every_comparison_is_known_by_its_signs() -> None:
    signs = [op.traits.compares for op in ENTRIES.values() if op.traits.compares]
    assert len(set(signs)) == len(signs) == 6
    assert [comparison(s) for s in ((-1,), (-1, 0), (0,), (0, 1), (1,), (-1, 1))] == ["<", "<=", "==", ">=", ">", "!="]


X, Y, C = Name("x"), Name("y"), Name("c")


@pytest.mark.parametrize(("built", "name"), [
    (where(C, X, Y), "where"), (cast(X, F32), "cast"), (magnitude(X), "abs"), (least(X, Y), "min"), (greatest(X, Y), "max"), (exp2(X), "exp2"),
    (log2(X), "log2"), (tanh(X), "tanh"), (cdiv(X, Y), "cdiv"), (Unary("-", X), "neg"), (Unary("not", C), "not"), (Binary("+", X, Y), "+"),
    (IfExp(C, X, Y), "ifexp"),
])  # fmt: skip
def test_what_is_built_is_read_as_the_same(built: Any, name: str) -> None:
    found = operation(built)
    assert found is not None and found[0] is ENTRIES[name] and traits(built) is ENTRIES[name].traits
    assert is_where(built) == (name == "where")


def test_of_two_that_are_written_alike_the_arguments_tell() -> None:
    def of(n: int, *keywords: str) -> str:
        op = called(Call(Name("copy_async"), (X,) * n, tuple(Keyword(k, Literal(True)) for k in keywords)))
        return op.name if op is not None else ""

    assert of(2) == of(1) == of(2, "nothing") == "copy_async.cp"
    assert of(3) == of(4) == of(2, "bar") == of(2, "cluster") == of(2, "hint") == "copy_async.bulk"
    assert called(Call(Name("f"), (X,))) is None and called(X) is None


def test_declarations_and_methods_are_found_by_what_they_do() -> None:
    assert [maker(what).name for what in ("array", "units", "workers")] == ["shared", "tiles", "role"]
    assert method("mbarrier", "wait") is TABLE["mbarrier.wait"] and method("named_barrier", "wait") is None
    assert [op.name for op in TABLE.values() if op.effects.expects] == ["mbarrier.expect"]
    assert [op.name for op in TABLE.values() if op.effects.releases] == ["mbarrier.arrive", "named_barrier.arrive"]
