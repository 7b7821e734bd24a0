"""Floating-point arithmetic against exact fractions, in every format and rounding mode."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from cuir.ptx.isa.float_formats import decode
from cuir.ptx.isa.instruction_table import DTYPES, UnknownForm, compute
from tests.ptx.isa.reference import draw_bits, round_exactly

EXACT = {
    "add": lambda a, b, c: Fraction(a) + Fraction(b),
    "sub": lambda a, b, c: Fraction(a) - Fraction(b),
    "mul": lambda a, b, c: Fraction(a) * Fraction(b),
    "fma": lambda a, b, c: Fraction(a) * Fraction(b) + Fraction(c),
    "div": lambda a, b, c: Fraction(a) / Fraction(b),
    "rcp": lambda a, b, c: 1 / Fraction(a),
}
COUNTS = {"fma": 3, "rcp": 1}
CASES = [f"{name}.{mode}.f32" for name in EXACT for mode in ("rn", "rz", "rm", "rp")]
CASES += [f"{name}.rn.{t}" for name in ("add", "sub", "mul", "fma") for t in ("f16", "bf16")] + [
    f"{name}.rn.f64" for name in ("add", "mul", "fma", "div")
]


@pytest.mark.parametrize("text", CASES)
def test_arithmetic_is_rounded_once(text: str) -> None:
    name, mode, t = text.split(".")
    width = {"f32": 32, "f64": 64}.get(t, 16)
    bits = [draw_bits(width, 300, seed) for seed in range(3)]
    if t == "f64":
        bits = [(np.random.default_rng(i).standard_normal(300)).view(np.uint64) for i in range(3)]
    operands = [b.view(DTYPES[t]) for b in bits][: COUNTS.get(name, 2)]
    with np.errstate(invalid="ignore"):  # NaN among the bits
        result = decode(np.asarray(compute(text, *operands)), t)
        values = [[float(x) for x in decode(o, t)] for o in operands]
    checked = 0
    for i, numbers in enumerate(zip(*values)):
        a, b, c = (*numbers, 1.0, 1.0)[:3]
        if not all(map(math.isfinite, (a, b, c))) or (name == "div" and b == 0) or (name == "rcp" and a == 0):
            continue
        exact = EXACT[name](a, b, c)
        if exact == 0:
            assert result[i] == 0
            continue
        expected = round_exactly(exact, t, mode)
        assert result[i] == expected or (math.isinf(expected) and result[i] == expected), (text, numbers, float(result[i]), expected)
        checked += 1
    assert checked > 100


def test_fused_products_differ_from_two_roundings_where_they_should() -> None:
    a = np.array([1 + 2.0**-23], np.float32)
    c = -(a * a)
    assert compute("fma.rn.f32", a, a, c)[0] == np.float32(2.0**-46)


@pytest.mark.parametrize(("t", "unit"), [("f16x2", np.float16)])
def test_pairs_compute_both_halves(t: str, unit: type) -> None:
    a, b = draw_bits(32, 200, 1), draw_bits(32, 200, 2)
    result = np.asarray(compute(f"add.{t}", a, b)).view(unit)
    with np.errstate(all="ignore"):
        expected = (a.view(unit).astype(np.float32) + b.view(unit).astype(np.float32)).astype(unit)
    np.testing.assert_array_equal(result, expected)


def test_subnormal_numbers_are_flushed_if_named() -> None:
    tiny = np.array([1e-40, -1e-40], np.float32)
    assert list(np.signbit(compute("add.ftz.f32", tiny, np.zeros(2, np.float32)))) == [False, False]
    result = compute("mul.ftz.f32", tiny, np.ones(2, np.float32))
    assert (result == 0).all() and list(np.signbit(result)) == [False, True]
    assert (compute("mul.f32", tiny, np.ones(2, np.float32)) == tiny).all()


def test_saturation_clamps_and_makes_nan_zero() -> None:
    x = np.array([-1, 0.5, 2, np.nan], np.float32)
    np.testing.assert_array_equal(compute("add.sat.f32", x, np.zeros(4, np.float32)), np.array([0, 0.5, 1, 0], np.float32))


def test_nan_is_canonical() -> None:
    x = np.array([0x7FC12345], np.uint32).view(np.float32)
    assert np.asarray(compute("add.f32", x, x)).view(np.uint32)[0] == 0x7FFFFFFF


def test_extrema_order_zeros_and_prefer_numbers() -> None:
    a = np.array([0.0, -0.0, np.nan, 1.0, np.nan], np.float32)
    b = np.array([-0.0, 0.0, 2.0, np.nan, np.nan], np.float32)
    low, high = np.asarray(compute("min.f32", a, b)), np.asarray(compute("max.f32", a, b))
    assert np.signbit(low[:2]).all() and not np.signbit(high[:2]).any()
    assert low[2] == high[2] == 2 and low[3] == high[3] == 1 and np.isnan(low[4])
    assert np.isnan(compute("max.NaN.f32", a, b)[2:]).all()


@pytest.mark.parametrize(
    ("text", "reference"), [("ex2", np.exp2), ("lg2", np.log2), ("sin", np.sin), ("cos", np.cos), ("tanh", np.tanh), ("sqrt", np.sqrt)]
)
def test_approximations_lie_within_their_bound(text: str, reference: object) -> None:
    x = np.abs(np.random.default_rng(0).standard_normal(300)).astype(np.float32)
    np.testing.assert_allclose(compute(f"{text}.approx.f32", x), reference(x.astype(np.float64)), rtol=2.0**-22)  # type: ignore[operator]


def test_signs_are_bits_of_numbers() -> None:
    bits = draw_bits(32)
    numbers = ~np.isnan(bits.view(np.float32))
    np.testing.assert_array_equal(compute("neg.f32", bits)[numbers], (bits ^ np.uint32(1 << 31))[numbers])
    assert (compute("abs.f32", bits)[~numbers] == 0x7FFFFFFF).all() and not numbers.all()
    a, b = bits.view(np.float32), bits[::-1].view(np.float32)
    np.testing.assert_array_equal(np.signbit(compute("copysign.f32", a, b)), np.signbit(a))


def test_products_are_flushed_before_they_are_rounded() -> None:
    least, below_one = np.array([2.0**-126], np.float32), np.array([1 - 2.0**-24], np.float32)
    assert compute("mul.f32", least, below_one)[0] == least[0]
    assert compute("mul.ftz.f32", least, below_one)[0] == compute("div.rp.ftz.f32", least, 1 / below_one)[0] == 0


def test_double_precision_is_rounded_by_every_mode() -> None:
    a, b = (np.random.default_rng(i).standard_normal(100) * 2.0 ** np.linspace(-300, 0, 100) for i in range(2))
    for mode in ("rz", "rm", "rp"):
        for name, exact in (("add", Fraction.__add__), ("mul", Fraction.__mul__)):
            result = compute(f"{name}.{mode}.f64", a, b)
            expected = [round_exactly(exact(Fraction(x), Fraction(y)), "f64", mode) for x, y in zip(a.tolist(), b.tolist())]
            np.testing.assert_array_equal(result, expected)


def test_properties_are_told_apart() -> None:
    x = np.array([1, np.inf, np.nan, 1e-40, 0], np.float32)
    answers = {
        name: np.asarray(compute(f"testp.{name}.f32", x)).tolist()
        for name in ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    }
    assert answers["finite"] == [True, False, False, True, True] and answers["infinite"] == [False, True, False, False, False]
    assert answers["number"] == [not n for n in answers["notanumber"]] == [True, True, False, True, True]
    assert answers["normal"] == [True, False, False, False, True] and answers["subnormal"] == [False, False, False, True, False]


def test_an_unknown_modifier_is_refused() -> None:
    with pytest.raises(UnknownForm, match="odd"):
        compute("add.odd.f32", np.zeros(1, np.float32), np.zeros(1, np.float32))
