"""A choice that was left out is argued for by what its condition says of both sides, and by nothing else."""

from __future__ import annotations

import pytest

from cuir.mutation.mutant_comparison import Trial
from cuir.mutation.needless_choices import needless_choice
from cuir.spec.function_specification import FunctionSpecification
from cuir.syntax.parser import parse
from cuir.verification.values.cases import Draw

KERNEL = """
@func
def step(x, y):
    moves = x > y
    some = warp_any(moves)
    {before}
    return {choice}

@kernel(arch="sm_80")
def k(X: Global[f32, M, 16], Y: Global[f32, M, 16], Z: Global[f32, M, 16]):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            i, j = t * 16 + rows(16), cols(16)
            store(Z[i, j], step(X[i, j]{ends}, Y[i, j]{ends}))
"""
SPEC = FunctionSpecification("step", lambda x, y: x)


def trial(choice: str, chosen: str, before: str = "new = where(some, where(moves, x, y), y)", ends: str = "") -> Trial:
    original, mutant = (parse(KERNEL.format(choice=c, before=before, ends=ends)) for c in (choice, chosen))
    result = Trial(original, mutant, SPEC, "k", {}, "quick")
    result.problems = [(Draw("one", {"M": 40}), None)]
    return result


@pytest.mark.parametrize(
    ("choice", "chosen"),
    [
        ("where(some, where(moves, x, y), y)", "where(moves, x, y)"),  # a vote of the rows
        ("where(some, exp2(y - new), 1.0)", "exp2(y - new)"),  # 2 to the power of nothing
        ("where(some, new + 1.0, y + 1.0)", "new + 1.0"),
    ],
)
def test_both_sides_are_one(choice: str, chosen: str) -> None:
    assert "by the definitions" in str(needless_choice(trial(choice, chosen)))


@pytest.mark.parametrize(
    ("choice", "chosen", "before"),
    [
        ("where(some, x, y)", "x", "pass_ = 0"),  # two values
        ("where(moves, where(some, x, y), y)", "where(some, x, y)", "pass_ = 0"),  # another row of the warp may vote
        ("where(moves, new, y)", "new", "new = where(some, x, y)"),
        ("where(some, where(moves, x, y), y)", "where(moves, x, y)", "moves = x < y"),  # bound again: not what was voted on
        ("where(some, exp2(y - x), 1.0)", "exp2(y - x)", "pass_ = 0"),
        ("where(some, x, y)", "y", "pass_ = 0"),  # the other side was taken
    ],
)
def test_sides_that_may_differ_are_not_argued_for(choice: str, chosen: str, before: str) -> None:
    assert needless_choice(trial(choice, chosen, before)) is None


def test_a_difference_of_infinities_is_no_zero() -> None:
    """Keep a choice that keeps NaN out where both operands are -inf."""
    text = "where(some, exp2(y - new), 1.0)", "exp2(y - new)"
    finite, endless = trial(*text), trial(*text, ends=" - inf")
    assert "`y` is finite" in str(needless_choice(finite)) and needless_choice(endless) is None
    assert finite.has_same_bits(finite.mutant) and not endless.has_same_bits(endless.mutant)
