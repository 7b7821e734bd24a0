"""wgmma: fences of operand A in registers, operands that begin inside of a panel."""

from __future__ import annotations

import re

import pytest
import torch

import cuir
from cuir.lowering import lower
from cuir.runtime.nvcc import compile_cuda
from cuir.verification.ptx_launches import compile_lowered
from cuir.verification.ptx_stage import SCHEDULES

PRODUCTS = """
@kernel(arch="sm_90a")
def sums(A: Global[f16, M, 64], B: Global[f16, N, 64], O: Global[f32, M, 64], *, T: const = f16):
    sB, filled, free = shared(T, [2, 64, 64]), mbarrier(1, stages=2), mbarrier(1, stages=2)
    work = tiles(cdiv(M, 64))
    with role("load", warps=1):
        it = 0
        for t in work:
            for j in range(cdiv(N, 64)):
                s, phase = it % 2, it // 2 % 2
                free[s].wait(phase ^ 1)
                filled[s].expect(nbytes(sB[s]))
                copy_async(B[j * 64 : j * 64 + 64, :], sB[s], filled[s])
                it += 1
    with role("compute", warpgroups=1):
        it = 0
        for t in work:
            x = A[t * 64 + rows(64), cols(64)]
            acc = zeros(f32, [64, 64])
            for j in range(cdiv(N, 64)):
                s, phase = it % 2, it // 2 % 2
                filled[s].wait(phase)
                S = mma_async(x, sB[s].T)
                mma_wait(S)
                acc = mma_async(cast(S, T), sB[s], acc)
                mma_wait(acc)
                free[s].arrive()
                it += 1
            store(O[t * 64 + rows(64), cols(64)], acc)
"""


@pytest.fixture(scope="module")
def source() -> str:
    return lower(cuir.check(cuir.parse(PRODUCTS))).source


def test_an_operand_that_a_loop_does_not_change_is_renewed(source: str) -> None:
    (renewed,) = re.findall(r"cuir::renew_regs\((\w+)\);", source)
    assert re.search(rf"rs_k_k<0>\(\w+, {renewed}\[0\]", source)


def test_an_operand_that_compilers_can_hoist_is_renewed() -> None:
    text = PRODUCTS.replace("mma_async(x, sB[s].T)", "mma_async(cast(x * 2.0, T), sB[s].T)")
    assert len(re.findall(r"cuir::renew_regs\(\w+\);", lower(cuir.check(cuir.parse(text))).source)) == 1


def test_an_operand_that_a_loop_computes_is_fenced(source: str) -> None:
    (name,) = re.findall(r"rs_k_mn<0>\(\w+, (\w+)\[0\]", source)
    assert f"cuir::fence_regs({name});" in source


@pytest.mark.nvcc
def test_renewed_operands_compile() -> None:
    assert compile_cuda(lower(cuir.check(cuir.parse(PRODUCTS)))).cubin


SLICED = """
@kernel(arch="sm_90a")
def parts(A: Global[f16, M, 64], B: Global[f16, 64, 64], O: Global[f32, M, 64], *, PART: const = 32, SIDE: const = 1):
    sA, sB = shared(f16, [64, 64]), shared(f16, [64, 64])
    work = tiles(cdiv(M, 64))
    with role("compute", warpgroups=1):
        for t in work:
            store(sA, load(A[t * 64 : t * 64 + 64, :]))
            store(sB, load(B[:, :]))
            fence_async()
            sync()
            acc = zeros(f32, [64, 64])
            for p in range(64 // PART):
                if SIDE == 1:
                    part = mma_async(sA, sB[:, p * PART : p * PART + PART])
                    mma_wait(part)
                    store(O[t * 64 : t * 64 + 64, p * PART : p * PART + PART], part)
                else:
                    acc = mma_async(sA[:, p * PART : p * PART + PART], sB[:, p * PART : p * PART + PART].T, acc)
                    mma_wait(acc)
            if SIDE == 2:
                store(O[t * 64 : t * 64 + 64, :], acc)
            sync()
"""


@pytest.mark.sweep(4)
@pytest.mark.nvcc
@pytest.mark.parametrize("part", [16, 32, 64])
@pytest.mark.parametrize("side", [1, 2])
def test_operands_that_begin_inside_of_a_panel_run_as_ptx(part: int, side: int) -> None:
    checked = cuir.check(cuir.parse(SLICED), consts={"PART": part, "SIDE": side})
    a, b = torch.randint(-3, 4, (100, 64)).half(), torch.randint(-3, 4, (64, 64)).half()
    o = torch.full((100, 64), torch.nan)
    compile_lowered(lower(checked)).launch({"A": a, "B": b, "O": o}, SCHEDULES[0])
    assert torch.equal(o, a.float() @ (b.T if side == 2 else b).float())
