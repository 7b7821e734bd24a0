"""Boxes, gathers, scatters and masks against torch's indexing, in all lanes at once, sticking out of tensors on every side."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cuir
from cuir.interp import Schedule, run

BOX = """\
@kernel(arch="sm_80")
def boxes(X: Global[f32, A, R, C], Y: Global[f32, A, R, C], i: i32, j: i32):
    work = tiles(A)
    with role("all", warps=1):
        for t in work:
            store(Y[t, j : j + 16, i : i + 32], load(X[t, i : i + 16, j : j + 32]))
"""
CHECKED = cuir.check(cuir.parse(BOX))


def pad(x: torch.Tensor, dim: int, start: int, size: int) -> torch.Tensor:
    """x[start : start + size] along a dim, zero outside."""
    out = torch.zeros(*x.shape[:dim], size, *x.shape[dim + 1 :])
    low, high = max(0, start), min(x.shape[dim], start + size)
    if low < high:
        out.narrow(dim, low - start, high - low).copy_(x.narrow(dim, low, high - low))
    return out


@given(st.integers(1, 5), st.integers(1, 40), st.integers(1, 40), st.integers(-40, 50), st.integers(-40, 50), st.sampled_from([1, 3]))
def test_boxes_stick_out(a: int, r: int, c: int, i: int, j: int, grid: int) -> None:
    """Reads 0 outside, writes nothing outside."""
    x, y = torch.randn(a, r, c), torch.full((a, r, c), -1.0)
    run(CHECKED, {"X": x, "Y": y, "i": i, "j": j}, grid=grid)
    want = torch.full((a, r, c), -1.0)
    selected = pad(pad(x, 1, i, 16), 2, j, 32)
    rows, cols = slice(max(0, j), max(0, j + 16)), slice(max(0, i), max(0, i + 32))
    inside = want[:, rows, cols]
    if inside.numel():
        inside.copy_(selected[:, max(0, -j) : max(0, -j) + inside.shape[1], max(0, -i) : max(0, -i) + inside.shape[2]])
    assert torch.equal(y, want)


@pytest.mark.parametrize("grid", [1, 3, 6])
def test_gathers_and_scatters(execute, grid: int) -> None:
    text = """\
@kernel(arch="sm_80")
def permute(X: Global[f16, A, R, 32], P: Global[i32, A, R], Y: Global[f16, A, R, 32]):
    work = tiles(A)
    with role("all", warps=1):
        for t in work:
            p = P[t, rows(16)]
            store(Y[t, p, cols(32)], X[t, rows(16), cols(32)], mask=cols(32) < 31)
"""
    x = torch.randn(6, 16, 32).half()
    p = torch.stack([torch.randperm(16) for _ in range(6)]).int()
    y = torch.zeros_like(x)
    ran = execute(text, {"X": x, "P": p, "Y": y}, grid=grid)
    want = torch.zeros_like(x)
    for t in range(6):
        want[t, p[t].long(), :31] = x[t, :, :31]
    assert ran.error is None, ran.error
    assert torch.equal(y, want)


GATHERED = """\
@kernel(arch="ARCH")
def gathered(X: Global[f16, P, R, C], I: Global[i32, M], Y: Global[f16, M, W], *, W: const = 64, FIRST: const = 0):
    s = shared(f16, [2, 16, W])
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            i = I[t * 16 + rows(16)]
            copy_async(X[where(i < 0, P, i // R), i % R, FIRST + cols(W)], s[t % 2])
            copy_commit()
            copy_wait(0)
            store(Y[t * 16 + rows(16), cols(W)], load(s[t % 2]))
"""


@given(st.sampled_from([(64, 0), (128, 8), (192, 64), (24, 16)]), st.integers(1, 40), st.sampled_from([1, 2, 3]), st.integers(0, 99))
@settings(max_examples=12, deadline=None)
def test_rows_are_gathered_by_cp_async(columns: tuple[int, int], m: int, grid: int, seed: int) -> None:
    """A row that is none, and columns behind the last one, read 0."""
    g = torch.Generator().manual_seed(seed)
    width, first = columns
    x, i = torch.randn(5, 3, 144, generator=g).half()[..., : 144 - seed % 2 * 8], torch.randint(-2, 17, (m,), generator=g).int()
    y = torch.full((m, width), -1.0).half()
    run(
        cuir.check(cuir.parse(GATHERED.replace("ARCH", "sm_90a")), consts={"W": width, "FIRST": first}), {"X": x, "I": i, "Y": y}, grid=grid
    )
    rows = torch.nn.functional.pad(x.flatten(0, 1), (0, 128))[:, first : first + width]
    assert torch.equal(y, torch.where(((i >= 0) & (i < 15))[:, None], rows[i.clamp(0, 14).long()], 0))


@pytest.mark.parametrize("columns", ["4 + cols(W)", "cols(W) * 2", "W - cols(W)"])
def test_gathered_columns_are_neighbours_in_whole_chunks(execute, columns: str) -> None:
    text = GATHERED.replace("FIRST + cols(W)", columns).replace("ARCH", "sm_80")
    ran = execute(text, {"X": torch.zeros(5, 3, 144).half(), "I": torch.zeros(16).int(), "Y": torch.zeros(16, 64).half()})
    assert ran.code == "M414", ran.error
    assert "chunks of 16 bytes: 8 neighbours" in ran.error.diagnostics[0].message


def test_scattered_rows_outside_are_dropped(execute) -> None:
    text = """\
@kernel(arch="sm_80")
def shift(X: Global[f32, R, 32], Y: Global[f32, R, 32], d: i32):
    with role("all", warps=1):
        store(Y[rows(16) + d, cols(32)], X[rows(16), cols(32)])
"""
    x = torch.randn(16, 32)
    for d in (-20, -3, 0, 5, 16):
        y = torch.zeros(16, 32)
        ran = execute(text, {"X": x, "Y": y, "d": d})
        assert ran.error is None, ran.error
        assert torch.equal(y, pad(x, 0, -d, 16))


def test_masked_box_store(execute) -> None:
    text = """\
@kernel(arch="sm_80")
def lower(X: Global[f32, B, R, 32], Y: Global[f32, B, R, 32]):
    with role("all", warps=1):
        store(Y[0 : 2, 0 : 8, :], load(X[0 : 2, 0 : 8, :]), mask=cols(32) <= rows(16) % 8)
"""
    x, y = torch.randn(2, 7, 32), torch.zeros(2, 7, 32)
    ran = execute(text, {"X": x, "Y": y})
    assert ran.error is None, ran.error
    assert torch.equal(y, x.tril())


def test_empty_tensors(execute) -> None:
    text = """\
@kernel(arch="sm_80")
def none(X: Global[f32, A, 32], Y: Global[f32, 16, 32]):
    with role("all", warps=1):
        store(Y[:, :], load(X[0 : 16, :]) + X[rows(16), cols(32)])
"""
    y = torch.ones(16, 32)
    ran = execute(text, {"X": torch.zeros(0, 32), "Y": y})
    assert ran.error is None and not y.any()


def test_reads_of_a_written_tensor_are_ordered(execute) -> None:
    text = """\
@kernel(arch="sm_80")
def two(Y: Global[f32, 32, 32]):
    with role("all", warps=2) as w:
        store(Y[w * 16 : w * 16 + 16, :], zeros(f32, [16, 32]))
        sync()
        store(Y[w * 16 : w * 16 + 16, :], load(Y[(1 - w) * 16 : (1 - w) * 16 + 16, :]) + 1.0)
"""
    y = torch.full((32, 32), 5.0)
    ran = execute(text, {"Y": y})
    assert ran.code == "R402"  # the second store overtakes the other worker's load
    good = text.replace(
        "        store(Y[w * 16 : w * 16 + 16, :], load(Y[(1 - w) * 16 : (1 - w) * 16 + 16, :]) + 1.0)",
        "        x = load(Y[(1 - w) * 16 : (1 - w) * 16 + 16, :])\n        sync()\n        store(Y[w * 16 : w * 16 + 16, :], x + 1.0)",
    )
    assert execute(good, {"Y": y}).error is None and torch.equal(y, torch.ones(32, 32))
    assert execute(good.replace("        sync()\n", "", 1), {"Y": y}).code == "R402"


def test_elements_of_shared_memory(execute) -> None:
    text = """\
@kernel(arch="sm_80")
def table(X: Global[i32, 8], Y: Global[i32, 8]):
    s = shared(i32, [8])
    with role("all", warps=1):
        for i in range(8):
            store(s[i], X[7 - i] * 2)
        for i in range(8):
            store(Y[i], s[i])
"""
    x, y = torch.arange(8, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    ran = execute(text, {"X": x, "Y": y})
    assert ran.error is None, ran.error
    assert torch.equal(y, x.flip(0) * 2)
    assert execute(text.replace("range(8)", "range(9)", 1), {"X": x, "Y": y}).code in ("M402", "M409")
    assert execute(text.replace("range(8)", "range(7)", 1), {"X": x, "Y": y}).code == "M401"


IN_PLACE = """\
@kernel(arch="sm_90a")
def twice(Y: Global[f16, A, 64, 64]):
    s = shared(f16, [64, 64])
    full = mbarrier(1)
    work = tiles(A)
    with role("all", warpgroups=1):
        i = 0
        for t in work:
            full.expect(nbytes(s))
            copy_async(Y[t, :, :], s, full)
            full.wait(i % 2)
            x = load(s)
            store(Y[t, :, :], x + x)
            i += 1
"""


def test_a_tensor_updated_in_place(execute) -> None:
    """A copy has read its box once its barrier was waited for; not before."""
    y = torch.randn(4, 64, 64).half()
    want = y + y
    assert execute(IN_PLACE, {"Y": y}, grid=2).error is None
    assert torch.equal(y, want)
    early = IN_PLACE.replace("            full.wait(i % 2)\n            x = load(s)\n", "            x = zeros(f16, [64, 64])\n").replace(
        "x + x)\n", "x + x)\n            full.wait(i % 2)\n"
    )
    for schedule in (Schedule.adversarial("engines_first"), Schedule.random(0), Schedule.in_order()):
        ran = execute(early, {"Y": y}, grid=2, schedule=schedule)
        assert (ran.code, ran.at) in {("R402", "store(Y[t, :, :], x + x)"), ("R402", "copy_async(Y[t, :, :], s, full)")}, ran.error
