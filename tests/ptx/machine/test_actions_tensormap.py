"""Tensor maps that a kernel changes in memory: results, and each missing fence or wait found."""

from __future__ import annotations

import pytest
import torch

from cuir.cuda import Report, tensor_map
from cuir.ptx.isa.instruction_table import UnknownForm
from cuir.ptx.isa.tensor_boxes import TensorBoxes, change_map, decode_boxes
from tests.ptx.machine.test_actions_bulk import SCHEDULES, compiled

TENSORS = 3


def visit(name: str, schedule: str) -> tuple[Report, bool]:
    x = torch.randn(TENSORS, 8, 16, generator=torch.Generator().manual_seed(0))
    y, maps = torch.full_like(x, 7.0), torch.zeros(128, dtype=torch.uint8)
    report = compiled()[name](1, 32, tensor_map(x[0], (8, 16)), maps, x, y, TENSORS, schedule=schedule, raises=False)
    expected = x.clone()
    for i in range(TENSORS):
        expected[i, 8 - i :] = 0  # beyond the changed size
    return report, torch.equal(y, expected)


@pytest.mark.nvcc
@pytest.mark.parametrize("schedule", SCHEDULES[:6])
@pytest.mark.parametrize("name", ["visit_right", "visit_fenced_copy"])
def test_copies_follow_a_map_that_is_changed_and_fenced(name: str, schedule: str) -> None:
    report, equal = visit(name, schedule)
    assert equal and not report.findings


@pytest.mark.nvcc
@pytest.mark.parametrize("schedule", SCHEDULES[:4])
@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("visit_unreleased", "R403", "copies by a tensor map, and may miss the write to it"),
        ("visit_unacquired", "R403", "copies by a tensor map, and may miss the write to it"),
        ("visit_in_flight", "R402", "is not ordered after the read by the copy (cp.async.bulk.tensor)"),
    ],
)
def test_a_missing_fence_or_wait_is_found(name: str, code: str, message: str, schedule: str) -> None:
    report, _ = visit(name, schedule)
    assert any(d.code == code and message in str(d) for d in report.findings), list(map(str, report.findings))


def test_fields_of_a_map_are_replaced_one_by_one() -> None:
    data = TensorBoxes(256, "f16", (64, 32), (128,), (32, 8), (1, 1), 64).encode()
    for field, index, value in (
        ("rank", 0, 2),
        ("global_dim", 2, 5),
        ("global_stride", 1, 4096),
        ("box_dim", 2, 3),
        ("element_stride", 2, 2),
    ):
        changed = change_map(data, field, index, value)
        assert changed is not None
        data = changed
    for field, value in (("global_address", 512), ("elemtype", 10), ("swizzle_mode", 3), ("fill_mode", 0), ("interleave_layout", 0)):
        data = change_map(data, field, 0, value) or b""
    assert decode_boxes(data) == TensorBoxes(512, "bf16", (64, 32, 5), (128, 4096), (32, 8, 3), (1, 1, 2), 128)
    assert change_map(bytes(128), "rank", 0, 1) is None


@pytest.mark.parametrize(("field", "value"), [("interleave_layout", 1), ("fill_mode", 1), ("elemtype", 8), ("swizzle_mode", 4)])
def test_values_that_the_machine_does_not_have_are_refused(field: str, value: int) -> None:
    with pytest.raises(UnknownForm, match=field):
        change_map(TensorBoxes(0, "f16", (64,), (), (32,), (1,), 0).encode(), field, 0, value)
