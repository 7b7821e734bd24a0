"""Verification refuses a value or a derivative that is wrong on a bound of the score or at a tie alone, and no right one."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import corpus
from cuir.attn.splicing.backward import KERNEL, transfer_backward
from cuir.attn.splicing.splice import transfer
from cuir.attn.tracing import traced_functions as functions
from cuir.attn.tracing.read_ranges import trace_without_clashes
from cuir.attn.verification.problems import Case
from cuir.attn.verification.score_corners import KEYS, Decisions, ScoreInputs, make_score_inputs
from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.spec.function_specification import FunctionSpecification
from cuir.spec.specification import Lengths, Specification
from cuir.syntax.nodes import Program
from cuir.syntax.parser import parse
from cuir.syntax.types import BF16, F16
from cuir.text.diagnostics import CuirError
from cuir.verification import numbers_stage, schedules_stage, stages, verify
from cuir.verification.spec_dispatch import check_case, make_corner_cases

F = torch.nn.functional
CONSTS = {"T": F16, "D": 64, "BM": 64, "BN": 64}
LEVELS = torch.randn(2, 64, 64, generator=torch.Generator().manual_seed(0))
AT = Lengths(1, 2, 2, 18, KEYS)
Mod = Callable[..., torch.Tensor]

# right, and wrong on a bound or at a tie alone: of the derivative
SLOPES: dict[str, tuple[Mod, Mod]] = {
    "clamp": (lambda s, b, h, i, j: s.clamp(-1.0, 0.75), lambda s, b, h, i, j: F.hardtanh(s, -1.0, 0.75)),
    "relu6": (lambda s, b, h, i, j: F.relu6(s), lambda s, b, h, i, j: s.clamp(0.0, 6.0)),
    "hardtanh of a sum": (lambda s, b, h, i, j: F.hardtanh(s + 0.5, -1.0, 2.0), lambda s, b, h, i, j: (s + 0.5).clamp(-1.0, 2.0)),
    "softshrink": (
        lambda s, b, h, i, j: F.softshrink(s, 0.5),
        lambda s, b, h, i, j: torch.where(s >= 0.5, s - 0.5, torch.where(s <= -0.5, s + 0.5, 0.0 * s)),
    ),
    "leaky relu": (
        lambda s, b, h, i, j: F.leaky_relu(s - 2.0, 0.25),
        lambda s, b, h, i, j: torch.where(s >= 2.0, s - 2.0, 0.25 * (s - 2.0)),
    ),
    "distance": (lambda s, b, h, i, j: (s - 3.0).abs(), lambda s, b, h, i, j: torch.where(s >= 3.0, s - 3.0, 3.0 - s)),
    "tie": (
        lambda s, b, h, i, j: torch.maximum(s, LEVELS[h, i, j]),
        lambda s, b, h, i, j: torch.where(s >= LEVELS[h, i, j], s, LEVELS[h, i, j]),
    ),
    "no tie": (
        lambda s, b, h, i, j: torch.where(s > LEVELS[h, i, j], s, LEVELS[h, i, j]),
        lambda s, b, h, i, j: torch.maximum(s, LEVELS[h, i, j]),
    ),
    "tie of two functions": (
        lambda s, b, h, i, j: torch.minimum(s, 2.0 * s - 1.0),
        lambda s, b, h, i, j: torch.where(s <= 2.0 * s - 1.0, s, 2.0 * s - 1.0),
    ),
    "a bound of each head": (
        lambda s, b, h, i, j: s.clamp(max=LEVELS[h, 0, 0]),
        lambda s, b, h, i, j: torch.where(s < LEVELS[h, 0, 0], s, LEVELS[h, 0, 0]),
    ),
}
# and of the value
VALUES: dict[str, tuple[Mod, Mod]] = {
    "step": (lambda s, b, h, i, j: torch.where(s > 0.75, s, s - 4.0), lambda s, b, h, i, j: torch.where(s >= 0.75, s, s - 4.0)),
    "step of a product": (lambda s, b, h, i, j: torch.where(s * s >= 4.0, s, -s), lambda s, b, h, i, j: torch.where(s * s > 4.0, s, -s)),
    "floor": (lambda s, b, h, i, j: torch.floor(s), lambda s, b, h, i, j: torch.ceil(s) - 1.0),
    "dropped": (
        lambda s, b, h, i, j: torch.where(s < LEVELS[h, i, j], -torch.inf, s),
        lambda s, b, h, i, j: torch.where(s <= LEVELS[h, i, j], -torch.inf, s),
    ),
    "a bound that is off": (
        lambda s, b, h, i, j: torch.where(s > 6.0, 2.0, 0.0) + s,
        lambda s, b, h, i, j: torch.where(s > 6.005, 2.0, 0.0) + s,
    ),
}


@functools.cache
def expert(name: str) -> Program:
    return parse(corpus.kernels()[name].read_text(), f"{name}.cuir")


def of(mod: Mod) -> Specification:
    return Specification("score", lambda b, h, i, j: j <= i + 30, mod)


def judge(right: Mod, kernel_of: Mod, backward: bool) -> list[str]:
    """Judge the kernel of one mod by another at the corners of its scores alone, and return what was tried in words."""
    spec = of(kernel_of)
    if backward:
        program = transfer_backward(expert("flash_bwd_sm90"), spec, traced=trace_without_clashes(spec)).program
    else:
        program = transfer(expert("flash_fwd_sm90"), spec).program
    checked: Checked = check(program, KERNEL if backward else None, CONSTS)
    tried = []
    for words, requests, case in make_corner_cases(of(right), program, checked, []):
        check_case(program, checked, requests, case)
        tried.append(words)
    return tried


@pytest.mark.sweep
@pytest.mark.parametrize("name", SLOPES)
def test_a_derivative_that_is_wrong_at_a_corner_alone_is_refused(name: str) -> None:
    right, wrong = SLOPES[name]
    assert len(judge(right, right, backward=True)) == 1
    with pytest.raises(CuirError, match="V301"):
        judge(right, wrong, backward=True)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", VALUES)
def test_a_value_that_is_wrong_at_a_corner_alone_is_refused(name: str) -> None:
    right, wrong = VALUES[name]
    assert len(judge(right, right, backward=False)) == 1
    with pytest.raises(CuirError, match=r"V30[1-4]"):
        judge(right, wrong, backward=False)


@pytest.mark.sweep
@pytest.mark.parametrize("name", SLOPES)
def test_a_value_that_is_right_passes(name: str) -> None:
    for mod in SLOPES[name]:
        assert judge(mod, mod, backward=False)


def inputs_of(mod: Mod, dtype: torch.dtype = torch.float16) -> ScoreInputs | None:
    spec = Specification("score", None, mod)
    return make_score_inputs(spec, trace_without_clashes(spec), AT, 64, dtype)


@settings(max_examples=25, deadline=None)
@given(st.floats(-64, 64, width=32), st.sampled_from([torch.float16, torch.bfloat16, torch.float32]))
def test_scores_have_any_number_of_f32(bound: float, dtype: torch.dtype) -> None:
    """A number that 16 bits do not have is a sum of numbers that they have."""
    result = inputs_of(lambda s, b, h, i, j: torch.relu(s - bound), dtype)
    assert result is not None and (result.reached == result.total == 1 or abs(bound) < 1e-4)  # f16 has no smaller ones
    if not result.reached:
        return
    scores = result.q.float() @ result.k.float().mT * result.scale
    assert torch.equal(scores.double(), result.q.double() @ result.k.double().mT * result.scale)
    assert (scores == bound).any() and (scores < bound).any() and (scores > bound).any()
    assert ((scores == bound).sum(-1) > 1).any()  # a tie of keys, too


@pytest.mark.parametrize("mod", [lambda s, b, h, i, j: s + LEVELS[h, i, j], lambda s, b, h, i, j: 20 * torch.tanh(s / 20)])
def test_smooth_scores_have_no_corners(mod: Mod) -> None:
    assert inputs_of(mod) is None


def test_a_number_that_f32_lacks_has_neighbours_alone() -> None:
    """There f32 and f64 decide otherwise, and a right program would be refused."""
    result = inputs_of(lambda s, b, h, i, j: torch.where(s > 0.3, s, s - 4.0))
    assert result is not None and (result.reached, result.near, result.total) == (0, 1, 1)
    assert "closely beside 1 more" in result.words
    scores = result.q.double() @ result.k.double().mT * result.scale
    assert ((scores - 0.3).abs() < 1e-3).all() and (scores < 0.3).any() and (scores > 0.3).any()


def test_slopes_that_are_no_numbers_are_left_out() -> None:
    result = inputs_of(lambda s, b, h, i, j: torch.where(s > 0, torch.sqrt(s), 0.0))
    assert result is not None and result.reached == 0
    spec = Specification("score", None, lambda s, b, h, i, j: torch.where(s > 0, torch.sqrt(s), 0.0))
    decisions = Decisions(trace_without_clashes(spec), spec, AT)
    assert bool(decisions.is_decided(result.q.double() @ result.k.double().mT * result.scale).all())


@pytest.mark.thorough
@pytest.mark.usefixtures("few_problems")
def test_verify_tries_scores_at_corners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers_stage, "make_number_cases", lambda *args: [])
    monkeypatch.setattr(schedules_stage, "make_schedule_cases", lambda *args: [Case("one", Lengths(1, 1, 1, 16, 16))])
    for module, name in ((schedules_stage, "make_empty_cases"), (schedules_stage, "make_ring_cases"), (stages, "choose_readout_lengths")):
        monkeypatch.setattr(module, name, lambda *args: [])
    right, wrong = VALUES["step"]
    for mod in (right, wrong):
        program = transfer(expert("flash_fwd_sm90"), of(mod)).program
        report = verify(program, of(right), consts={**CONSTS, "T": BF16}, seeded=0, shrink=False)
        assert report.ok == (mod is right)
        if report.ok:
            assert "1 more at corners of the score: scores at 1 of 1 numbers" in report.stages[4].reason
        else:
            assert any("scores at 1 of 1 numbers" in note.message for note in report.diagnostics[0].notes)


def test_half_at_a_tie_in_place_of_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule of ours that is wrong."""
    monkeypatch.setattr(functions, "attach_partials", lambda value, partials, *operands: value)
    right = SLOPES["clamp"][0]
    with pytest.raises(CuirError, match="V301"):
        judge(right, right, backward=True)


def test_programs_by_hand_with_mods_that_no_kernel_can_have_have_no_corners() -> None:
    spec = Specification("score", None, lambda s, b, h, i, j: s + torch.lgamma(s))
    program = expert("flash_fwd_sm90")
    assert not list(make_corner_cases(spec, program, check(program, None, CONSTS), []))
    assert isinstance(Case("one", AT), Case) and not isinstance(spec, FunctionSpecification)
