"""Where the lanes of a worker meet: before what depends on another lane's access, and nowhere else."""

from __future__ import annotations

import shutil

import pytest
import torch

import corpus
from cuir.checking.checker import check
from cuir.interp import run
from cuir.lowering import lower
from cuir.runtime.nvcc import compile_cuda
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from tests.gpu.join_cases import TEXT

FRAME = """
@kernel(arch="sm_90a")
def f(X: Global[f32, 64, 64], H: Global[f16, 64, 64], Y: Global[f32, 64, 64], R: Global[f32, 64], n: i32):
    a, b = shared(f32, [64, 64]), shared(f32, [64, 64])
    h = shared(f16, [64, 64])
    over = shared(f32, [64, 64], over=a)
    full = mbarrier(1)
    with role("one", warpgroups=1):
        x = load(X[0:64, :])
"""


def joins(*lines: str) -> list[bool]:
    """Whether the lanes meet right before each statement."""
    text = FRAME + "\n".join(f"        {line}" for line in lines) + "\n"
    cuda = lower(check(parse(text, "f.cuir")))
    emitted = cuda.source.splitlines()
    first = len(FRAME.splitlines()) + 1
    found = []
    for number in range(first, first + len(lines)):
        marks = [i for i, line in enumerate(emitted) if line.strip().startswith(f"// {number}: ")]
        assert marks, number
        found.append(any("bar_sync(" in emitted[i + 1] for i in marks))
    return found


@pytest.mark.parametrize(
    ("lines", "where"),
    [
        (("store(a, x)", "y = load(a)", "store(Y[0:64, :], y)"), [False, True, False]),  # what others wrote
        (("store(a, x)", "y = load(b[0 : 64])", "store(Y[0:64, :], y)"), [False, False, False]),  # another array
        (("store(a, x)", "y = load(over)", "store(Y[0:64, :], y)"), [False, True, False]),  # the same memory
        (("y = load(a)", "store(a, x)", "store(Y[0:64, :], y)"), [False, True, False]),  # where others still read
        (("store(a, x)", "store(a, x + 1.0)"), [False, True]),
        (("store(a, x)", "s = a[3, 5]", "store(Y[0:64, :], x + s)"), [False, True, False]),  # one element
        (("store(a, x)", "sync()", "y = load(a)", "store(Y[0:64, :], y)"), [False, False, False, False]),  # they have met
        (("store(Y[0:64, :], x)", "y = load(Y[0:64, :])", "store(a, y)"), [False, True, False]),  # tensors as well
        (("store(Y[0:64, :], x)", "store(Y[0:64, :], x + 1.0)"), [False, False]),  # each element by one and the same lane
        (("store(Y[0:64, :], x)", "store(Y[8 : 8 + 64, :], x + 1.0)"), [False, True]),  # by another one
        (("store(h, cast(x, f16))", "fence_async()", "p = mma_async(h, h)", "mma_wait(p)", "store(Y[0:64, :], p)"), [False, False, True, False, False]),
    ],
)  # fmt: skip
def test_lanes_meet_where_one_depends_on_another(lines: tuple[str, ...], where: list[bool]) -> None:
    assert joins(*lines) == where


def test_the_end_of_a_loop_is_before_its_beginning() -> None:
    assert joins("y = x", "for i in range(n):", "    y = y + load(a)", "    store(a, y)", "store(Y[0:64, :], y)") == [
        False,
        False,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    "line", ["store(a, load(a) + 1.0)", "store(Y[0:64, :], load(Y[0:64, :]) + 1.0)", "store(R[rows(64)], R[rows(64)] + 1.0)"]
)
def test_all_is_read_before_anything_is_stored(line: str) -> None:
    text = lower(check(parse(f"{FRAME}        {line}\n", "f.cuir"))).source
    body = text[text.index("// ---- role one") :]
    read, met = (body.index(x) for x in ("for (int", "bar_sync("))
    assert read < met < body.rindex("for (int")


def test_one_branch_is_enough() -> None:
    assert joins("if n > 0:", "    store(a, x)", "y = load(a)", "store(Y[0:64, :], y)") == [False, False, True, False]


def test_rows_from_a_multiple_on_keep_their_lanes() -> None:
    assert joins("r = n * 64", "for i in range(n):", "    store(R[r + rows(64)], row_max(x))", "    r = r + 64") == [False] * 4
    assert joins("r = n * 8", "for i in range(n):", "    store(R[r + rows(64)], row_max(x))", "    r = r + 8") == [
        False,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize(
    "consts", [{"D": 128, "BM": 128, "BN": 128}, {"D": 128, "BM": 192, "BN": 80}, {"D": 128, "BM": 384, "BN": 80, "CLUSTER": 2}]
)
def test_the_expert_kernel_needs_none(consts: dict[str, int]) -> None:
    cuda = lower(check(parse(corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8")), None, {"T": F16, "DYNAMIC": True, **consts}))
    assert not [line for line in cuda.source.splitlines() if "bar_sync(" in line and "DEV" not in line]


def test_the_program_of_the_gpu_test() -> None:
    checked = check(parse(TEXT))
    given = {name: torch.randn(256, 64) for name in "XYZ"}
    run(checked, given)  # no race, as a worker is sequential as a whole
    assert shutil.which("nvcc") is None or compile_cuda(lower(checked)).cubin
