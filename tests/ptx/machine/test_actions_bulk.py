"""Bulk copies that nvcc compiles: results under every schedule, and each missing wait, fence or byte found."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import torch

from cuir.cuda import LoadedModule, Report, load, tensor_map
from cuir.ptx.launch.tensor_maps import NAMES
from cuir.text.diagnostics import CuirError

SOURCE = Path(__file__).parent.parent / "bulk_kernels.cu"
SCHEDULES = ("together", "first", "last", *(f"random:{n}" for n in range(6)))
pytestmark = pytest.mark.nvcc


@functools.cache
def compiled() -> LoadedModule:
    return load(SOURCE, arch="sm_90a")


def run_rows(name: str, schedule: str) -> tuple[Report, bool]:
    x = torch.randn(6, 128, generator=torch.Generator().manual_seed(0))
    y = torch.zeros_like(x)
    report = compiled()[name](1, 128, x, y, 6, schedule=schedule, raises=False)
    return report, torch.equal(y, 2 * x)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["right", "fence_by_issuer"])
def test_rows_pass_through_the_engine(name: str, schedule: str) -> None:
    report, equal = run_rows(name, schedule)
    assert equal and not report.findings and not report.warnings


@pytest.mark.parametrize("schedule", SCHEDULES[:4])
def test_a_store_that_nobody_waits_for_at_the_end_is_a_warning(schedule: str) -> None:
    report, equal = run_rows("last_store_unread", schedule)
    assert equal and report
    (warning,) = report.warnings
    assert (warning.code, warning.severity) == ("M416", "warning")
    assert "store(y + r * 128, out[s], 512)" in str(warning)


FAULTS = [
    ("no_wait", "R401", "is not ordered after the write by the copy (cp.async.bulk)"),
    ("no_fence", "R403", "may miss the write by CTA 0"),
    ("no_read_wait", "R401", "is not ordered after the read by the copy (cp.async.bulk)"),
    ("more_bytes", "D401", "no thread can go on"),
    ("fewer_bytes", "S403", "256 bytes more than it expects"),
    ("unawaited", "M403", "nobody waited for the copy (cp.async.bulk)"),
]


@pytest.mark.parametrize(("name", "code", "message"), FAULTS, ids=[f[0] for f in FAULTS])
def test_a_missing_piece_is_found_under_every_schedule(name: str, code: str, message: str) -> None:
    for schedule in SCHEDULES[:5]:
        findings = run_rows(name, schedule)[0].findings
        assert any(d.code == code and message in d.message for d in findings), (schedule, findings)


def test_a_copy_that_acts_late_changes_results_too() -> None:
    assert run_rows("no_wait", "together")[1] and not run_rows("no_wait", "last")[1]


def test_a_deadlock_tells_the_bytes_that_are_missing() -> None:
    (found,) = run_rows("more_bytes", "together")[0].findings
    assert any("lacks 8 bytes that are expected" in n.message for n in found.notes)


def find_byte(row: int, byte: int, width: int, swizzle: int) -> int:
    """Where a byte of a box's row lies: the manual's picture of the pattern, chunk by chunk."""
    address = row * width + byte
    chunk, inner = divmod(address, 16)
    if swizzle == 128:
        chunk ^= chunk // 8 % 8
    elif swizzle == 64:
        chunk ^= chunk // 8 % 4
    elif swizzle == 32:
        chunk ^= chunk // 8 % 2
    return chunk * 16 + inner


SHAPES: list[tuple[torch.dtype, tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = [
    (torch.float32, (96,), (64,), (40,)),
    (torch.float16, (40, 72), (16, 16), (30, 64)),
    (torch.float16, (40, 72), (16, 16), (-3, -8)),
    (torch.bfloat16, (3, 20, 64), (2, 8, 16), (2, 4, 16)),
    (torch.uint8, (2, 3, 8, 48), (1, 2, 8, 32), (1, 2, 0, 0)),
    (torch.int32, (2, 2, 3, 4, 8), (1, 2, 2, 2, 4), (1, 0, 2, -1, 4)),
]


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize(("dtype", "shape", "box", "start"), SHAPES, ids=[str(len(s[1])) + str(s[3]) for s in SHAPES])
def test_boxes_land_where_the_manual_says_with_zeros_outside(
    dtype: torch.dtype, shape: tuple[int, ...], box: tuple[int, ...], start: tuple[int, ...], swizzle: int
) -> None:
    x = (torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 50).to(dtype)
    size = x.element_size()
    width = box[-1] * size
    if swizzle and width > swizzle:
        with pytest.raises(CuirError, match="at most the"):
            tensor_map(x, box, swizzle)
        return
    n = int(np.prod(box)) * size
    y = torch.zeros(n, dtype=torch.uint8)
    a = [*reversed(start), 0, 0, 0, 0][:5]
    report = compiled()[f"take_{len(shape)}"](1, 64, tensor_map(x, box, swizzle), y, n, *a, schedule="last")
    expected = torch.zeros(box, dtype=dtype)
    for index in np.ndindex(*box):
        at = tuple(i + s for i, s in zip(index, start))
        if all(0 <= i < m for i, m in zip(at, shape)):
            expected[index] = x[at]
    plain = expected.reshape(-1, box[-1]).view(torch.uint8)
    where = torch.tensor([[find_byte(r, b, width, swizzle) for b in range(width)] for r in range(len(plain))])
    assert not report.findings and torch.equal(y[where], plain)


@pytest.mark.parametrize("schedule", ["together", "last"])
@pytest.mark.parametrize("name", ["put_box", "add_box"])
def test_boxes_are_stored_and_added_within_the_tensor(name: str, schedule: str) -> None:
    y, x = torch.ones(20, 24, dtype=torch.float16), torch.arange(16 * 16).half().reshape(16, 16)
    expected = y.clone()
    part = expected[10:, 16:]
    part.copy_(x[:10, :8] + (part if name == "add_box" else 0))
    report = compiled()[name](1, 64, tensor_map(y, (16, 16)), x.view(torch.uint8), 512, 16, 10, schedule=schedule)
    assert not report.findings and torch.equal(y, expected)


def test_ctas_may_add_to_the_same_elements_and_not_store() -> None:
    x = torch.ones(16, 16).half().view(torch.uint8)
    y = torch.zeros(16, 16).half()
    assert not compiled()["add_box"](3, 64, tensor_map(y, (16, 16)), x, 512, 0, 0).findings and (y == 3).all()
    report = compiled()["put_box"](3, 64, tensor_map(y, (16, 16)), x, 512, 0, 0, raises=False)
    assert {d.code for d in report.findings} == {"R402"}


def test_lanes_of_a_warp_may_issue_the_same_store() -> None:
    y, x = torch.zeros(16, 16).half(), torch.arange(16 * 16).half().reshape(16, 16)
    report = compiled()["put_box_by_a_warp"](1, 64, tensor_map(y, (16, 16)), x.view(torch.uint8), 512, 0, 0, schedule="last")
    assert not report.findings and torch.equal(y, x)
    report = compiled()["put_box_by_two_warps"](1, 64, tensor_map(y, (16, 16)), x.view(torch.uint8), 512, 0, 0, raises=False)
    assert {d.code for d in report.findings} == {"R402"}


def test_a_store_of_a_box_needs_the_fence() -> None:
    y, x = torch.zeros(16, 16).half(), torch.ones(16, 16).half().view(torch.uint8)
    report = compiled()["put_box_without_fence"](1, 64, tensor_map(y, (16, 16)), x, 512, 0, 0, raises=False)
    assert {d.code for d in report.findings} == {"R403"}


def test_what_is_no_map_is_told() -> None:
    with pytest.raises(CuirError, match="no tensor map"):
        compiled()["take_2"](1, 64, bytes(128), torch.zeros(512, dtype=torch.uint8), 512, 0, 0, 0, 0, 0)
    with pytest.raises(CuirError, match="a tensor map of 2 dims"):
        compiled()["take_3"](1, 64, tensor_map(torch.zeros(8, 8), (8, 8)), torch.zeros(256, dtype=torch.uint8), 256, 0, 0, 0, 0, 0)


def test_maps_that_the_hardware_refuses_are_refused() -> None:
    x = torch.zeros(8, 12)
    for match, arguments in {
        "interleaved": {"box": (8, 8), "interleave": 16},
        "swizzle is one of": {"box": (8, 8), "swizzle": 16},
        "multiple of 16 bytes": {"box": (8, 3)},
        "one to five dims": {"box": (8,)},
        "a box has 1 to 256": {"box": (0, 8)},
    }.items():
        with pytest.raises(CuirError, match=match):
            tensor_map(x, **arguments)  # type: ignore[arg-type]
    with pytest.raises(CuirError, match="strides are multiples"):
        tensor_map(torch.zeros(8, 9), (8, 8))


@pytest.mark.parametrize(("name", "dtype"), [("add_f32", torch.float32), ("add_f16", torch.float16), ("add_u32", torch.int32)])
def test_bytes_are_added_by_every_cta(name: str, dtype: torch.dtype) -> None:
    x, y = torch.arange(256 // dtype.itemsize).to(dtype), torch.ones(256 // dtype.itemsize).to(dtype)
    report = compiled()[name](3, 32, x.view(torch.int32), y.view(torch.int32), schedule="last")
    assert not report.findings and torch.equal(y, 3 * x + 1)


def test_many_missing_fences_do_not_hide_a_race_of_the_same_instructions() -> None:
    y = torch.zeros(64, dtype=torch.int32)
    report = compiled()["put_unordered"](1, 64, y, raises=False)
    assert {d.code for d in report.findings} == {"R401", "R403"}


def test_boxes_of_tf32_hold_numbers_that_need_no_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NAMES, torch.float32, "tf32")
    x, y = torch.arange(1024).float().reshape(32, 32), torch.zeros(4096, dtype=torch.uint8)
    assert not compiled()["take_2"](1, 64, tensor_map(x, (32, 32)), y, 4096, 0, 0, 0, 0, 0).findings
    assert torch.equal(y.view(torch.float32).reshape(32, 32), x)
    with pytest.raises(CuirError, match="how a copy rounds f32 to tf32"):
        compiled()["take_2"](1, 64, tensor_map(x + 1e-4, (32, 32)), y, 4096, 0, 0, 0, 0, 0)
