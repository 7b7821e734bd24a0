"""A choice that was left out is argued for by what its condition says of both sides, and by nothing else.

The order of units of work is free: a mutant that only changes it is no fault, one that leaves a unit out is.

A part of a tuple that no function reads with these consts: a mutant of it alone is no fault.
"""

from __future__ import annotations

import pytest

import corpus
from cuir import show
from cuir.mutation.equivalence_arguments import (
    argue_for_unused_part,
    exchanged_arguments,
    needless_choice,
    other_setting,
    other_way,
    same_units,
    swapped_factors,
    tied_operands,
)
from cuir.mutation.equivalent_mutants import needless_case
from cuir.mutation.mutant_comparison import Trial
from cuir.spec.function_specification import FunctionSpecification
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
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
        ("where(warp_any(y != 1.0), x * y, x)", "x * y"),  # a factor of 1
        ("where(warp_any(y != 1.0), x / y, x)", "x / y"),
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
        ("where(warp_any(y != 2.0), x * y, x)", "x * y", "pass_ = 0"),
        ("where(warp_any(y == 1.0), x * y, x)", "x * y", "pass_ = 0"),
    ],
)
def test_sides_that_may_differ_are_not_argued_for(choice: str, chosen: str, before: str) -> None:
    assert needless_choice(trial(choice, chosen, before)) is None


@pytest.mark.parametrize(
    ("new", "holds"),
    [
        ("where(warp_any(y != 77.0), x * y, x)", True),  # never a factor of all rows
        ("where(warp_any(y == 1.0), x * y, x)", False),
        ("where(warp_any(y > 0.0), x * y, x)", True),
        ("where(warp_any(y != 77.0), x * y, y)", False),  # not the condition alone
    ],
)
def test_a_needless_choice_may_have_another_condition(new: str, holds: bool) -> None:
    reason = needless_choice(trial("where(warp_any(y != 1.0), x * y, x)", new, "pass_ = 0"))
    assert (reason is not None) == holds and (not holds or "NaN in place" in str(reason))


def test_a_difference_of_infinities_is_no_zero() -> None:
    """Keep a choice that keeps NaN out where both operands are -inf."""
    text = "where(some, exp2(y - new), 1.0)", "exp2(y - new)"
    finite, endless = trial(*text), trial(*text, ends=" - inf")
    assert "`y` is finite" in str(needless_choice(finite)) and needless_choice(endless) is None
    assert finite.has_same_bits(finite.mutant) and not endless.has_same_bits(endless.mutant)


@pytest.mark.parametrize(
    ("old", "new", "product", "same"),
    [
        ("X, c = score(S, b, h, q, k)", "c, X = score(S, b, h, q, k)", "X * c", True),
        ("X, c = score(S, b, h, q, k)", "c, X = score(S, b, h, q, k)", "X * c * c", False),
        ("X, c = score(S, b, h, q, k)", "X, c = score(S, b, h, k, q)", "X * c", False),
        ("partial, n = q_count(b, h, j)", "n, partial = q_count(b, h, j)", "X * c", False),
    ],
)
def test_factors_in_each_others_place(old: str, new: str, product: str, same: bool) -> None:
    text = corpus.kernels()["flash_bwd_sm75"].read_text(encoding="utf-8")
    assert text.count(old) == text.count("X * c") == 1
    text = text.replace("X * c", product)
    t = Trial(parse(text), parse(text.replace(old, new)), SPEC, "flash_bwd", {"T": F16, "D": 64}, "quick")
    assert (swapped_factors(t) is not None) == same


TIES = """
@func
def step(x, y):
    moves = {comparison}
    some = warp_any(moves)
    new = where(some, where(moves, {values}), y)
    return {result}
"""


def trial_of_ties(comparison: str, values: str = "x, y", result: str = "where(some, exp2(y - new), 1.0)", ends: str = "") -> Trial:
    kernel = KERNEL[KERNEL.index("@kernel") :].format(ends=ends)
    texts = (TIES.format(comparison=c, values=values, result=result) + kernel for c in ("x > y", comparison))
    result_trial = Trial(*map(parse, texts), SPEC, "k", {}, "quick")
    result_trial.problems = [(Draw("one", {"M": 40}), None)]
    return result_trial


@pytest.mark.parametrize(
    ("comparison", "values", "result", "ends", "holds"),
    [
        ("x >= y", "x, y", "where(some, exp2(y - new), 1.0)", "", True),
        ("x >= y", "x, y", "new", "", True),
        ("x >= y", "x, y", "new", " - inf", True),  # no difference is taken
        ("x >= y", "x, y", "where(some, exp2(y - new), 1.0)", " - inf", False),  # of infinities is NaN
        ("x >= y", "x + 1.0, y", "new", "", False),
        ("x >= y", "x, y", "where(some, x, y)", "", False),  # a row whose warp votes yes
        ("x >= y", "x, y", "where(moves, 1.0, 0.0)", "", False),
        ("x >= y", "x, y", "new + cast(moves, f32)", "", False),  # read by more than choices
        ("x < y", "x, y", "new", "", False),
        ("x >= y + 1.0", "x, y", "new", "", False),
    ],
)
def test_equal_operands_make_both_sides_equal(comparison: str, values: str, result: str, ends: str, holds: bool) -> None:
    reason = tied_operands(trial_of_ties(comparison, values, result, ends))
    assert (reason is not None) == holds and (not holds or "both sides of each choice" in str(reason))


@pytest.mark.parametrize(
    ("body", "holds"),
    [
        ("where(warp_any(y != 1.0), x * y, x)", True),
        ("x * y", True),
        ("where(warp_any(y != 2.0), x * y, x)", False),  # a factor of 2 is skipped
        ("where(y > 1.0, x * y, x)", False),
        ("x - y", False),
        ("x * y + y", False),
    ],
)
def test_arguments_that_are_factors_may_be_exchanged(body: str, holds: bool) -> None:
    text = KERNEL[KERNEL.index("@kernel") :].format(ends="")
    original = f"@func\ndef step(x, y):\n    return {body}\n{text}"
    mutant = original.replace("step(X[i, j], Y[i, j])", "step(Y[i, j], X[i, j])")
    assert mutant != original
    assert (exchanged_arguments(Trial(parse(original), parse(mutant), SPEC, "k", {}, "quick")) is not None) == holds


@pytest.mark.parametrize(
    ("choice", "chosen", "holds"),
    [
        ("where(x * x == 0.0, -inf, log2(x * x))", "where(x * x == 1e-30, -inf, log2(x * x))", True),
        ("where(x * x == 0.0, -inf, log2(x * x))", "where(x * x == 1.0, -inf, log2(x * x))", False),  # runs have values between
        ("where(x * x == 0.0, 5.0, log2(x * x))", "where(x * x == 1e-30, 5.0, log2(x * x))", False),  # another value at 0
        ("where(x * x == 2e-30, 5.0, x)", "where(x * x == 1e-30, 5.0, x)", False),  # no run takes the case
    ],
)
def test_a_case_is_needless_if_the_general_value_holds_there(choice: str, chosen: str, holds: bool) -> None:
    ends = " * cast(i > 3, f32)"  # rows of zeros
    assert (needless_case(trial(choice, chosen, "pass_ = 0", ends)) is not None) == holds


def test_statements_of_a_function_in_another_order_are_no_case() -> None:
    text = KERNEL.format(choice="new", before="new = where(some, x, y)", ends="")
    lines = "    moves = x > y\n", "    some = warp_any(moves)\n"
    moved = text.replace("".join(lines), "    pass_ = 0\n" + "".join(lines))
    assert moved != text and needless_case(Trial(parse(text), parse(moved), SPEC, "k", {}, "quick")) is None


SETTINGS = """
@kernel(arch="sm_80")
def k(X: Global[f32, M, 16], Y: Global[f32, M, 16], *, KEPT: const = 8, TOKENS: const = 0):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            i, j = t * 16 + rows(16), cols(16)
            least = {choice}
            store(Y[i, j], X[i, j] + cast(least, f32))
"""


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("0 if TOKENS > 0 else KEPT", "0 if TOKENS >= 0 else KEPT", "KEPT=0"),
        ("3 if TOKENS > 0 else KEPT", "3 if TOKENS >= 0 else KEPT", ""),  # no setting that is tried
        ("0 if TOKENS > 0 else KEPT", "KEPT if TOKENS > 0 else KEPT", ""),  # the same way
    ],
)
def test_a_way_that_consts_decide_against_reads_nothing(old: str, new: str, word: str) -> None:
    t = Trial(*(parse(SETTINGS.format(choice=c)) for c in (old, new)), FunctionSpecification("k", lambda x: x), "k", {}, "quick")
    t.problems = [(Draw("one", {"M": 40}), None)]
    reason = other_setting(t)
    assert word in str(reason) if word else reason is None


TEXT = show(
    parse("""
@func
def unit(t):
    size = max(1, GROUP // 4)
    few = t // size
    return few % cdiv(M, 16), few // cdiv(M, 16) * size + t % size

@kernel(arch="sm_90a")
def k(X: Global[f32, B, M, 64], Y: Global[f32, B, M, 64], *, GROUP: const = 4):
    work = tiles(cdiv(M, 16) * B)
    with role("all", warps=1):
        for t in work:
            i, b = unit(t)
            store(Y[b, i * 16 + rows(16), cols(64)], X[b, i * 16 + rows(16), cols(64)])
""")
)
SPEC_OF_UNIT_ORDER = FunctionSpecification("k", lambda x: x)


def trial_of_unit_order(old: str, new: str, text: str = TEXT) -> Trial:
    assert text.count(old) == 1, old
    return Trial(parse(text), parse(text.replace(old, new)), SPEC_OF_UNIT_ORDER, "k", {}, "quick")


@pytest.mark.parametrize(
    ("old", "new", "free"),
    [
        ("return few % cdiv(M, 16),", "return cdiv(M, 16) - 1 - few % cdiv(M, 16),", True),
        ("return few % cdiv(M, 16), few // cdiv(M, 16) * size + t % size", "return t // B, t % B", True),
        ("max(1, GROUP // 4)", "max(1, GROUP // 2)", False),  # an odd batch then lacks units
        ("few % cdiv(M, 16),", "few % cdiv(M, 32),", False),
        ("few // cdiv(M, 16)", "few // cdiv(M, 8)", False),
    ],
)
def test_units_in_another_order_are_the_same(old: str, new: str, free: bool) -> None:
    reason = same_units(trial_of_unit_order(old, new))
    assert (reason is not None) == free and (not free or "the same" in str(reason))


def test_a_function_of_anything_else_has_no_order() -> None:
    shifted = TEXT.replace("= unit(t)", "= unit(t + 0)")
    assert same_units(trial_of_unit_order("return few % cdiv(M, 16),", "return cdiv(M, 16) - 1 - few % cdiv(M, 16),", shifted)) is None
    assert same_units(trial_of_unit_order("work = tiles(cdiv(M, 16) * B)", "work = tiles(cdiv(M, 16) * B + 0)")) is None


TEXT_OF_UNUSED_PARTS = show(
    parse("""
@func
def place(i, used):
    k0, k1, k2 = used
    return ((k0 if i % RINGS == 0 else k1 if i % RINGS == 1 else k2) + i // RINGS) % 2

@func
def after(n, used):
    k0, k1, k2 = used
    return k0 + cdiv(n, RINGS), k1 + cdiv(max(0, n - 1), RINGS), k2 + cdiv(max(0, n - 2), RINGS)

@kernel(arch="sm_90a")
def k(X: Global[f32, M, 64], Y: Global[f32, M, 64], *, RINGS: const = 2):
    work = tiles(cdiv(M, 64))
    with role("all", warps=1):
        used = (0, 0, 0)
        for t in work:
            for i in range(4):
                r = t * 64 + i * 16 + rows(16)
                store(Y[r, cols(64)], X[r, cols(64)] + cast(place(i, used), f32))
            used = after(4, used)
""")
)


def trial_of_unused_parts(old: str, new: str, text: str = TEXT_OF_UNUSED_PARTS, **consts: int) -> Trial:
    assert text.count(old) == 1, old
    return Trial(parse(text), parse(text.replace(old, new)), FunctionSpecification("k", lambda x: x), "k", consts, "quick")


@pytest.mark.parametrize(
    ("old", "new", "rings", "unused"),
    [
        ("n - 2", "n + 2", 2, True),
        ("k2 + cdiv", "7 + cdiv", 2, True),
        ("n - 2", "n + 2", 3, False),
        ("n - 1", "n + 1", 2, False),
        ("k1 + cdiv(max(0, n - 1)", "k2 + cdiv(max(0, n - 1)", 2, False),
    ],
)
def test_a_part_that_no_function_reads_is_free(old: str, new: str, rings: int, unused: bool) -> None:
    reason = argue_for_unused_part(trial_of_unused_parts(old, new, RINGS=rings))
    assert (reason is not None) == unused and (not unused or "`after`, `place`" in str(reason))


def test_a_part_that_is_read_by_anything_else_is_not() -> None:
    read = TEXT_OF_UNUSED_PARTS.replace("used = after(4, used)\n", "used = after(4, used)\n            k0, k1, k2 = used\n")
    assert read != TEXT_OF_UNUSED_PARTS
    assert argue_for_unused_part(trial_of_unused_parts("n - 2", "n + 2", read, RINGS=2)) is None
    passed_on = TEXT_OF_UNUSED_PARTS.replace("return k0 + cdiv(n, RINGS)", "return k2 + cdiv(n, RINGS)")
    assert argue_for_unused_part(trial_of_unused_parts("n - 2", "n + 2", passed_on, RINGS=2)) is None


WAYS = """
@kernel(arch="sm_80")
def k(X: Global[f32, M, 16], Y: Global[f32, M, 16], *, BOXES: const = 1):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            i, j = t * 16 + rows(16), cols(16)
            {choice}
"""
TWO_WAYS = """if {condition}:
                store(Y[i, j], X[i, j] + X[i, j])
            else:
                store(Y[i, j], {other})"""
ONE_WAY = """if {condition}:
                store(Y[i, j], {other})"""


def argue_for_way(choice: str, condition: str, other: str) -> str | None:
    original, mutant = (parse(WAYS.format(choice=choice.format(condition=c, other=other))) for c in ("BOXES > 1", condition))
    t = Trial(original, mutant, FunctionSpecification("k", lambda x: x + x), "k", {}, "quick")
    t.problems = [(Draw("one", {"M": 40}), None)]
    return other_way(t)


def test_both_ways_are_right() -> None:
    assert "`BOXES >= 1` is True, unlike `BOXES > 1`" in str(argue_for_way(TWO_WAYS, "BOXES >= 1", "X[i, j] * 2.0"))


@pytest.mark.parametrize(
    ("choice", "condition", "other"),
    [
        (TWO_WAYS, "BOXES >= 1", "X[i, j] * 3.0"),  # other bits
        (TWO_WAYS, "BOXES > 2", "X[i, j] * 2.0"),  # the same way
        (TWO_WAYS, "M > 1", "X[i, j] * 2.0"),  # lengths decide
        (ONE_WAY, "BOXES >= 1", "X[i, j] * 2.0"),  # what was left out may be needed
    ],
)
def test_ways_that_may_differ_are_not_argued_for(choice: str, condition: str, other: str) -> None:
    assert argue_for_way(choice, condition, other) is None
