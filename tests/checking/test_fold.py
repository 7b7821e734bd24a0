"""Constant expressions: what folds, to what, and what stays for the checker to report."""

from __future__ import annotations

import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuir.checking.fold import fold, specialise
from cuir.syntax.nodes import Binary, Call, Expr, IfExp, Literal, Name, Unary

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
def test_integers_fold_as_in_python_and_wrap(op: str, a: int, b: int) -> None:
    want = OPS[op](a, b)
    assert fold(Binary(op, Literal(a), Literal(b))) == Literal(want if isinstance(want, bool) else wrap(want))


def wrap(n: int) -> int:
    return (n + 2**31) % 2**32 - 2**31


@pytest.mark.parametrize(
    ("op", "a", "b", "want"),
    [
        ("*", 2**20, 2**20, 0),
        ("+", 2**31 - 1, 1, -(2**31)),
        ("//", -(2**31), -1, -(2**31)),
        ("+", 0.1, 0.2, 0.3),  # the f32 nearest to 0.3, in as few digits as say it
        ("+", 2.0**24, 1.0, 2.0**24),  # f32 has no 2^24 + 1
        ("==", 0.1, 0.1 + 1e-12, True),
        ("*", 3, 0.5, 1.5),  # an integer literal among floats is one
        ("/", 1.0, 3.0, 0.33333334),
    ],
)
def test_constants_fold_as_the_kernel_would_compute_them(op: str, a: float, b: float, want: float) -> None:
    assert fold(Binary(op, Literal(a), Literal(b))) == Literal(want)


def test_the_least_integer_is_a_negated_literal() -> None:
    assert fold(Unary("-", Literal(2**31))) == Literal(-(2**31)) == fold(Unary("-", Literal(-(2**31))))


@given(INTEGERS, st.integers(1, 2**20))
def test_cdiv_rounds_up(a: int, b: int) -> None:  # beyond 2^31 - b it is exact, too
    folded = fold(Call(Name("cdiv"), (Literal(a), Literal(b))))
    assert isinstance(folded, Literal) and (folded.value - 1) * b < a <= folded.value * b


def test_min_and_max_take_many() -> None:
    assert fold(Call(Name("max"), (Literal(3), Literal(2.5)))) == Literal(3.0)
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
        Call(Name("exp2"), (Literal(1.0),)),  # the hardware's
        Binary("/", Literal(1.0), Literal(0.0)),  # inf, which is no literal
        Binary("*", Literal(1e30), Literal(1e30)),
        Binary("*", Literal(2**31), Literal(2)),  # a literal that no i32 holds is the checker's to report
        Call(Name("where"), (Literal(True), Literal(True), Literal(False))),
    ],
)
def test_stays(expr: Expr) -> None:
    assert fold(expr) is expr


def test_division_by_zero_is_told() -> None:
    with pytest.raises(ZeroDivisionError):
        fold(Binary("//", Literal(1), Literal(0)))


NAMES = {"a": Literal(7), "b": Literal(-2), "t": Literal(True), "T": Name("f16")}


@given(
    st.recursive(
        st.sampled_from([Name("a"), Name("b"), Literal(3)]),
        lambda inner: (
            st.builds(Binary, st.sampled_from(["+", "-", "*"]), inner, inner)
            | st.builds(lambda x, y: Call(Name("max"), (x, y)), inner, inner)
        ),
    )
)
def test_an_expression_of_known_names_is_known(expr: Expr) -> None:
    def value(e: Expr) -> int:
        if isinstance(e, Binary):
            return OPS[e.op](value(e.left), value(e.right))
        if isinstance(e, Call):
            return max(map(value, e.args))
        return (NAMES[e.id] if isinstance(e, Name) else e).value  # type: ignore[union-attr,return-value]

    assert specialise(expr, NAMES) == Literal(wrap(value(expr)))


def test_only_what_is_chosen_is_evaluated() -> None:
    wrong = Binary("//", Name("a"), Literal(0))
    assert specialise(IfExp(Name("t"), Name("a"), wrong), NAMES) == Literal(7)
    assert specialise(Binary("or", Name("t"), wrong), NAMES) == Literal(True)
    assert specialise(Binary("==", Name("T"), Name("f16")), NAMES) == Literal(True)
    assert specialise(Binary("+", Name("a"), X), NAMES) == Binary("+", Literal(7), X)
    with pytest.raises(ZeroDivisionError):
        specialise(wrong, NAMES)
