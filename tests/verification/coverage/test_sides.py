"""Sides of conditions by their place in the text, and the figure that follows."""

import cuir
from cuir.checking.checker import check
from cuir.verification.coverage.coverage_figure import Figure, OneSided
from cuir.verification.coverage.coverage_loop import Coverage
from cuir.verification.coverage.observed_sides import Observed
from cuir.verification.coverage.one_sided_conditions import report_coverage
from cuir.verification.coverage.sides import collect_sides

from .planted import check_body

TABLE = """
@func
def least(u, limit):
    v = u + 1
    return min(v, limit)

@kernel(arch="sm_80")
def kernel(L: Global[i32, B], X: Global[f16, B, 32], Y: Global[f16, B, 32]):
    work = tiles(B)
    with role("all", warps=1):
        for t in work:
            n = least(least(t, B), 7)
            q = t + rows(1)
            if L[t] > 3:
                store(Y[q, cols(32)], X[q, cols(32)])
            if n > 5:
                store(Y[q, cols(32)], X[q, cols(32)])
"""


def coverage_of(text: str) -> Coverage:
    observed = Observed(check(cuir.parse(text), None, {}))
    return Coverage(observed, [0] * len(observed.conditions))


def test_a_condition_that_is_inlined_twice_counts_once() -> None:
    coverage = coverage_of(TABLE)
    calls = [c for c in coverage.observed.conditions if c.kind == "extremum"]
    assert len(calls) == 2 and len({c.text for c in calls}) == 2
    sides = [s for s in collect_sides(coverage) if s.condition.kind == "extremum"]
    assert [len(s.instances) for s in sides] == [2, 2]


def test_a_side_that_one_instance_took_is_seen_unless_a_problem_for_another_was_not_run() -> None:
    coverage = coverage_of(TABLE)
    item, second = (c for c in coverage.observed.conditions if c.kind == "extremum")
    masks = [0] * len(coverage.observed.conditions)
    masks[item.number] = 3
    coverage.observed.mark(masks)
    assert [s.is_seen for s in collect_sides(coverage) if s.condition.kind == "extremum"] == [True, True]
    coverage.feasible[second.number, 0] = "a problem"  # type: ignore[assignment]
    assert [s.is_seen for s in collect_sides(coverage) if s.condition.kind == "extremum"] == [False, True]


def test_sides_that_no_launch_takes_are_not_counted() -> None:
    coverage = coverage_of(TABLE)
    before = len(collect_sides(coverage))
    compared = next(c for c in coverage.observed.conditions if c.text == "L[t] > 3")
    coverage.impossible[compared.number] = 1
    assert len(collect_sides(coverage)) == before - 1


def test_what_data_decide_is_a_second_number() -> None:
    coverage = coverage_of(TABLE)
    figure, _ = report_coverage(coverage.observed.checked, coverage)
    assert (figure.of_data, figure.data_seen) == (2, 0) and figure.sides > 2
    assert str(figure) == f"conditions: 0 of {figure.sides} sides seen, and 2 more that data decide, 0 seen"
    assert "that data decide" not in str(Figure(1, 2, 2)) and not Figure(1)


def test_sides_are_named_as_the_text_has_them() -> None:
    coverage = coverage_of(TABLE)
    masks = [0 if c.kind == "extremum" else c.all_sides for c in coverage.observed.conditions]
    calls = [c.number for c in coverage.observed.conditions if c.kind == "extremum"]
    for number in calls:
        masks[number] = 1
    coverage.observed.mark(masks)
    figure, _ = report_coverage(coverage.observed.checked, coverage)
    assert [item.side for item in figure.one_sided] == ["`limit` is alone what `min(v, limit)` gives"]


def test_text_that_spans_lines_and_loops_are_named_whole() -> None:
    checked = check_body(
        "f = 3.0 if (H ==  # heads\n                        100000) else 2.0\n            for z in range(M):  # turns\n                n += z"
    )
    texts = {c.source_text for c in Observed(checked).conditions}
    assert {"(H == 100000)", "for z in range(M)"} <= texts


def test_a_note_names_three_lines_and_every_waiver() -> None:
    remaining = [
        OneSided(line, "x > 0", f"`x{line}{side}` is true", "no problem was found for it") for line in (3, 4, 5, 6) for side in "ab"
    ]
    words = Figure(8, 16, 8, one_sided=(*remaining, OneSided(9, "y", "`y` is true", "", "never"))).name_open_sides("file.cuir")
    assert [f"`x{line}a`" in words for line in (3, 4, 5, 6)] == [True, True, True, False] and "`x3b`" not in words
    assert "waived: never" in words and "and 5 more, which --json lists" in words
