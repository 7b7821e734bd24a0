"""Products of warps: each GPU's instructions, their fragments, what a GPU lacks, and that every pass and the interpreter agree."""

from __future__ import annotations

import pytest
import torch

import corpus
import cuir
from cuir.checking.checked import Checked
from cuir.lowering import lower
from cuir.lowering.ir.build_ir import build
from cuir.lowering.layouts.layouts import Layout, fragment_map
from cuir.lowering.passes.pipeline import PASSES
from cuir.lowering.validate import random_arguments, validate
from cuir.ops.limits import list_architectures
from cuir.runtime.nvcc import compile_cuda
from cuir.syntax.types import DTYPES, F16
from cuir.text.diagnostics import CuirError

SMALL = {"BM": 64, "BN": 64}
PRODUCT = """\
@kernel(arch="ARCH")
def product(A: Global[T, M, 64], B: Global[T, N, 64], C: Global[f32, M, N], *, T: const):
    sA, sB = shared(T, [64, 64]), shared(T, [64, 64])
    work = tiles(cdiv(M, 64))
    with role("all", warps=4) as w:
        for t in work:
            sync()
            store(sA[w * 16 : w * 16 + 16], load(A[t * 64 + w * 16 : t * 64 + w * 16 + 16, :]))
            store(sB[w * 16 : w * 16 + 16], load(B[w * 16 : w * 16 + 16, :]))
            sync()
            store(C[t * 64 + w * 16 : t * 64 + w * 16 + 16, 0:64], mma(sA[w * 16 : w * 16 + 16], sB.T))
"""
OTHERS = {  # statements that sm_75 refuses, and what their hint names
    "copy_async(A[0:64, :], sA)": "load(box)",
    "copy_commit()": "load(box)",
    "copy_wait(0)": "load(box)",
    "p = mma_async(sA, sB.T)": "mma",
}


def check_program(name: str, dtype: str, **consts: int) -> Checked:
    return cuir.check(cuir.parse(corpus.programs()[name].read_text(encoding="utf-8")), consts={"T": DTYPES[dtype], **consts})


def refuse(text: str, **consts: object) -> CuirError:
    with pytest.raises(CuirError) as caught:
        cuir.check(cuir.parse(text), consts=consts)  # type: ignore[arg-type]
    return caught.value


def test_each_gpu_has_its_instruction() -> None:
    for arch in list_architectures("mma_sync"):
        source = lower(cuir.check(cuir.parse(PRODUCT.replace("ARCH", arch)), consts={"T": F16})).source
        assert ("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32" in source) == (arch == "sm_75")
        assert ("cute::SM80_16x8x16_F32F16F16F32_TN::fma" in source) == (arch != "sm_75")


@pytest.mark.parametrize("operand", ["A", "B"])
def test_a_step_of_16_is_two_of_8_on_the_halves_of_its_fragments(operand: str) -> None:
    step, half = (Layout(fragment_map(f"mma m16n8k{k} {operand}")) for k in (16, 8))
    inner = "column" if operand == "A" else "row"
    for register, lane, _ in step.iterate():
        part, within = divmod(register, half.count)
        place = half.place(within, lane)
        assert step.place(register, lane) == place | {inner: place[inner] + 8 * part}


def test_every_pass_keeps_what_the_interpreter_computes() -> None:
    checked = check_program("gemm_sm75", "f16", **SMALL)
    inputs = random_arguments(checked, torch.Generator().manual_seed(1), {"M": 70, "N": 40, "K": 136})
    assert validate(build(checked), PASSES, inputs) is None
    cuir.run(checked, inputs)
    x = inputs["A"].double() @ inputs["Bt"].double().T + inputs["bias"].double()
    expected = x * torch.sigmoid(1.702 * x)
    assert (inputs["C"].double() - expected).norm() < 1e-3 * expected.norm()


@pytest.mark.parametrize("statement", OTHERS)
def test_what_sm_75_lacks_is_refused_and_its_substitute_named(statement: str) -> None:
    text = PRODUCT.replace("ARCH", "sm_75").replace("sync()", statement, 1)
    first = refuse(text, T=F16).diagnostics[0]
    assert first.code == "S217" and first.hint is not None and "sm_75 has" in first.hint and OTHERS[statement] in first.hint


def test_an_mbarrier_of_sm_75_names_the_barriers_that_there_are() -> None:
    text = PRODUCT.replace("ARCH", "sm_75").replace("    work =", "    full = mbarrier(1)\n    work =")
    first = refuse(text, T=F16).diagnostics[0]
    assert first.code == "S217" and first.hint == "sm_75 has sync() and named_barrier"


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_operands_of_other_dtypes_are_told_to_be_f16(dtype: str) -> None:
    first = refuse(PRODUCT.replace("ARCH", "sm_75"), T=DTYPES[dtype]).diagnostics[0]
    assert first.code == "T132" and "operands are f16" in first.message and first.hint == "cast(x, f16)"


@pytest.mark.nvcc
def test_the_program_for_sm_75_compiles_without_spills() -> None:
    resources = compile_cuda(lower(check_program("gemm_sm75", "f16"))).resources
    assert not resources.spill_stores and not resources.spill_loads
