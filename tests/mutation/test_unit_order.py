"""The order of units of work is free: a mutant that only changes it is no fault, one that leaves a unit out is."""

from __future__ import annotations

import pytest

from cuir import parse, show
from cuir.mutation.mutant_comparison import Trial
from cuir.mutation.unit_order import same_units
from cuir.spec.function_specification import FunctionSpecification

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
SPEC = FunctionSpecification("k", lambda x: x)


def trial(old: str, new: str, text: str = TEXT) -> Trial:
    assert text.count(old) == 1, old
    return Trial(parse(text), parse(text.replace(old, new)), SPEC, "k", {}, "quick")


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
    reason = same_units(trial(old, new))
    assert (reason is not None) == free and (not free or "the same" in str(reason))


def test_a_function_of_anything_else_has_no_order() -> None:
    shifted = TEXT.replace("= unit(t)", "= unit(t + 0)")
    assert same_units(trial("return few % cdiv(M, 16),", "return cdiv(M, 16) - 1 - few % cdiv(M, 16),", shifted)) is None
    assert same_units(trial("work = tiles(cdiv(M, 16) * B)", "work = tiles(cdiv(M, 16) * B + 0)")) is None
