from pathlib import Path

import pytest
import torch

import cuir
from cuir.spec.function_specification import FunctionSpecification
from cuir.verification.coverage.coverage_loop import Driver
from cuir.verification.coverage.observed_sides import observe

from .planted import check_body, doubled, text_of

FAULTS = [
    "f = 3.0 if t == 511 else 2.0",
    "f = 3.0 if (t & 255) == 255 else 2.0",
    "f = 2.0 + cast(t // 512, f32)",
    "f = 3.0 if n >= 300 else 2.0",
    "f = 3.0 if cdiv(M, 16) == 5 else 2.0",
    "f = 3.0 if M % 256 == 0 else 2.0",
    "f = 3.0 if M == 2048 else 2.0",
    "f = 2.0 + cast(max(0, t - 700), f32)",
    "f = 3.0 if B * H == 24 else 2.0",
]


@pytest.mark.usefixtures("no_schedules")
@pytest.mark.sweep
@pytest.mark.parametrize("body", FAULTS)
def test_a_fault_that_needs_one_number_is_found(body: str) -> None:
    report = cuir.verify(cuir.parse(text_of(body)), doubled, shrink=False, seeded=0)
    assert [d.code for d in report.diagnostics] == ["V301"]


@pytest.mark.usefixtures("no_schedules")
@pytest.mark.sweep
@pytest.mark.parametrize("body", [body.replace("3.0", "2.0") for body in FAULTS if "3.0" in body])
def test_the_same_condition_in_a_right_kernel_is_driven_both_ways(body: str) -> None:
    report = cuir.verify(cuir.parse(text_of(body)), doubled, seeded=0)
    assert report.ok and report.coverage.sides_seen == report.coverage.sides > 0 and not report.coverage.one_sided
    assert f"onditions: {report.coverage.sides} of {report.coverage.sides} sides seen" in report.as_markdown()
    assert report.as_json()["coverage"]["seen"] == report.coverage.sides


@pytest.mark.usefixtures("no_schedules")
def test_an_integer_that_is_given_is_driven_too() -> None:
    text = text_of("f = 3.0 if t == 30 and skip == 77 else 2.0", ", skip: i32")
    assert not cuir.verify(cuir.parse(text), lambda x, skip: 2 * x, shrink=False, seeded=0).ok


@pytest.mark.usefixtures("no_schedules")
def test_a_side_that_nothing_takes_is_said() -> None:
    report = cuir.verify(cuir.parse(text_of("f = 3.0 if m * 16 >= M else 2.0")), doubled, seeded=0)
    assert report.ok and report.coverage.sides_seen == report.coverage.sides - 1
    (item,) = report.coverage.one_sided
    assert item.condition == "m * 16 >= M" and "is true" in item.side and f"line {item.line}" in report.left_open


RESCALED = "                    acc = acc * alpha\n"


@pytest.mark.thorough
@pytest.mark.usefixtures("no_schedules")
def test_a_rescale_that_one_block_leaves_out_is_found() -> None:
    """Break one block of forty: each of them raises the maximum of some head."""
    text = Path("corpus/programs/flash_fwd.cuir").read_text()
    assert RESCALED in text
    faulty = text.replace(RESCALED, "                    if i != 40:\n                        acc = acc * alpha\n")
    report = cuir.verify(cuir.parse(faulty), "corpus/variants/causal.py", consts={"D": 64}, shrink=False, seeded=0)
    assert [d.code for d in report.diagnostics] == ["V301"]


@pytest.mark.usefixtures("no_schedules")
def test_a_block_that_a_product_leaves_out_is_found() -> None:
    text = Path("corpus/programs/gemm.cuir").read_text()
    line = "                acc = mma_async(sA[s, wg * 64 : wg * 64 + 64], sB[s].T, acc)\n"
    assert line in text
    faulty = text.replace(line, f"                if k != 40:\n                    {line.strip()}\n")
    report = cuir.verify(cuir.parse(faulty), "corpus/functions/gelu_gemm.py", shrink=False, seeded=0)
    assert [d.code for d in report.diagnostics] == ["V301"]


def test_inputs_of_a_problem_are_made_once_for_all_conditions() -> None:
    checked = check_body(
        "f = (3.0 if L[b] > 5 else 2.0) + (1.0 if L[b] == 77 else 0.0) + (1.0 if L[0] < 3 else 0.0)", ", L: Global[i32, B]"
    )
    requests: list[str] = []

    def make(case: object, name: str) -> dict[str, torch.Tensor]:
        requests.append(str(case))
        return {"L": torch.arange(case.sizes["B"], dtype=torch.int32)}  # type: ignore[attr-defined]

    driver = Driver(checked, FunctionSpecification("doubled", doubled), observe(checked), "quick", make)
    results = [solution.problem.case for solution, _ in driver.problems()]
    assert len(requests) == len(set(requests)) > 10
    assert any(case.sizes["B"] > 77 for case in results)  # the numbers that it has read are those of the tensors
