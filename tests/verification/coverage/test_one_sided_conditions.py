"""Sides of conditions by their place in the text, and the figure that follows."""

import pytest

import cuir
from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.spec.function_specification import FunctionSpecification
from cuir.text.diagnostics import CuirError
from cuir.verification.coverage.coverage_figure import Figure, OneSided
from cuir.verification.coverage.coverage_loop import Coverage, Driver
from cuir.verification.coverage.observed_sides import Observed, observe
from cuir.verification.coverage.one_sided_conditions import collect_sides, report_coverage, require_both_sides

from .planted import check_body, doubled, text_of

BODY = "f = 3.0 if H == 100000 else 2.0"  # of so many heads the tensors are too large, and the units too many


def drive(body: str, level: str = "full") -> tuple[Checked, Driver]:
    """Return a driver for which all conditions but those of `body` have gone both ways."""
    checked = check(cuir.parse(text_of(body).replace(", 32]", ", 256]").replace("cols(32)", "cols(256)")), None, {})
    observed = observe(checked)
    plain = {c.text for c in observed.conditions} & {c.text for c in observe(check_body("")).conditions}
    observed.mark([c.all_sides if c.text in plain or c.kind in ("remainder", "quotient") else 2 for c in observed.conditions])
    driver = Driver(checked, FunctionSpecification("doubled", doubled), observed, level, lambda case: {})
    for solution, with_data in driver.problems():
        if with_data:
            driver.ran(solution)
    return checked, driver


def test_a_side_that_is_known_and_was_not_run_is_refused_with_the_sizes_that_show_it() -> None:
    checked, driver = drive(BODY)
    with pytest.raises(CuirError) as raised:
        require_both_sides(checked, driver.coverage)
    (error,) = raised.value.diagnostics
    assert error.code == "V310" and error.span is not None and error.span.text().startswith("H == 100000")
    assert "`H == 100000` is true" in error.message and "H=100000" in error.notes[0].message and "# one-sided: reason" in str(error.hint)


def test_a_waiver_with_a_reason_takes_it_out_of_the_figure() -> None:
    checked, driver = drive(f"{BODY}  # one-sided: no model has so many heads")
    require_both_sides(checked, driver.coverage)
    figure, text = report_coverage(checked, driver.coverage)
    assert not text and figure.sides_seen == figure.sides
    assert [item.waived for item in figure.one_sided] == ["no model has so many heads"]


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    "body, words",
    [
        (f"{BODY}  # one-sided", "without a reason"),
        (f"{BODY}  # one-sided:", "without a reason"),
        ("f = 2.0  # one-sided: not at all", "no condition of this line"),
    ],
)
def test_a_waiver_that_waives_nothing_is_told(body: str, words: str) -> None:
    checked, driver = drive(body)
    _, text = report_coverage(checked, driver.coverage)
    assert len(text) == 1 and words in text[0] and text[0].startswith("line 16 of")


def test_a_reason_is_asked_for() -> None:
    checked, driver = drive(f"{BODY}  # one-sided")
    with pytest.raises(CuirError):
        require_both_sides(checked, driver.coverage)


def test_what_a_smaller_problem_shows_is_run() -> None:
    checked, driver = drive("f = 3.0 if H == 1000 else 2.0")
    require_both_sides(checked, driver.coverage)
    assert [t.condition.text for t, _ in driver.coverage.driven] == ["H == 1000"]


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
