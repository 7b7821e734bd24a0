"""What a launch requires of tensors that engines copy: asked alike by interpreter and launch, told by checks before there are tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import cuir
from cuir.arguments.binding import TORCH, assume_consts
from cuir.arguments.requirements import (
    compute_length_multiple,
    copy_of,
    describe_row_requirements,
    find_copied_tensors,
    pad_arguments,
    require_layout,
)
from cuir.checking.checked import Checked
from cuir.lowering import lower
from cuir.spec.function_specification import FunctionSpecification
from cuir.syntax.types import DTYPES
from cuir.text.diagnostics import CuirError
from cuir.verification import verify
from cuir.verification.lengths import make_all_draws

CORPUS = Path(__file__).parents[2] / "corpus"
FILES = sorted([*(CORPUS / "programs").glob("*.cuir"), *(CORPUS / "kernels").glob("*.cuir")])
EXTRA = {"decode": {"G": 8, "PAGE": 64}, "global_sliding_window": {"L": 64, "R": 64, "g": 16}}

BULK = """\
@kernel(arch="sm_90a")
def move(X: Global[T, DIMS], Y: Global[T, DIMS], *, T: const, D: const = 64):
    s = shared(T, [64, COLS])
    full = mbarrier(1)
    with role("all", warpgroups=1):
        full.expect(nbytes(s))
        copy_async(X[0 : 64, 0 : COLS], s, full)
        full.wait(0)
        store(Y[0 : 64, 0 : COLS], load(s))
"""
CP = """\
@kernel(arch="sm_80")
def move(X: Global[T, DIMS], Y: Global[T, DIMS], first: i32, *, T: const, D: const = 64):
    s = shared(T, [64, 64])
    with role("all", warpgroups=1):
        copy_async(X[0 : 64, first : first + 64], s)
        copy_commit()
        copy_wait(0)
        sync()
        store(Y[0 : 64, first : first + 64], load(s))
"""


def move(dims: str, dtype: str = "f16", text: str = BULK, **consts: int) -> Checked:
    cols = 128 // DTYPES[dtype].itemsize
    return cuir.check(cuir.parse(text.replace("DIMS", dims).replace("COLS", str(cols)), "m.cuir"), consts={"T": DTYPES[dtype], **consts})


def code(checked: Checked, **arguments: object) -> str:
    try:
        cuir.run(checked, arguments)  # type: ignore[arg-type]
    except CuirError as error:
        return error.diagnostics[0].code
    return ""


@pytest.mark.sweep(32)
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_the_lowering_addresses_the_same_tensors(path: Path) -> None:
    program = cuir.load(path)
    for name, kernel in program.kernels().items():
        checked = cuir.check(program, name, assume_consts(kernel, EXTRA.get(name, {}) | EXTRA.get(path.stem, {})))
        assert set(lower(checked).aligned) == set(find_copied_tensors(checked))
        assert "apart" not in describe_row_requirements(checked)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "i32"])
def test_rows_of_a_run_time_length(dtype: str) -> None:
    checked, each = move("M, N", dtype), 16 // DTYPES[dtype].itemsize
    assert compute_length_multiple(checked, "N") == each and compute_length_multiple(checked, "M") == 1
    assert f"N must be a multiple of {each}" in describe_row_requirements(checked)
    for n in (each, each + 1, 20 * each, 20 * each + each // 2):
        x, y = (torch.zeros(70, n, dtype=TORCH[DTYPES[dtype]]) for _ in range(2))
        assert code(checked, X=x, Y=y) == ("U506" if n % each else "")


def test_what_a_launch_admits() -> None:
    checked, y = move("M, N"), torch.zeros(64, 64, dtype=torch.float16)
    wide = torch.zeros(65, 72, dtype=torch.float16)
    assert code(checked, X=wide[:64, :64], Y=y) == ""  # rows further apart than they are long
    assert code(checked, X=wide.flatten()[1:4097].view(64, 64), Y=y) == "U506"  # begins between
    assert code(checked, X=wide[:1, :64].expand(64, 64), Y=y) == ""  # one row for all
    assert (
        code(checked, X=torch.zeros(1, 63, dtype=torch.float16), Y=torch.zeros(1, 63, dtype=torch.float16)) == ""
    )  # one row has no distance
    assert code(checked, X=y, Y=wide.flatten()[1:4097].view(64, 64)) == ""  # no engine writes Y
    bulk = move("M, N", text=BULK.replace("store(Y[0 : 64, 0 : COLS], load(s))", "store_async(s, Y[0 : 64, 0 : COLS])"))
    assert code(bulk, X=y, Y=torch.zeros_like(y)) == ""
    assert code(bulk, X=y, Y=wide[:1, :64].expand(64, 64)) == "U506"  # one row for the results of all


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("dims", "consts", "uneven"),
    [("M, 20", {}, True), ("M, D", {"D": 20}, True), ("M, D", {}, False), ("M, 24", {}, False), ("1, 20", {}, False)],
)
def test_rows_that_the_signature_says(dims: str, consts: dict[str, int], uneven: bool) -> None:
    columns = 24 if "24" in dims else 20 if uneven or "20" in dims else 64
    checked = move(dims, **consts)
    text = "`X`, 20 f16 of 40 bytes, must lie further apart" in describe_row_requirements(checked)
    assert text == uneven
    formed = verify(checked, FunctionSpecification("same", lambda X: X), seeded=0).stages[0]
    assert formed.verdict == "passed" and ("further apart" in formed.reason) == uneven
    x, y = (torch.randn(64 if dims[0] == "M" else 1, columns).half() for _ in range(2))
    assert code(checked, X=x, Y=y) == ("U506" if uneven else "")
    inputs = pad_arguments(checked, {"X": x, "Y": y})
    assert code(checked, **inputs) == "" and torch.equal(inputs["Y"], x)


def test_cp_async_begins_at_chunks() -> None:
    checked = move("M, N", text=CP)
    x, y = (torch.zeros(64, 128, dtype=torch.float16) for _ in range(2))
    assert [code(checked, X=x, Y=y, first=n) for n in (0, 8, 4, 128, -8, -1)] == ["", "", "M414", "", "", "M414"]
    assert "first" in lower(checked).source and ">= 0" in lower(checked).source  # chunks left of a row are outside of it


@pytest.mark.parametrize(
    "store", ["store(Y[0 : 64, 0 : 64], load(s))", "store_async(s, Y[0 : 64, first : first + 64])\n        store_wait(0)"]
)
def test_bulk_copies_begin_at_chunks(store: str) -> None:
    text = BULK.replace("*, T", "first: i32, *, T").replace("X[0 : 64, 0 : COLS]", "X[0 : 64, first : first + 64]")
    checked = move("M, N", text=text.replace("store(Y[0 : 64, 0 : COLS], load(s))", store))
    x, y = (torch.zeros(64, 128, dtype=torch.float16) for _ in range(2))
    assert [code(checked, X=x, Y=y, first=n) for n in (0, 8, 4, 128, -1)] == ["", "", "M414", "", "M414"]


@given(st.lists(st.integers(1, 5), min_size=2, max_size=4), st.sampled_from(["f16", "f32"]))
def test_padded_tensors_are_admitted(shape: list[int], dtype: str) -> None:
    checked = move(", ".join("ABCD"[: len(shape)]) if len(shape) == 2 else "M, N", dtype)
    x = torch.randn(shape[-2:]).to(TORCH[DTYPES[dtype]])
    result = pad_arguments(checked, {"X": x, "Y": x})
    require_layout(checked, ["X"], result)
    require_layout(checked, ["X"], {"X": copy_of(result["X"])})
    assert torch.equal(result["X"], x) and result["Y"] is x


def test_verification_draws_lengths_that_are_admitted() -> None:
    checked = move("M, N")
    spec = FunctionSpecification("same", lambda X: X)
    draws = make_all_draws(checked, spec, "full")
    assert all(d.sizes["N"] % 8 == 0 for d in draws) and any(d.sizes["N"] % 64 for d in draws) and any(d.sizes["M"] % 8 for d in draws)


SIX = """\
@kernel(arch="sm_90a")
def six(X: Global[f16, A, B, C, E, M, 64], Y: Global[f16, M, 64]):
    s = shared(f16, [64, 64])
    full = mbarrier(1)
    with role("all", warpgroups=1):
        full.expect(nbytes(s))
        copy_async(X[0, 0, 0, 0, 0 : 64, :], s, full)
        full.wait(0)
        store(Y[0 : 64, :], load(s))
"""
COUNT = """\
@kernel(arch="sm_90a")
def count(L: Global[i32, B], Y: Global[f32, M, 64]):
    work = tiles(L[0])
    with role("all", warpgroups=1):
        for t in work:
            store(Y[t * 64 : t * 64 + 64, :], zeros(f32, [64, 64]))
"""


@pytest.mark.parametrize(("text", "expected", "line"), [(SIX, "L003", 7), (COUNT, "L002", 3)])
def test_what_the_lowering_refuses_is_a_finding_of_verification(text: str, expected: str, line: int) -> None:
    checked = cuir.check(cuir.parse(text, "l.cuir"))
    report = verify(checked, FunctionSpecification("any", lambda Y=None: torch.zeros(1)))
    actual = report.stages[0].diagnostics[0]
    assert report.stages[0].verdict == "failed" and (actual.code, actual.span and actual.span.line) == (expected, line)
