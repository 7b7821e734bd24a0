"""Problems and what they should come to: on some heads alone the same as on all; holes, stale rows and shifted masks are seen."""

from __future__ import annotations

import math

import pytest
import torch

import corpus
from cuir import CuirError
from cuir.performance.timing.problem import Shape, compute_expectation, count_kept_pairs, make_tensors
from cuir.spec.loading import as_specification
from cuir.spec.specification import Specification, lengths_of

SHAPE = Shape(2, 4, 2, 70, 90, 16)


def variant(name: str, **parameters: int) -> Specification:
    return as_specification(corpus.variant(name), name, parameters)


def problem(shape: Shape = SHAPE) -> dict[str, torch.Tensor]:
    return make_tensors(shape, torch.float16, "cpu")


def test_values_may_have_a_head_dim_of_their_own() -> None:
    shape = Shape.parse("1,4,2,3,5,192,128")
    assert shape.consts == {"D": 192, "DV": 128} and Shape.parse(str(shape)) == shape and shape.as_tuple() == (1, 4, 2, 3, 5, 192, 128)
    assert Shape.parse("1,4,2,3,5,192,192") == Shape.parse("1,4,2,3,5,192") and Shape.parse("1,4,2,3,5,192").consts == {"D": 192}
    result = make_tensors(shape, torch.bfloat16, "cpu")
    assert [tuple(result[n].shape) for n in "QKV"] == [(1, 4, 3, 192), (1, 2, 5, 192), (1, 2, 5, 128)]


@pytest.mark.parametrize(
    "text", ["", "1,2", "1,2,2,3,4,five", "1,2,2,0,4,64", "1,3,2,4,4,64", "1,2,2,3,4,64,7,8", "1,2,2,3,4,64,0", "1,-2,-2,3,4,64"]
)
def test_malformed_shapes(text: str) -> None:
    with pytest.raises(CuirError) as error:
        Shape.parse(text)
    assert error.value.diagnostics[0].code == "U116"


def test_a_shape_is_read_as_it_is_written() -> None:
    assert Shape.parse(str(SHAPE)) == SHAPE


@pytest.mark.parametrize("name", ["full", "causal", "sliding_window", "document", "causal_blockwise", "share_question", "alibi"])
def test_pairs_are_those_of_the_mask(name: str) -> None:
    p, spec = problem(), variant(name)
    assert count_kept_pairs(spec, p["Q"], p["K"]) == int(spec.mask(lengths_of(p["Q"], p["K"])).sum())


@pytest.mark.parametrize("name", ["causal", "document", "alibi", "share_question", "sink_causal", "relu"])
def test_one_head_alone_is_what_it_is_among_all(name: str) -> None:
    p, spec = problem(), variant(name)
    q, k, v = p["Q"], p["K"], p["V"]
    actual = compute_expectation(spec, q, k, v, 0.25)
    expected, lse = spec.reference(q, k, v, 0.25)
    assert [(b, h) for b, h, _, _ in actual.parts] == [(0, 0), (1, 3)]
    for b, h, o, part_lse in actual.parts:
        assert torch.equal(o, expected[b, h]) and torch.equal(part_lse, lse[b, h])


@pytest.mark.parametrize("name", ["causal", "document", "alibi_causal", "share_question"])
def test_pieces_are_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    p, spec = problem(), variant(name)
    pairs, whole = count_kept_pairs(spec, p["Q"], p["K"]), compute_expectation(spec, p["Q"], p["K"], p["V"], 0.25)
    monkeypatch.setattr("cuir.performance.timing.problem.PAIRS", 90 * 32)  # 32, 32 and 6 queries
    assert count_kept_pairs(spec, p["Q"], p["K"]) == pairs
    result = compute_expectation(spec, p["Q"], p["K"], p["V"], 0.25)
    for item, second in zip(result.parts, whole.parts, strict=True):
        torch.testing.assert_close(item[2:], second[2:], atol=1e-12, rtol=1e-12)
    assert result.half_error == pytest.approx(whole.half_error, rel=0.02)


def test_a_mask_that_does_not_depend_on_the_query_counts_for_all() -> None:
    spec = as_specification(lambda b, h, i, j: j < 7, "first")
    p = problem()
    assert count_kept_pairs(spec, p["Q"], p["K"]) == 2 * 4 * 70 * 7


def right(spec: Specification, p: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    o, lse = spec.half(p["Q"], p["K"], p["V"], 0.25)
    return o.nan_to_num(), lse.float()


def test_half_precision_is_right() -> None:
    p, spec = problem(), variant("causal")
    assert compute_expectation(spec, p["Q"], p["K"], p["V"], 0.25).judge(*right(spec, p)) == ""


def test_what_is_wrong_is_said() -> None:
    p, spec = problem(), variant("causal")
    expected = compute_expectation(spec, p["Q"], p["K"], p["V"], 0.25)
    o, lse = right(spec, p)

    def judge(o: torch.Tensor, lse: torch.Tensor) -> str:
        return expected.judge(o, lse)

    hole = o.clone()
    hole[1, 2, 30] = math.nan  # a head that is not compared
    assert "not written" in judge(hole, lse)
    stale = o.clone()
    stale[0, 0, 1] = o[0, 0, 2]
    assert "relative error" in judge(stale, lse)
    shifted, _ = right(variant("causal_top_left"), p)
    assert "relative error" in judge(shifted, lse)
    assert "LSE is off" in judge(o, lse * 1.01)
    unwritten = lse.clone()
    unwritten[1, 1, 5] = math.nan
    assert "LSE has NaNs" in judge(o, unwritten)


def test_queries_without_keys_give_zero() -> None:
    p, spec = problem(Shape(1, 2, 2, 90, 70, 16)), variant("causal")  # more queries than keys: the first see none
    expected = compute_expectation(spec, p["Q"], p["K"], p["V"], 0.25)
    o, lse = right(spec, p)
    assert bool((lse == -math.inf).any()) and expected.judge(o, lse) == ""
    bad = o.clone()
    bad[0, 0, 0, 0] = 1e-6
    assert "without keys" in expected.judge(bad, lse)
    assert "without keys" in expected.judge(o, lse.masked_fill(lse == -math.inf, 0.0))
