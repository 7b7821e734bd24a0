import pytest

import cuir
from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.spec.function_specification import FunctionSpecification
from cuir.text.diagnostics import CuirError
from cuir.verification.coverage.coverage_loop import Driver
from cuir.verification.coverage.observed_sides import observe
from cuir.verification.coverage.one_sided_conditions import report_coverage, require_both_sides

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
