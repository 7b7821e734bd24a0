"""A part of a tuple that no function reads with these consts: a mutant of it alone is no fault."""

from __future__ import annotations

import pytest

from cuir import parse, show
from cuir.mutation.mutant_comparison import Trial
from cuir.mutation.unused_parts import argue_for_unused_part
from cuir.spec.function_specification import FunctionSpecification

TEXT = show(
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


def trial(old: str, new: str, text: str = TEXT, **consts: int) -> Trial:
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
    reason = argue_for_unused_part(trial(old, new, RINGS=rings))
    assert (reason is not None) == unused and (not unused or "`after`, `place`" in str(reason))


def test_a_part_that_is_read_by_anything_else_is_not() -> None:
    read = TEXT.replace("used = after(4, used)\n", "used = after(4, used)\n            k0, k1, k2 = used\n")
    assert read != TEXT
    assert argue_for_unused_part(trial("n - 2", "n + 2", read, RINGS=2)) is None
    passed_on = TEXT.replace("return k0 + cdiv(n, RINGS)", "return k2 + cdiv(n, RINGS)")
    assert argue_for_unused_part(trial("n - 2", "n + 2", passed_on, RINGS=2)) is None
