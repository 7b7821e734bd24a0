"""Weights without a softmax, and sinks: right kernels pass, and what is wrong with them is found at the question that asks for it."""

from __future__ import annotations

import pytest
import torch

import corpus
from cuir.attn.splicing.splice import transfer
from cuir.checking.checker import check
from cuir.spec.specification import Lengths, Specification
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from cuir.verification import Case, Problem, check_contracts, check_mask, check_numbers
from tests.verification.small_kernels import read_diagnostic

CONSTS = {"T": F16, "D": 64, "BM": 64, "BN": 32}
EXPERT = parse(corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8"))


def window(b, h, q, k):  # type: ignore[no-untyped-def]
    return (k <= q) & (k > q - 40)


SPECS = {
    "sigmoid": Specification("sigmoid", window, lambda s, b, h, q, k: s - 2.0, normalize="sigmoid"),
    "relu": Specification("relu", window, lambda s, b, h, q, k: s - 0.25, normalize="relu"),
    "sink": Specification("sink", window, sink=lambda at: torch.linspace(-3, 10, at.H)),
    "nothing": Specification("nothing", lambda b, h, q, k: k < q - 5, sink=1.0),
}


def test_a_sink_far_above_all_logits() -> None:
    """LSE is as exact as float32 has it."""
    spec = Specification("far", window, sink=3000.0)
    program = transfer(EXPERT, spec).program
    assert check_numbers(program, check(program, None, CONSTS), spec, Case("small", Lengths(1, 2, 2, 40, 40))).error == 0


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", sorted(SPECS))
def test_right_kernels_pass(name: str) -> None:
    """Their blocks, their mask, their numbers; that schedules do not matter is asked of other variants of the same kernel."""
    spec, program = SPECS[name], transfer(EXPERT, SPECS[name]).program
    checked = check(program, None, CONSTS)
    assert check_contracts(program, checked.origin, spec, [Problem(Lengths(1, 2, 1, 61, 47), 16, 8)], checked.consts)
    assert check_mask(program, checked, spec, Lengths(1, 2, 1, 70, 83)).hidden == 0
    for case in (
        Case("small", Lengths(1, 4, 2, 75, 90)),
        Case("no keys", Lengths(1, 2, 1, 40, 0)),
        Case("large", Lengths(1, 2, 2, 64, 64), "large"),
    ):
        check_numbers(program, checked, spec, case)


def code(name: str, old: str, new: str) -> str:
    """Return the code of the mask or the numbers for a program with a text replaced."""
    text = transfer(EXPERT, SPECS[name]).text
    assert text.count(old) == 1, old
    small = Case("small", Lengths(1, 4, 2, 75, 90))
    return read_diagnostic(parse(text.replace(old, new)), SPECS[name], CONSTS, Lengths(1, 2, 1, 70, 83), small).code


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        ("sigmoid", "k <= q", "k < q", "V305"),
        ("relu", "k > q - 40", "k >= q - 40", "V305"),
        ("sink", "k > q - 40", "k >= q - 40", "V305"),
        ("nothing", "k < q - 5", "k <= q - 5", "V305"),
        ("sigmoid", "E / (1.0 + E), state, 1.0", "E / (1.0 + E), state, 0.5", "V301"),
        ("sigmoid", "min(S * c, 31.0)", "min(-S * c, 31.0)", "V305"),  # a masked score, -inf, weighs 1
        ("sigmoid", "S * scale - 2.0", "S * scale - 1.99", "V301"),
        ("relu", "cast(max(1, N), f32)", "cast(max(1, M), f32)", "V301"),
        ("relu", "max(S * c, 0.0)", "abs(S * c)", "V305"),  # NaN
        ("sink", "sink[h] * LOG2E", "sink[h]", "V301"),
        ("sink", "sink[h] * LOG2E", "sink[0] * LOG2E", "V301"),
        ("sink", "(ref + log2(total)) * LN2", "(ref + log2(total)) * LN2 + 0.01", "V304"),
        ("nothing", "rest / total)", "rest / total) * 1.01", "V301"),
        ("nothing", "-inf, (ref + log2(total)) * LN2)", "-inf, -inf)", "V304"),
    ],
)
def test_faults_are_found(name: str, old: str, new: str, expected: str) -> None:
    assert code(name, old, new) == expected


def test_a_weight_too_faint_to_see_is_not_claimed() -> None:
    """sigmoid(-40) is 0 in half precision: the pair cannot be read."""
    spec = Specification("faint", window, lambda s, b, h, q, k: torch.where(k % 2 == 0, -40.0, s), normalize="sigmoid")
    program = transfer(EXPERT, spec).program
    result = check_mask(program, check(program, None, CONSTS), spec, Lengths(1, 1, 1, 40, 40))
    assert result.read == result.hidden == 800
