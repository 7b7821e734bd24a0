"""The inputs that verification draws: what each kind promises, cases that are drawn from a seed, and the smallest case that fails."""

from __future__ import annotations

import functools
import math
import random
from importlib.resources import files
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import corpus
from cuir.attn.splicing.splice import transfer
from cuir.attn.verification.problems import (
    GROWTHS,
    Kind,
    Launch,
    draw,
    get_dtype,
    get_head_dims,
    list_simpler_cases,
    make_attention_launch,
    make_cases,
)
from cuir.checking.checker import check
from cuir.spec.function_specification import FunctionSpecification
from cuir.spec.loading import as_specification
from cuir.spec.specification import Lengths
from cuir.syntax.parser import parse
from cuir.syntax.types import BF16, F16
from cuir.text.diagnostics import CuirError
from cuir.verification import Case, check_numbers, verify
from cuir.verification.inputs import make_function_launch
from cuir.verification.spec_dispatch import shrink_error
from cuir.verification.values.cases import Draw
from cuir.verification.values.special_plan import SPECIAL

CONSTS = {"T": F16, "D": 64}
CAUSAL = as_specification(corpus.variant("causal"), "causal", {})
EXPERT = transfer(parse(files("corpus").joinpath("kernels/flash_fwd_sm90.cuir").read_text(encoding="utf-8")), CAUSAL).text
PROGRAM = parse(EXPERT)
CHECKED = check(PROGRAM, None, CONSTS)


def make_launch(kind: Kind, lengths: Lengths, seed: int = 0) -> Launch:
    return make_attention_launch(PROGRAM, CHECKED, CAUSAL, Case("x", lengths, kind, seed))


def logits(inputs: Launch) -> torch.Tensor:
    """Base 2, [B, H, M, N]."""
    k = inputs.k.double().repeat_interleave(inputs.q.shape[1] // inputs.k.shape[1], 1)
    return inputs.q.double() @ k.mT * inputs.scale * math.log2(math.e)


def test_maxima_grow_and_fall_by_steps_around_the_threshold() -> None:
    inputs = make_launch("growing", Lengths(1, 2, 2, 60, 4 * 128))
    tops = logits(inputs).view(1, 2, 60, 4, 128).amax(-1)[0]
    for q in range(60):
        steps = tops[:, q].diff()
        expected = GROWTHS[q % len(GROWTHS)]
        assert (steps[0, :2] - expected).abs().max() < 1 and (steps[1, 1:] + expected).abs().max() < 1
    above, below = (steps_of for steps_of in (tops[0, 1::6].diff()[:, :2], tops[0, 2::6].diff()[:, :2]))
    assert (above > 8).any() and (above < 9.6).all() and (below < 8).any()
    assert inputs.v.isfinite().all() and inputs.v[0, 0, :128].std() > 20 * inputs.v[0, 0, 128:256].std()


def test_kinds_are_what_they_say() -> None:
    at = Lengths(1, 2, 1, 40, 200)
    huge = make_launch("huge", at)
    assert not (huge.q @ huge.k.mT).isfinite().all() and huge.q.isfinite().all()
    offset = logits(make_launch("offset", at))
    assert (offset[:, :, 0::2] > 200).all() and (offset[:, :, 1::2] < -200).all()
    constant = make_launch("constant", at)
    assert all((x == x[:, :, :1]).all() for x in (constant.q, constant.k, constant.v))
    assert (make_launch("equal", at).k[:, :, 0] == make_launch("equal", at).k[:, :, 7]).all() and logits(
        make_launch("tiny", at)
    ).abs().max() < 1e-4
    item, two = make_launch("normal", at, 1), make_launch("normal", at, 2)
    assert not torch.equal(item.q, two.q) and torch.equal(item.q, make_launch("normal", at, 1).q)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("N", [0, 1, 300])
def test_every_kind_has_inputs_of_every_length(kind: Kind, N: int) -> None:
    result = make_launch(kind, Lengths(2, 4, 2, 3, N))
    assert result.k.shape == result.v.shape == (2, 2, N, 64) and all(x.isfinite().all() for x in (result.q, result.k, result.v))


NEW = "new = where(some, where(moves, most, top), top)"


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "acc = rescaled(acc, alpha)",
            "acc = rescaled(rescaled(acc, alpha), alpha)",
        ),  # the second factor is near 0 for inputs that grow by chance
        ("total * alpha + row_sum(P)", "total * alpha * alpha + row_sum(P)"),
        ("most - top > THRESHOLD", "most - top > THRESHOLD + 12"),
        (NEW, "new = where(most == most, 0.0, top)"),
        (NEW, "new = top"),
    ],
)
def test_a_wrong_rescale_is_found_by_the_quick_cases(old: str, new: str) -> None:
    assert old in EXPERT
    program = parse(EXPERT.replace(old, new))
    checked, codes = check(program, None, CONSTS), []
    for case in make_cases(CAUSAL, 128, 128, [], "quick"):
        try:
            check_numbers(program, checked, CAUSAL, case)
        except CuirError as error:
            codes.append(error.diagnostics[0].code)
    assert set(codes) & {"V301", "V302", "V304"}


# ---- drawn and small
def test_drawn_cases_come_from_their_seed() -> None:
    first, repeated, second = ([draw(random.Random(s), "x", 64, 64) for _ in range(3)] for s in (1, 1, 2))
    assert first == repeated != second
    full = make_cases(CAUSAL, 64, 64, [], "full")
    assert max(c.lengths.N for c in full) >= 8192 <= max(c.lengths.M for c in full)
    assert {c.kind for c in full} == set(get_args(Kind)) - {"aligned", "faint", *SPECIAL} and len({c.name for c in full}) == len(full)
    assert all(str(c.seed) in str(c) for c in full if c.seed)


@given(st.integers(0, 10**6))
def test_simpler_cases_end(seed: int) -> None:
    case = draw(random.Random(seed), "x", 128, 64)
    size = lambda c: (c.lengths.B * c.lengths.H * c.lengths.M * c.lengths.N + c.lengths.HK, c.kind != "normal", c.seed)  # noqa: E731
    assert case.lengths.H % case.lengths.HK == 0
    while (following := list(list_simpler_cases(case))) != []:
        for c in following:
            assert c != case and c.lengths.H % c.lengths.HK == 0 and min(c.lengths.M, c.lengths.N) > 0
            assert size(c) < size(case) or c.kind == "normal" or c.seed == 0
        case = following[-1] if seed % 2 else following[0]
    assert case.lengths == Lengths(1, 1, 1, 1, 1) and case.kind == "normal" and case.seed == 0


def test_the_smallest_failing_case_is_shown() -> None:
    """The last key of a block is dropped: one query and the keys up to it are enough."""
    text = EXPERT.replace("P = exp2(S * c - new)", "P = exp2(S * c - new) * where(cols(128) == 70, 0.0, 1.0)")
    program = parse(text)
    checked, case = check(program, None, CONSTS), Case("large", Lengths(2, 4, 2, 150, 300), "strided", 7)
    with pytest.raises(CuirError) as caught:
        check_numbers(program, checked, CAUSAL, case)
    result = shrink_error(program, checked, CAUSAL, case, caught.value, 20.0)
    assert result.diagnostics[0].code == "V301"
    notes = " / ".join(n.message for n in result.diagnostics[0].notes)
    assert "B=1, H=1, HK=1, M=1," in notes and "N=71, normal inputs" in notes and "first seen in the case large: B=2" in notes


@pytest.mark.usefixtures("no_schedules")
def test_verification_shows_the_smallest_case_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "cuir.verification.numbers_stage.shrink_error", functools.partial(shrink_error, seconds=2.0)
    )  # the first simpler one will do
    program = parse(EXPERT.replace("(top + log2(total)) * LN2", "(top + log2(total)) * 0.6932"))
    output, plain = (verify(program, CAUSAL, consts=CONSTS | {"BM": 64, "BN": 64}, seeded=0, shrink=shrink) for shrink in (True, False))
    for report, expected in ((output, True), (plain, False)):
        assert report.diagnostics[0].code == "V304"
        assert any("first seen in the case" in n.message for n in report.diagnostics[0].notes) == expected


LITERAL = """\
@kernel(arch="sm_90a")
def attend(
    Q: Global[bf16, B, H, M, 64], K: Global[bf16, B, HK, N, 64], V: Global[bf16, B, HK, N, 32],
    O: Global[bf16, B, H, M, 32], LSE: Global[f32, B, H, M], scale: f32
):
    work = tiles(B * H * cdiv(M, 64))
    with role("all", warpgroups=1):
        for t in work:
            r = t % cdiv(M, 64) * 64 + rows(64)
            b, h = t // cdiv(M, 64) // H, t // cdiv(M, 64) % H
            store(LSE[b, h, r], row_sum(cast(Q[b, h, r, cols(64)] * K[b, h * HK // H, r, cols(64)], f32)) * scale)
            store(O[b, h, r, cols(32)], V[b, h * HK // H, r, cols(32)])
"""


def test_dtype_and_head_dims_are_those_of_the_signature() -> None:
    checked = check(parse(LITERAL, "attend.cuir"))
    assert get_head_dims(checked) == (64, 32) and get_dtype(checked) == BF16
    spec = FunctionSpecification("attend", lambda q, k, v, scale: {"O": v, "LSE": (q * k).sum(-1) * scale})
    launch = make_function_launch(checked, spec, Draw("small", {"B": 1, "H": 2, "HK": 2, "M": 5, "N": 5}))
    assert [launch.inputs[n].shape[-1] for n in ("Q", "K", "V")] == [64, 64, 32]
