"""wgmma: fences of operand A in registers."""

from __future__ import annotations

import re

import pytest

import cuir
from cuir.lowering import lower
from cuir.runtime.nvcc import compile_cuda

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
