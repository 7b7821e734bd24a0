"""Comparisons with NaN, combinations of predicates, and every table of lop3."""

from __future__ import annotations

import math
import operator

import numpy as np
import pytest

from cuir.ptx.isa.instruction_table import compute

X = np.array([1, 2, 2, np.nan, np.nan, -0.0, np.inf], np.float32)
Y = np.array([2, 1, 2, 1, np.nan, 0.0, np.inf], np.float32)
TESTS = {"eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}


@pytest.mark.parametrize("name", TESTS)
def test_nan_makes_a_comparison_false_and_an_unordered_one_true(name: str) -> None:
    for suffix, with_nan in (("", False), ("u", True)):
        result, inverse = compute(f"setp.{name}{suffix}.f32", X, Y)
        expected = [with_nan if math.isnan(a) or math.isnan(b) else TESTS[name](a, b) for a, b in zip(X.tolist(), Y.tolist())]
        assert result.tolist() == expected and inverse.tolist() == [not e for e in expected]
    assert compute("setp.num.f32", X, Y)[0].tolist() == [not n for n in compute("setp.nan.f32", X, Y)[0].tolist()]


def test_signed_and_unsigned_comparisons_differ() -> None:
    a, b = np.array([0xFFFFFFFF], np.uint32), np.array([1], np.uint32)
    assert compute("setp.lt.s32", a, b)[0][0] and not compute("setp.lo.u32", a, b)[0][0] and compute("setp.hi.u32", a, b)[0][0]


@pytest.mark.parametrize(("name", "function"), [("and", np.logical_and), ("or", np.logical_or), ("xor", np.logical_xor)])
def test_predicates_are_combined_with_both_results(name: str, function: np.ufunc) -> None:
    a, b, c = np.array([1, 1, 2, 2]), np.array([2, 2, 1, 1]), np.array([True, False, True, False])
    first, second = compute(f"setp.lt.{name}.s32", a, b, c)
    assert first.tolist() == function(a < b, c).tolist() and second.tolist() == function(a >= b, c).tolist()


def test_pairs_have_a_predicate_each() -> None:
    a, b = np.array([[1, 5]], np.float16).view(np.uint32)[:, 0], np.array([[2, 4]], np.float16).view(np.uint32)[:, 0]
    low, high = compute("setp.lt.f16x2", a, b)
    assert (low[0], high[0]) == (True, False)


def test_every_table_of_three_operands() -> None:
    a, b, c = (np.array([v], np.uint32) for v in (0xF0, 0xCC, 0xAA))
    for table in range(256):
        assert int(np.asarray(compute("lop3.b32", a, b, c, np.array(table)))[0]) & 255 == table


def test_set_and_selections() -> None:
    assert np.asarray(compute("set.lt.u32.f32", X, Y)).tolist() == [0xFFFFFFFF, 0, 0, 0, 0, 0, 0]
    assert np.asarray(compute("set.gt.f32.s32", np.array([2, 1]), np.array([1, 2]))).tolist() == [1.0, 0.0]
    p = np.array([True, False])
    assert np.asarray(compute("selp.b32", np.array([1, 1]), np.array([2, 2]), p)).tolist() == [1, 2]
    assert np.asarray(compute("slct.b32.s32", np.array([1, 1]), np.array([2, 2]), np.array([0, -1]))).tolist() == [1, 2]
    assert np.asarray(compute("cnot.b32", np.array([0, 7], np.uint32))).tolist() == [1, 0]
    assert np.asarray(compute("not.pred", p)).tolist() == [False, True]
