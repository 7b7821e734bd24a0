"""Tensor memory: the program of the other tests of it, and what its primitives refuse."""

from __future__ import annotations

import pytest

from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.syntax.parser import parse
from cuir.syntax.types import COLUMN_BYTES, TENSOR_MEMORY
from cuir.text.diagnostics import CuirError

MULTIPLY = """\
@kernel(arch="sm_100a")
def multiply(A: Global[f16, M, K], B: Global[f16, N, K], C: Global[f32, M, N], *, COLUMNS: const = 64, STAGES: const = 2):
    sA, sB = shared(f16, [STAGES, 128, 64]), shared(f16, [STAGES, COLUMNS, 64])
    acc = tensor_memory(f32, [2, 128, COLUMNS])
    full, empty = mbarrier(1, stages=STAGES), mbarrier(1, stages=STAGES)
    done, read = mbarrier(1, stages=2), mbarrier(1, stages=2)
    work = tiles(cdiv(M, 128) * cdiv(N, COLUMNS))
    with role("loader", warps=1):
        i = 0
        for t in work:
            m, n = t // cdiv(N, COLUMNS) * 128, t % cdiv(N, COLUMNS) * COLUMNS
            for k in range(max(1, cdiv(K, 64))):
                s = i % STAGES
                empty[s].wait(i // STAGES % 2 ^ 1)
                full[s].expect(nbytes(sA[s]) + nbytes(sB[s]))
                copy_async(A[m : m + 128, k * 64 : k * 64 + 64], sA[s], full[s])
                copy_async(B[n : n + COLUMNS, k * 64 : k * 64 + 64], sB[s], full[s])
                i = i + 1
    with role("issuer", warps=1):
        i, j = 0, 0
        for t in work:
            read[j % 2].wait(j // 2 % 2 ^ 1)
            for k in range(max(1, cdiv(K, 64))):
                s = i % STAGES
                full[s].wait(i // STAGES % 2)
                mma_into(acc[j % 2], sA[s], sB[s].T, accumulate=k > 0)
                mma_commit(empty[s])
                i = i + 1
            mma_commit(done[j % 2])
            j = j + 1
    with role("epilogue", warpgroups=1):
        j = 0
        for t in work:
            m, n = t // cdiv(N, COLUMNS) * 128, t % cdiv(N, COLUMNS) * COLUMNS
            done[j % 2].wait(j // 2 % 2)
            x = load_async(acc[j % 2])
            load_wait(x)
            read[j % 2].arrive()
            store(C[m : m + 128, n : n + COLUMNS], x)
            j = j + 1
"""


def check_changed(*changes: tuple[str, str], text: str = MULTIPLY) -> Checked:
    """Check the program with replaced parts of its text."""
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return check(parse(text))


def test_arrays_lie_column_after_column() -> None:
    checked = check_changed(("    full,", "    more = tensor_memory(f32, [128, 32])\n    full,"))
    assert [(a.offset - TENSOR_MEMORY) // COLUMN_BYTES for a in (checked.shared["acc"], checked.shared["more"])] == [0, 128]
    assert checked.shared_bytes == check_changed().shared_bytes


DECLARATION, PRODUCT, COMMIT, LOAD = (
    "tensor_memory(f32, [2, 128, COLUMNS])",
    "mma_into(acc[j % 2], sA[s], sB[s].T, accumulate=k > 0)",
    "mma_commit(done[j % 2])",
    "load_async(acc[j % 2])",
)


@pytest.mark.parametrize(
    ("code", "old", "new"),
    [
        ("T103", DECLARATION, "tensor_memory(f16, [2, 128, COLUMNS])"),
        ("T104", DECLARATION, "tensor_memory(f32, [2, 64, COLUMNS])"),
        ("T104", DECLARATION, "tensor_memory(f32, [2, 128, 48])"),
        ("M301", DECLARATION, "tensor_memory(f32, [9, 128, COLUMNS])"),
        ("S217", "sm_100a", "sm_90a"),
        ("S219", 'role("epilogue", warpgroups=1)', 'role("epilogue", warps=4)'),
        ("S219", 'role("issuer", warps=1)', 'role("issuer", warpgroups=1)'),
        ("T106", PRODUCT, "mma_into(sA[s], sA[s], sB[s].T)"),
        ("T106", PRODUCT, "mma_into(acc[0], acc[0], sB[s].T)"),
        ("T107", PRODUCT, "mma_into(acc[0, 0:64, :], sA[s], sB[s].T)"),
        ("T116", PRODUCT, "mma_into(acc[0], sA[s], sB[s].T, accumulate=k)"),
        ("T131", PRODUCT, "mma_into(acc[0], sA[s], sB[s])"),
        ("T131", PRODUCT, "mma_into(acc[0], sA[s].T, sB[s].T)"),
        ("T134", PRODUCT, "mma_into(acc[0], sA[s, :, 0:32], sB[s].T)"),
        ("T136", PRODUCT, "mma_into(acc[0], sA[s], sA[s].T)"),
        ("T129", COMMIT, "mma_commit(done)"),
        ("T106", LOAD, "load(acc[j % 2])"),
        ("T106", LOAD, "load_async(sA[j % 2])"),
        ("T106", "nbytes(sA[s])", "nbytes(acc[0])"),
        ("T161", COMMIT, "y = acc[0, 0, 0]"),
        ("T139", "load_wait(x)", "load_wait(j)"),
    ],
)
def test_what_is_refused(code: str, old: str, new: str) -> None:
    with pytest.raises(CuirError) as caught:
        check_changed((old, new))
    assert code in {d.code for d in caught.value.diagnostics}


def test_columns_are_sliced() -> None:
    checked = check_changed((LOAD, "load_async(acc[j % 2, :, 32:64])"), ("n : n + COLUMNS], x", "n + 32 : n + 32 + 32], x"))
    assert str(checked.roles[2].locals["x"]) == "Tile[f32, [128, 32]]"
