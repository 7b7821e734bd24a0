"""The model of cost: more work takes longer, whatever its numbers are, and what it proposes fits."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuir.performance.search.space import find_violation
from cuir.performance.selection import cost
from cuir.performance.selection.cost import Coefficients, Terms, generate_candidates, predict_milliseconds, rank_candidates
from cuir.performance.selection.work import Arithmetic
from cuir.performance.timing.problem import Shape
from cuir.syntax.types import BF16
from tests.performance.selection.conftest import adapt, work

amounts = st.floats(1e-3, 1e3)
coefficients = st.builds(
    Coefficients,
    **{f.name: amounts for f in fields(Coefficients) if f.name not in ("sharp", "turns", "cluster")},
    sharp=st.floats(1.0, 8.0),
    turns=st.floats(0.9, 1.2),
    cluster=st.floats(0.9, 1.2),
)
arithmetic = st.builds(Arithmetic, st.integers(0, 60), st.integers(0, 4))
terms = st.builds(
    Terms,
    groups=st.integers(1, 3),
    BN=st.sampled_from([64, 80, 128, 176]),
    D=st.sampled_from([16, 64, 128, 256]),
    DV=st.sampled_from([16, 64, 128, 256]),
    bytes=st.floats(1e3, 1e5),
    steps=st.floats(1e3, 1e7),
    masked=st.just(0.0),
    skipped=st.floats(0, 1e5),
    tiles=st.integers(1, 10000),
    sms=st.sampled_from([78, 132]),
    shortest=st.floats(0.01, 1.0),
    staged=st.booleans(),
    buffers=st.sampled_from([1, 2]),
    ahead=st.booleans(),
    turns=st.booleans(),
    cluster=st.booleans(),
    score=arithmetic,
    keep=arithmetic,
)


@given(terms, coefficients, st.floats(1.0, 4.0))
def test_more_work_takes_longer(t: Terms, c: Coefficients, factor: float) -> None:
    base = predict_milliseconds(t, c)
    assert base > 0
    more = [
        replace(t, steps=t.steps * factor),
        replace(t, masked=t.steps / 2),
        replace(t, skipped=t.skipped * factor),
        replace(t, bytes=t.bytes * factor),
        replace(t, D=t.D * 2, DV=t.DV * 2),
        replace(t, score=Arithmetic(t.score.plain + 8, t.score.special)),
        replace(t, score=Arithmetic(t.score.plain, t.score.special + 1)),
        replace(t, staged=False),
        *([replace(t, buffers=1)] if t.ahead else []),
    ]
    assert all(predict_milliseconds(m, c) >= base * (1 - 1e-9) for m in more)
    masked = replace(t, masked=t.steps)
    assert predict_milliseconds(replace(masked, keep=Arithmetic(t.keep.plain + 8, 0)), c) >= predict_milliseconds(masked, c) * (1 - 1e-9)


@given(terms, coefficients)
def test_more_multiprocessors_never_take_longer(t: Terms, c: Coefficients) -> None:
    """Up to what the last wave leaves idle: half as many multiprocessors as tiles are no slower than a quarter."""
    even = replace(t, tiles=4 * t.sms)
    assert predict_milliseconds(replace(even, sms=2 * t.sms), c) <= predict_milliseconds(even, c) * (1 + 1e-9)


@given(st.sampled_from([0.3, 0.9, 1.0]))
def test_a_last_wave_with_a_tile_costs_more_than_full_waves(part: float) -> None:
    c = Coefficients.load()
    t = Terms.of(work("full"), Shape(1, 132, 132, 1024, 1024, 64), {}, {"BM": 128, "BN": 128}, 132)
    one_more = replace(t, tiles=t.tiles + part, steps=t.steps * (t.tiles + part) / t.tiles)
    per_tile = (predict_milliseconds(one_more, c) - c.launch * 1e-3) / one_more.tiles
    assert per_tile >= (predict_milliseconds(t, c) - c.launch * 1e-3) / t.tiles * (1 - 1e-9)


def test_a_second_wave_of_a_few_tiles_takes_as_long_as_a_full_one() -> None:
    """So that larger tiles that need it lose to smaller ones that fill it."""
    c, shape = Coefficients.load(), Shape(1, 132, 132, 1024, 1024, 64)
    t = Terms.of(work("full"), shape, {}, {"BM": 128, "BN": 128}, 132)
    times = [predict_milliseconds(replace(t, tiles=n, steps=t.steps * n / t.tiles), replace(c, launch=0.0)) for n in (132, 140, 264)]
    assert times[0] * 1.8 < times[1] < times[2] < times[1] * 1.1


def test_a_longer_window_takes_longer() -> None:
    of, shape = work("sliding_window"), Shape(2, 32, 32, 8192, 8192, 128)
    times = [
        predict_milliseconds(Terms.of(of, shape, {"window": w}, {"BM": 128, "BN": 128}, 132), Coefficients.load())
        for w in (128, 512, 1024, 4096, 8192)
    ]
    assert times == sorted(times) and times[0] < times[-1] / 3


@pytest.mark.sweep
@pytest.mark.parametrize(
    "dims", [(16, 16), (32, 32), (64, 64), (80, 80), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256), (64, 256)]
)
def test_the_checker_takes_what_is_proposed(dims: tuple[int, int]) -> None:
    program = adapt("causal").program
    results = list(generate_candidates(Shape(1, 8, 8, 1024, 1024, *dims), {}))
    assert results and len(results) <= 9, "few, as each that is chosen is compiled"
    for setting in results:
        assert find_violation(program, None, {"T": BF16, "D": dims[0], "DV": dims[1], **setting}) is None


def test_what_is_given_stands() -> None:
    of, shape = work("causal"), Shape(2, 32, 32, 8192, 8192, 128)
    for ours in ({"BM": 192}, {"BN": 96}, {"BM": 128, "BN": 112}, {"QBUF": 1}):
        result = rank_candidates(of, shape, {}, 132, ours)
        assert all(s.get(n, v) == v for s in result for n, v in ours.items())
        assert result or ours == {"QBUF": 1}


def test_few_tiles_are_cut_smaller() -> None:
    """16 tiles of 128 queries leave most multiprocessors idle."""
    of = work("full")
    few, many = (rank_candidates(of, Shape(b, 16, 16, 128, 4096, 64), {}, 132, {})[0] for b in (1, 256))
    assert few["BM"] < many["BM"]


def test_a_tile_that_ends_before_the_next_begins_waits_for_no_queries() -> None:
    """AHEAD=False gives up softmax under the last product of the tile before, and is spared the wait for queries where they have one buffer."""
    of, c = work("full"), Coefficients.load()

    def predict(**setting: int) -> float:
        return predict_milliseconds(Terms.of(of, Shape(2, 32, 32, 1024, 1024, 256), {}, {"BM": 128, "BN": 64, **setting}, 132), c)

    assert predict(QBUF=1, AHEAD=False) < predict(QBUF=1) and predict(QBUF=2) < predict(QBUF=2, AHEAD=False)
    assert predict(QBUF=1, AHEAD=False) == predict(QBUF=2, AHEAD=False)
    wide = list(generate_candidates(Shape(1, 8, 8, 1024, 1024, 256), {}))
    assert {s["QBUF"] for s in wide if not s.get("AHEAD", True)} == {1} and any(s.get("AHEAD", True) for s in wide)


def test_its_numbers_are_there() -> None:
    expected_values = Coefficients.load()
    assert all(getattr(expected_values, f.name) >= 0 for f in fields(Coefficients)) and expected_values.as_json().keys() == {
        f.name for f in fields(Coefficients)
    }
    assert {p.name for p in adapt("causal").program.kernels()["flash_fwd"].params} >= cost.MODELLED_PARAMETERS
