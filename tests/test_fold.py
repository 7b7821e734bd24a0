"""Constant expressions: what folds, to what, and what stays for the checker to report."""

from __future__ import annotations

import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuir.fold import fold, specialised
from cuir.nodes import Binary, Call, Expr, IfExp, Literal, Name, Unary

INTEGERS = st.integers(-(2**31), 2**31 - 1)
OPS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "<": operator.lt,
    "==": operator.eq,
    ">=": operator.ge,
}


@given(st.sampled_from(sorted(OPS)), INTEGERS, INTEGERS.filter(bool))
def test_integers_fold_as_in_python(op: str, a: int, b: int) -> None:
    assert fold(Binary(op, Literal(a), Literal(b))) == Literal(OPS[op](a, b))


@given(INTEGERS, st.integers(1, 2**20))
def test_cdiv_rounds_up(a: int, b: int) -> None:
    folded = fold(Call(Name("cdiv"), (Literal(a), Literal(b))))
    assert isinstance(folded, Literal) and (folded.value - 1) * b < a <= folded.value * b


def test_min_and_max_take_many() -> None:
    assert fold(Call(Name("max"), (Literal(1), Literal(5), Literal(3)))) == Literal(5)
    assert fold(Call(Name("min"), (Literal(2), Literal(-5)))) == Literal(-5)


X = Name("x")


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (Binary("and", Literal(False), X), Literal(False)),
        (Binary("and", Literal(True), X), X),
        (Binary("or", Literal(True), X), Literal(True)),
        (IfExp(Literal(True), X, Literal(1)), X),
        (Unary("not", Literal(True)), Literal(False)),
        (Unary("-", Literal(2.5)), Literal(-2.5)),
        (Binary("==", Name("f16"), Name("f16")), Literal(True)),
        (Binary("!=", Name("f16"), Name("bf16")), Literal(True)),
    ],
)
def test_folds(expr: Expr, expected: Expr) -> None:
    assert fold(expr) == expected


@pytest.mark.parametrize(
    "expr",
    [
        Binary("+", Literal(True), Literal(1)),  # no number
        Binary("/", Literal(4), Literal(2)),  # `/` divides floats
        Binary("%", Literal(4.0), Literal(2)),
        Binary("and", Literal(1), Literal(2)),
        Binary("+", X, Literal(1)),
        Call(Name("exp2"), (Literal(1.0),)),
    ],
)
def test_stays(expr: Expr) -> None:
    assert fold(expr) is expr


def test_division_by_zero_is_told() -> None:
    with pytest.raises(ZeroDivisionError):
        fold(Binary("//", Literal(1), Literal(0)))


NAMES = {"a": Literal(7), "b": Literal(-2), "t": Literal(True), "T": Name("f16")}


@given(st.recursive(st.sampled_from([Name("a"), Name("b"), Literal(3)]),
                    lambda inner: st.builds(Binary, st.sampled_from(["+", "-", "*"]), inner, inner) | st.builds(lambda x, y: Call(Name("max"), (x, y)), inner, inner)))  # fmt: skip
def test_an_expression_of_known_names_is_known(expr: Expr) -> None:
    def value(e: Expr) -> int:
        if isinstance(e, Binary):
            return OPS[e.op](value(e.left), value(e.right))
        if isinstance(e, Call):
            return max(map(value, e.args))
        return (NAMES[e.id] if isinstance(e, Name) else e).value  # type: ignore[union-attr,return-value]

    assert specialised(expr, NAMES) == Literal(value(expr))


def test_only_what_is_chosen_is_evaluated() -> None:
    wrong = Binary("//", Name("a"), Literal(0))
    assert specialised(IfExp(Name("t"), Name("a"), wrong), NAMES) == Literal(7)
    assert specialised(Binary("or", Name("t"), wrong), NAMES) == Literal(True)
    assert specialised(Binary("==", Name("T"), Name("f16")), NAMES) == Literal(True)
    assert specialised(Binary("+", Name("a"), X), NAMES) == Binary("+", Literal(7), X)
    with pytest.raises(ZeroDivisionError):
        specialised(wrong, NAMES)
