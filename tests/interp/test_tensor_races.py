"""Memory that a launch has not written is not read, and slots that units of different CTAs share are a race, whatever the grid."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuir import check, parse, run
from cuir.checking.checked import Checked
from cuir.text.diagnostics import CuirError, Diagnostic

POISONS = (math.nan, 0.0, 3e38, 1.0)

HEAD = """\
@kernel(arch="sm_90a"{cluster})
def k(X: Global[f32, M, 64], Y: Global[f32, M, 64], S: {kind}[{dtype}, {dims}]):
    buffer = shared(f32, [16, 64])
    full = mbarrier(1)
    done = mbarrier({count})
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        i = 0
        for t in work:
            r, c = t * 16 + rows(16), cols(64)
{body}
            i += 1
"""


def kernel(*body: str, dims: str = "M, 64", kind: str = "Scratch", dtype: str = "f32", cluster: int = 1) -> Checked:
    head = f", cluster={cluster}" if cluster > 1 else ""
    text = "\n".join(" " * 12 + line for line in body)
    return check(parse(HEAD.format(cluster=head, kind=kind, dims=dims, dtype=dtype, count=cluster, body=text)))


def attempt(
    checked: Checked,
    m: int = 40,
    grid: int | None = None,
    undefined: tuple[str, ...] = (),
    tensors: Mapping[str, torch.Tensor] | None = None,
) -> tuple[str, torch.Tensor, Diagnostic | None]:
    """The code of the first error, else an empty text; Y; the error."""
    x, y = torch.arange(m * 64, dtype=torch.float32).view(m, 64), torch.full((m, 64), math.nan)
    try:
        run(checked, {"X": x, "Y": y, **(tensors or {})}, grid=grid, undefined=undefined)
    except CuirError as error:
        return error.diagnostics[0].code, y, error.diagnostics[0]
    return "", y, None


# ---- memory that this launch has not written
READS = {
    "gather": ["store(Y[r, c], S[r, c])"],
    "box": ["store(Y[t * 16 : t * 16 + 16, :], load(S[t * 16 : t * 16 + 16, :]))"],
    "element": ["store(Y[r, c], X[r, c] + S[t * 16, 0])"],
    "comparison": ["if S[t * 16, 5] > 0.0:", "    store(Y[r, c], X[r, c])"],
    "select": ["store(Y[r, c], where(S[r, c] > 1.0, X[r, c], 2.0))"],
    "maximum": ["store(Y[r, c], max(X[r, c], min(S[r, c], 0.0)))"],
    "bulk copy": [
        "full.expect(nbytes(buffer))",
        "copy_async(S[t * 16 : t * 16 + 16, :], buffer, full)",
        "full.wait(i % 2)",
        "store(Y[t * 16 : t * 16 + 16, :], load(buffer))",
    ],
    "addition": ["store(S[r, c], X[r, c], add=True)", "store(Y[r, c], S[r, c])"],
}
WRITES = {
    "all": ["store(S[r, c], X[r, c])"],
    "a box": ["store(S[t * 16 : t * 16 + 16, :], load(X[t * 16 : t * 16 + 16, :]))"],
}


@pytest.mark.parametrize("read", READS)
def test_scratch_is_written_before_it_is_read(read: str) -> None:
    code, _, error = attempt(kernel(*READS[read]))
    assert code == "M415" and error is not None and error.span is not None
    named = "S[0, 5]" if read == "comparison" else "S[0, 0]"
    assert f"`{named}`" in error.message and "which this launch has not written" in error.message
    assert "`S` is scratch" in (error.hint or "")
    for write in WRITES.values():
        assert attempt(kernel(*write, "fence_async(tensors=True)", *READS[read]))[0] == ""


@pytest.mark.parametrize("column", (0, 17, 63))
def test_one_element_that_nobody_wrote_is_named(column: int) -> None:
    text = f"store(S[r, c], X[r, c], mask=c != {column})"
    code, _, error = attempt(kernel(text, *READS["gather"]))
    assert code == "M415" and error is not None and f"`S[0, {column}]`" in error.message
    assert any("written here" in note.message and note.span is not None for note in error.notes)


def test_a_row_left_out_of_a_gather_is_not_read() -> None:
    some = ["store(S[r, c], X[r, c], mask=rows(16) < 8)", "q = where(rows(16) < 8, r, -1)"]
    code, y, _ = attempt(kernel(*some, "store(Y[r, c], S[q, c])"), 32)
    assert code == "" and y[8:16].eq(0).all() and y[0, 5] == 5
    assert attempt(kernel(*some, "store(Y[r, c], where(rows(16) < 8, S[r, c], 0.0))"), 32)[0] == "M415"


def test_a_flag_of_an_earlier_launch_decides_nothing() -> None:
    flag = ["if S[0] == 1:", "    store(Y[r, c], X[r, c])", "if t == 0:", "    store(S[0], 1)"]
    for kind in ("Scratch", "Global"):
        checked = kernel(*flag, dims="2", dtype="i32", kind=kind)
        for value in (0, 1, -(2**31)):
            assert attempt(checked, grid=1, undefined=("S",), tensors={"S": torch.full((2,), value, dtype=torch.int32)})[0] == "M415"


def test_a_written_tensor_is_what_the_caller_gives() -> None:
    """Unless the caller says that it holds nothing."""
    checked = kernel("store(Y[r, c], S[r, c])", "store(S[r, c], X[r, c])", kind="Global")
    before = torch.ones(40, 64)
    code, y, _ = attempt(checked, tensors={"S": before})
    assert code == "" and y.eq(1).all()
    assert attempt(checked, undefined=("S",), tensors={"S": before})[0] == "M415"
    turned = kernel("store(S[r, c], X[r, c])", "store(Y[r, c], S[r, c])", kind="Global")
    assert attempt(turned, undefined=("S",), tensors={"S": before})[0] == ""


def test_without_detection_nothing_is_said() -> None:
    x, y = torch.ones(16, 64), torch.zeros(16, 64)
    run(kernel(*READS["gather"]), {"X": x, "Y": y}, detect=False)
    assert y.isnan().all()


@settings(max_examples=25, deadline=None)
@given(
    writes=st.sets(st.integers(0, 3), max_size=4),
    reads=st.sets(st.integers(0, 3), min_size=1, max_size=4),
    repeats=st.booleans(),
    m=st.integers(1, 50),
)
def test_what_passes_does_not_depend_on_what_scratch_held(writes: set[int], reads: set[int], repeats: bool, m: int) -> None:
    """It passes if and only if it reads what it wrote; then zeros, NaN, large values and those of the launch before give the same bits."""
    stores = [f"store(S[r, {16 * w} + cols(16)], X[r, {16 * w} + cols(16)])" for w in sorted(writes)]
    loads = [f"store(Y[r, {16 * w} + cols(16)], S[r, {16 * w} + cols(16)])" for w in sorted(reads)]
    checked = kernel(*stores, *loads, *(stores if repeats else []))
    results = []
    stale = torch.zeros(m, 64)
    for poison in POISONS:
        scratch = torch.full((m, 64), poison) if poison != 1.0 else stale
        code, y, _ = attempt(checked, m, tensors={"S": scratch})
        assert code == ("" if reads <= writes else "M415")
        results.append(y)
        stale = scratch
    assert all(torch.equal(a.nan_to_num(-1.0), results[0].nan_to_num(-1.0)) for a in results)


# ---- slots that units share
SLOTTED = {
    "a store": ["store(S[t % {n}, rows(16), c], X[r, c])"],
    "a store, read back": ["store(S[t % {n}, rows(16), c], X[r, c])", "store(Y[r, c], S[t % {n}, rows(16), c])"],
    "a bulk store": [
        "store(buffer, X[r, c])",
        "fence_async()",
        "store_async(buffer, S[t % {n}, 0 : 16, :])",
        "store_wait()",
    ],
    "a store and an addition": [
        "if t < {n}:",
        "    store(S[t, rows(16), c], X[r, c])",
        "else:",
        "    store(S[t % {n}, rows(16), c], X[r, c], add=True)",
    ],
    "an addition, read": [
        "store(S[t % {n}, rows(16), c], 0.0 * X[r, c])",
        "store(S[t % {n}, rows(16), c], X[r, c], add=True)",
        "store(Y[r, c], S[t % {n}, rows(16), c])",
    ],
    "an element": ["store(S[t % {n}, 0, 0], 1.0)"],
}


@pytest.mark.sweep(4)
@pytest.mark.parametrize("cluster", (1, 2))
@pytest.mark.parametrize("n", (2, 3, 4))
@pytest.mark.parametrize("how", SLOTTED)
def test_two_units_of_one_slot_are_a_race(how: str, n: int, cluster: int) -> None:
    """Expect a race from n + 1 units on, each of a CTA or cluster of its own; none with n units."""
    body = [line.replace("{n}", str(n)) for line in SLOTTED[how]]
    if cluster > 1:
        body = ["if cta_rank() == 0:", *("    " + line for line in body)]
    checked = kernel(*body, dims=f"{n}, 16, 64", kind="Global", cluster=cluster)
    for units in range(1, 2 * n + 2):
        x, y, s = torch.ones(16 * units, 64), torch.zeros(16 * units, 64), torch.zeros(n, 16, 64)
        for lanes in (1, 32):  # CTAs one after the other, and as one batch
            try:
                run(checked, {"X": x, "Y": y, "S": s}, grid=units, lanes=lanes)
                code = ""
            except CuirError as error:
                code = error.diagnostics[0].code
            assert code == ("R402" if units > n else "")


@pytest.mark.parametrize("cluster", (1, 2))
def test_a_third_cta_that_reads_is_told(cluster: int) -> None:
    """Unit 0 stores what unit 2 reads, in any order of the CTAs."""
    body = ["if t == 0:", "    store(S[0, 0], 1.0)", "if t == 2:", "    store(Y[0, 0], S[0, 0])"]
    checked = kernel(*body, kind="Global", cluster=cluster)
    assert attempt(checked, 48, grid=3, tensors={"S": torch.zeros(48, 64)})[0] == "R402"
    turned = kernel(*(line.replace("== 0", "== 9").replace("== 2", "== 0").replace("== 9", "== 2") for line in body), kind="Global")
    assert attempt(turned, 48, grid=3, tensors={"S": torch.zeros(48, 64)})[0] == "R402"


def test_all_that_add_are_no_race() -> None:
    checked = kernel("store(S[t % 2, rows(16), c], X[r, c], add=True)", dims="2, 16, 64", kind="Global")
    total = torch.zeros(2, 16, 64)
    assert attempt(checked, 80, grid=5, tensors={"S": total})[0] == ""
    assert total.sum() == torch.arange(80 * 64).sum()
