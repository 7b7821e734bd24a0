"""Captured float64: refused where rounding to float32 changes which pairs count, or a score; else taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cuir import CuirError
from cuir.attn.tracing import float64_captures
from cuir.attn.tracing.mod_evaluator import evaluate
from cuir.attn.tracing.read_ranges import Reads, trace_without_clashes
from cuir.spec.specification import Lengths, Specification, indices

N = 16
AT = Lengths(1, 2, 2, N, N)
SECONDS = 1.7e9 + torch.arange(N, dtype=torch.float64) * 7
GATES = torch.rand(N, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
EDGE = torch.full((N,), 0.5 + 2.0**-40, dtype=torch.float64)
TABLE = torch.arange(8.0)
NEARLY = torch.full((N,), 3 - 2.0**-40, dtype=torch.float64)
LARGE = torch.full((N,), 1e300, dtype=torch.float64)
SPECIAL = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.1] * 4, dtype=torch.float64)
CUT = 1.7e9 + 50.0


def make_reads(mask: Any = None, score: Any = None, at: Lengths | None = AT) -> Reads:
    traced = trace_without_clashes(Specification("doubles", mask, score))
    reads, values = Reads(traced), [p.value for p in traced.parameters]
    if at is None:
        reads.check_doubles(values, torch.device("cpu"))
    else:
        reads.check(values, at, torch.device("cpu"))
    return reads


REFUSED: dict[str, dict[str, Callable[..., Any]]] = {
    "differences of large numbers": {"mask": lambda b, h, q, k: (SECONDS[q] - SECONDS[k]).abs() < 20},
    "equality": {"mask": lambda b, h, q, k: SECONDS[q] == SECONDS[k]},
    "a threshold": {"mask": lambda b, h, q, k: EDGE[q] > 0.5},
    "a captured number": {"mask": lambda b, h, q, k: SECONDS[q] < CUT},
    "an index": {"score": lambda s, b, h, q, k: s + TABLE[NEARLY[q].long()]},
    "an index of a mask": {"mask": lambda b, h, q, k: TABLE[NEARLY[q].long()] > 2.5},
    "a step of a score": {"score": lambda s, b, h, q, k: s + torch.floor(NEARLY[q])},
    "a choice of a score": {"score": lambda s, b, h, q, k: torch.where(EDGE[k] > 0.5, s, s - 1)},
    "a distance of a score": {"score": lambda s, b, h, q, k: s - 0.5 * (SECONDS[q] - SECONDS[k])},
    "the score of a threshold": {"score": lambda s, b, h, q, k: torch.where(s + SECONDS[q] - SECONDS[k] > 3.5, s, s - 1)},
}
ACCEPTED: dict[str, dict[str, Callable[..., Any]]] = {
    "an offset that was taken off": {"mask": lambda b, h, q, k, x=SECONDS - SECONDS[0]: (x[q] - x[k]).abs() < 20},
    "a threshold": {"mask": lambda b, h, q, k: GATES[q] > 0.5},
    "whole numbers": {"mask": lambda b, h, q, k, x=torch.arange(N, dtype=torch.float64): x[q] >= x[k]},
    "a bias": {"score": lambda s, b, h, q, k: s + GATES[q] * 3 - GATES[k].tanh()},
    "a factor": {"score": lambda s, b, h, q, k: s * GATES[k] + torch.exp(GATES[q])},
    "an index": {"score": lambda s, b, h, q, k: s + TABLE[(GATES[q] * 7.5).long()]},
    "special numbers": {"score": lambda s, b, h, q, k: s + SPECIAL[k]},
    "a large bias": {"score": lambda s, b, h, q, k: s + 1e4 * GATES[k]},
    "a choice": {"score": lambda s, b, h, q, k: torch.where(GATES[k] > 0.5, s, s - GATES[q])},
}


@pytest.mark.parametrize("at", [AT, None], ids=["lengths", "lengths on the device"])
@pytest.mark.parametrize("name", REFUSED)
def test_rounding_that_changes_something_is_refused(name: str, at: Lengths | None) -> None:
    with pytest.raises(CuirError) as caught:
        make_reads(**REFUSED[name], at=at)
    (text,) = caught.value.diagnostics
    assert text.code == "U417" and "of float64 is rounded to float32" in text.message and "before the call" in (text.hint or "")
    assert text.span is not None and text.span.source.name.endswith("test_float64_captures.py")


@pytest.mark.parametrize("at", [AT, None], ids=["lengths", "lengths on the device"])
@pytest.mark.parametrize("name", ACCEPTED)
def test_rounding_that_changes_nothing_is_taken(name: str, at: Lengths | None) -> None:
    make_reads(**ACCEPTED[name], at=at)


def test_numbers_beyond_float32_are_refused_as_constants_are() -> None:
    with pytest.raises(CuirError, match=r"U417.*`LARGE` holds 1e\+300"):
        make_reads(score=lambda s, b, h, q, k: s + LARGE[k])


def test_only_pairs_that_count_have_a_score() -> None:
    mask, score = (lambda b, h, q, k: q == k), REFUSED["a distance of a score"]["score"]
    make_reads(mask, score)


def test_smooth_scores_of_small_numbers_need_no_look_at_the_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(*args: Any) -> None:
        raise AssertionError("a look at the pairs")

    monkeypatch.setattr(float64_captures.Doubles, "_compare", look)
    for name in ("a bias", "a factor", "whole numbers", "special numbers"):
        make_reads(**ACCEPTED[name])
    with pytest.raises(AssertionError):
        make_reads(**ACCEPTED["a threshold"])


def test_too_many_pairs_of_unknown_lengths_are_refused_and_known_ones_looked_at() -> None:
    many = torch.rand(2**14, dtype=torch.float64)
    mask = lambda b, h, q, k: many[q] > many[k]  # noqa: E731
    with pytest.raises(CuirError, match=r"U417.*too much to look at"):
        make_reads(mask, at=None)
    make_reads(mask, at=Lengths(1, 1, 1, 64, 64))


nearby = st.floats(-4, 4).map(lambda x: round(x * 4) / 4)
values = st.lists(
    st.one_of(nearby, st.builds(lambda x, e: x * (1 + e * 2.0**-30), nearby, st.integers(-3, 3)), st.floats(-1e9, 1e9)),
    min_size=N,
    max_size=N,
)


@given(values, st.one_of(nearby, st.floats(-1e3, 1e3)))
def test_a_mask_that_is_taken_is_that_of_float64(numbers: list[float], cut: float) -> None:
    x = torch.tensor(numbers, dtype=torch.float64)
    inexact = bool((x != x.float().double()).any())

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        return (x[q] - x[k] < cut) & (x[k] > -1.5)

    traced = trace_without_clashes(Specification("doubles", mask))
    _, _, q, k = indices(AT, "cpu")
    names = {"q": q.int(), "k": k.int(), **{p.name: p.on(p.value, "cpu") for p in traced.parameters}}  # type: ignore[arg-type]
    kernel = torch.as_tensor(evaluate(traced.keep, names))  # type: ignore[arg-type]
    expected = mask(0, 0, q, k)
    try:
        make_reads(mask)
    except CuirError:
        assert not torch.equal(kernel.expand(expected.shape), expected)
    else:
        assert not inexact or torch.equal(kernel.expand(expected.shape), expected)
