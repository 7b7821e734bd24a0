"""Content of specialised kernels: what changes nothing is left out, and further stages of a ring are found."""

from __future__ import annotations

import pytest

from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.mutation.equivalent_mutants import fewer_stages
from cuir.mutation.kernel_content import has_spare_stages, list_content
from cuir.mutation.mutant_comparison import Trial
from cuir.spec.function_specification import FunctionSpecification
from cuir.syntax.parser import parse
from cuir.verification.values.cases import Draw


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("x * f", "f * x", True),
        ("x * f", "f + x", False),
        (" + rows(16) % BM", "", True),  # BM is 1
        (" + rows(16) % BM", " - rows(16) % BM", True),
        ("rows(16) // BM", "rows(16)", True),
        ("rows(16) // BM", "rows(16) // BM + BM", False),
        ("x * f", "x * f + 0.0", False),  # -0.0 + 0.0 is 0.0
        ("x + f", "f + x", False),  # a contraction may take the other product
    ],
)
def test_content_is_compared_without_what_changes_nothing(old: str, new: str, same: bool) -> None:
    text = """
@kernel(arch="sm_80")
def k(X: Global[f32, M, 16], Y: Global[f32, M, 16], Z: Global[f32, M, 16], *, BM: const = 1):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            x, f = X[t * 16 + rows(16) // BM, cols(16)], Y[t * 16 + rows(16), cols(16)]
            store(Z[t * 16 + rows(16), cols(16)], x * f)
            store(Z[t * 16 + rows(16) + rows(16) % BM, cols(16)], x + f)
"""
    assert text.count(old) == 1
    contents = [list_content(check(parse(x), "k", {})) for x in (text, text.replace(old, new))]
    assert (contents[0] == contents[1]) == same


RING = """
@func
def place(i):
    return i % {stages}, i // {stages} % 2

@kernel(arch="sm_90a")
def k(X: Global[f32, M, 64], Y: Global[f32, M, 64], *, STAGES: const = 3):
    sX = shared(f32, [STAGES, 16, 64])
    full, empty = mbarrier(1, stages=STAGES), mbarrier(1, stages=STAGES)
    work = tiles(cdiv(M, 64))
    with role("load", warps=1):
        n = 0
        for t in work:
            for i in range(4):
                s, phase = place(n)
                empty[s].wait(phase ^ 1)
                full[s].expect(nbytes(sX[s]))
                copy_async(X[t * 64 + i * 16 : t * 64 + i * 16 + 16, 0:64], sX[s], full[s])
                n += 1
    with role("double", warps=1):
        n = 0
        for t in work:
            for i in range(4):
                s, phase = {reader}
                full[s].wait(phase)
                x = load(sX[s])
                empty[s].arrive()
                store(Y[t * 64 + i * 16 + rows(16), cols(64)], x + x)
                n += 1
"""
READERS = {"the function": "place(n)", "its own count": "n % STAGES, n // STAGES % 2"}


def ring(stages: str, reader: str, text: str = RING) -> str:
    return text.format(stages=stages, reader=READERS[reader])


@pytest.mark.parametrize(
    ("reader", "stages", "setting", "spare"),
    [
        ("the function", "(STAGES - 1)", 2, True),
        ("the function", "(STAGES - 2)", 1, True),
        ("the function", "(STAGES - 1)", 1, False),  # other statements
        ("the function", "(STAGES + 1)", 4, False),  # more stages than the arrays have
        ("its own count", "(STAGES - 1)", 2, False),  # one role alone
    ],
)
def test_spare_stages_are_those_that_the_same_statements_do_not_use(reader: str, stages: str, setting: int, spare: bool) -> None:
    mutant = check(parse(ring(stages, reader)), "k", {})
    assert has_spare_stages(mutant, check(parse(ring("STAGES", reader)), "k", {"STAGES": setting})) == spare


def test_more_columns_of_an_array_are_no_stages() -> None:
    def declare(dims: str) -> Checked:
        return check(
            parse(ring("STAGES", "the function", RING.replace("    full, empty", f"    sY = shared(f32, {dims})\n    full, empty"))),
            "k",
            {},
        )

    original = declare("[4, 16, 64]")
    assert has_spare_stages(declare("[5, 16, 64]"), original)
    assert not has_spare_stages(declare("[4, 16, 128]"), original)
    assert not has_spare_stages(declare("[5, 16, 128]"), original)
    assert not has_spare_stages(declare("[3, 16, 64]"), original)
    assert not has_spare_stages(original, original)


@pytest.mark.parametrize(
    ("reader", "stages", "holds"),
    [("the function", "(STAGES - 1)", True), ("the function", "(STAGES + 1)", False), ("its own count", "(STAGES - 1)", False)],
)
def test_fewer_stages_are_argued_for_where_all_roles_count_them(reader: str, stages: str, holds: bool) -> None:
    text = ring("STAGES", reader)
    t = Trial(parse(text), parse(ring(stages, reader)), FunctionSpecification("k", lambda x: 2 * x), "k", {}, "quick")
    t.problems = [(Draw("one", {"M": 130}), 1)]
    reason = fewer_stages(t)
    assert ("STAGES=2" in reason) if holds and reason else reason is None and not holds
