"""Products of warps: each GPU's instructions, their fragments, what a GPU lacks, and that every pass and the interpreter agree."""

from __future__ import annotations

import math
import re

import pytest
import torch

import corpus
import cuir
from cuir.checking.checked import Checked
from cuir.lowering import lower
from cuir.lowering.ir.build_ir import build
from cuir.lowering.layouts.layouts import Layout, fragment_map
from cuir.lowering.layouts.tile_layouts import Fragment
from cuir.lowering.passes.pipeline import PASSES
from cuir.lowering.validate import random_arguments, validate
from cuir.runtime.nvcc import compile_cuda
from cuir.syntax.types import DTYPES, F8E4M3, F16
from cuir.text.diagnostics import CuirError
from cuir.verification.ptx_launches import compile_lowered
from cuir.verification.ptx_stage import SCHEDULES

SMALL = {"BM": 64, "BN": 64}
PRODUCT = """\
@kernel(arch="ARCH")
def product(A: Global[T, M, 64], B: Global[T, N, 64], C: Global[f32, M, N], *, T: const):
    sA, sB = shared(T, [64, 128]), shared(T, [64, 128])
    work = tiles(cdiv(M, 64))
    with role("all", warps=4) as w:
        for t in work:
            sync()
            store(sA[w * 16 : w * 16 + 16, 0:64], load(A[t * 64 + w * 16 : t * 64 + w * 16 + 16, :]))
            store(sB[w * 16 : w * 16 + 16, 0:64], load(B[w * 16 : w * 16 + 16, :]))
            sync()
            store(C[t * 64 + w * 16 : t * 64 + w * 16 + 16, 0:64], mma(sA[w * 16 : w * 16 + 16, 0:64], sB[:, 0:64].T))
"""
# Attention of a tile of queries to 64 keys; 8-bit weights go through the place of the queries, beside values that lie column by column.
ATTENTION = """\
@kernel(arch="ARCH")
def attend(Q: Global[T, M, 64], K: Global[T, 64, 64], V: Global[T, 64, 64], O: Global[f32, M, 64], *, T: const):
    sQ, sK, sV = shared(T, [64, 128]), shared(T, [64, 128]), shared(T, [64, 128])
    work = tiles(cdiv(M, 64))
    with role("all", warps=4) as w:
        for t in work:
            r, q = w * 16, t * 64 + w * 16
            sync()
            store(sQ[r : r + 16, 0:64], load(Q[q : q + 16, :]))
            store(sK[r : r + 16, 0:64], load(K[r : r + 16, :]))
            store(sV[r : r + 16, 0:64], load(V[r : r + 16, :]))
            sync()
            S = mma(sQ[r : r + 16, 0:64], sK[:, 0:64].T)
            P = exp2(S - row_max(S))
            store(sQ[r : r + 16, 0:64], cast(P, T))
            store(O[q : q + 16, :], mma(WEIGHTS, VALUES) / row_sum(P))
"""
# Warps share rows of A^T: each has 16 of its columns as rows of a left operand, and half of a panel's columns on the right, stored in halves, too.
PARTS = """\
@kernel(arch="ARCH")
def parts(A: Global[T, 64, 64], B: Global[T, 64, 64], C: Global[f32, 64, 64], *, T: const):
    sA, sB = shared(T, [64, 64]), shared(T, [64, 64])
    work = tiles(1)
    with role("all", warps=4) as w:
        for t in work:
            r = w * 16
            for p in range(2):
                store(sA[r : r + 16, p * 32 : p * 32 + 32], load(A[r : r + 16, p * 32 : p * 32 + 32]))
                store(sB[r : r + 16, p * 32 : p * 32 + 32], load(B[r : r + 16, p * 32 : p * 32 + 32]))
            sync()
            for p in range(2):
                store(C[r : r + 16, p * 32 : p * 32 + 32], mma(sA[:, r : r + 16].T, sB[:, p * 32 : p * 32 + 32]))
"""
PLACES = {1: ("sQ[r : r + 16, 0:64]", "sV[:, 0:64].T"), 2: ("cast(P, T)", "sV[:, 0:64]")}  # of weights and values, by bytes of a number
CASES = [("sm_75", "f16"), ("sm_80", "bf16"), ("sm_89", "f16"), ("sm_89", "f8e4m3"), ("sm_89", "f8e5m2")]
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


def make_attention(arch: str, dtype: str) -> Checked:
    weights, values = PLACES[DTYPES[dtype].itemsize]
    text = ATTENTION.replace("ARCH", arch).replace("WEIGHTS", weights).replace("VALUES", values)
    return cuir.check(cuir.parse(text), consts={"T": DTYPES[dtype]})


def find_instructions(source: str) -> set[str]:
    return set(re.findall(r"mma\.sync\.aligned\.(m\w+)\.row\.col\.f32\.(\w+)", source)) | {
        (f"m{m}n{n}k{k}", kind) for m, n, k, kind in re.findall(r"cute::SM80_(\d+)x(\d+)x(\d+)_F32(F16|BF16)", source)
    }


@pytest.mark.parametrize(("arch", "dtype"), CASES)
def test_each_gpu_has_its_instruction(arch: str, dtype: str) -> None:
    source = lower(cuir.check(cuir.parse(PRODUCT.replace("ARCH", arch)), consts={"T": DTYPES[dtype]})).source
    size = DTYPES[dtype].itemsize
    expected = ("m16n8k8", "f16") if arch == "sm_75" else ("m16n8k32", dtype[2:]) if size == 1 else ("m16n8k16", dtype.upper())
    assert find_instructions(source) == {expected}
    assert f"k_ < {64 * size // 32}" in source


@pytest.mark.parametrize("dtype", ["f16", "f8e4m3"])
def test_lanes_load_the_fragments_of_the_instruction(dtype: str) -> None:
    """ldmatrix gives lane l the bytes 4 (l % 4) .. + 3 of row l / 4 of each block, whose rows have the addresses that eight lanes compute."""
    source = lower(cuir.check(cuir.parse(PRODUCT.replace("ARCH", "sm_89")), consts={"T": DTYPES[dtype]})).source
    size = DTYPES[dtype].itemsize
    left, right = re.findall(r"base__\d+ = cuir::at<64>\(.*?, (\(lane.*?), (16 \* \(.*?)\);", source)
    for operand, (row, byte) in (("A", left), ("B", right)):
        fragment = Layout(fragment_map(f"mma m16n8k{32 // size} {operand}"))
        assert fragment.count * size == (16 if operand == "A" else 8)
        for register, lane, _ in fragment.iterate():
            word, within = divmod(register * size, 4)
            giver = {"lane": 8 * word + lane // 4}
            memory_row, inner = eval(row.replace("/", "//"), giver), eval(byte, giver) + 4 * (lane % 4) + within
            place = fragment.place(register, lane)
            outer, along = ("row", "column") if operand == "A" else ("column", "row")
            assert (memory_row, inner) == (place[outer], place[along] * size)


@pytest.mark.parametrize("operand", ["A", "B"])
def test_a_step_of_16_is_two_of_8_on_the_halves_of_its_fragments(operand: str) -> None:
    step, half = (Layout(fragment_map(f"mma m16n8k{k} {operand}")) for k in (16, 8))
    inner = "column" if operand == "A" else "row"
    for register, lane, _ in step.iterate():
        part, within = divmod(register, half.count)
        place = half.place(within, lane)
        assert step.place(register, lane) == place | {inner: place[inner] + 8 * part}


@pytest.mark.parametrize(("name", "dtype"), [("gemm_sm75", "f16"), ("gemm_sm89", "f8e4m3"), ("gemm_sm89", "f8e5m2")])
def test_every_pass_keeps_the_product_that_the_interpreter_computes(name: str, dtype: str) -> None:
    checked = check_program(name, dtype, **SMALL)
    inputs = random_arguments(checked, torch.Generator().manual_seed(1), {"M": 70, "N": 40, "K": 144})
    assert validate(build(checked), PASSES, inputs) is None
    cuir.run(checked, inputs)
    x = inputs["A"].double() @ inputs["Bt"].double().T + inputs["bias"].double()
    expected = x * torch.sigmoid(1.702 * x)
    assert (inputs["C"].double() - expected).norm() < 1e-3 * expected.norm()


@pytest.mark.sweep(4)
@pytest.mark.parametrize(("arch", "dtype"), CASES)
def test_every_pass_keeps_attention(arch: str, dtype: str) -> None:
    checked = make_attention(arch, dtype)
    inputs = random_arguments(checked, torch.Generator().manual_seed(2), {"M": 70})
    assert validate(build(checked), PASSES, inputs) is None
    cuir.run(checked, inputs)
    q, k, v = (inputs[n].double() for n in "QKV")
    weights = ((q @ k.T) * math.log(2)).softmax(-1)
    expected = weights @ (v.T if DTYPES[dtype].itemsize == 1 else v)
    assert (inputs["O"].double() - expected).norm() < {"f16": 1e-3, "bf16": 4e-3, "f8e4m3": 3e-2, "f8e5m2": 6e-2}[dtype] * expected.norm()


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
    found = refuse(PRODUCT.replace("ARCH", "sm_75"), T=DTYPES[dtype]).diagnostics
    assert [d.hint for d in found if d.code == "T132" and "operands are f16" in d.message] == ["cast(x, f16)"]


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (("sB[:, 0:64].T)", "sB[:, 0:64])"), "T131", "column by column"),
        (("mma(sA[w * 16 : w * 16 + 16, 0:64]", "mma(load(sA[w * 16 : w * 16 + 16, 0:64])"), "T131", "row by row"),
        (("sA, sB = shared(T, [64, 128]),", "sA, sB = shared(f16, [64, 128]),"), "T133", "one dtype"),
        (("sm_89", "sm_80"), "S217", "sm_89 or sm_90a"),
        (("sm_89", "sm_90a"), "T132", "f16 or bf16 or f32"),
    ],
)
def test_8_bit_operands_that_no_instruction_takes_are_refused(change: tuple[str, str], code: str, words: str) -> None:
    text = PRODUCT.replace("ARCH", "sm_89")
    assert change[0] in text
    found = refuse(text.replace(*change), T=F8E4M3).diagnostics
    assert any(d.code == code and words in d.message for d in found), found


@pytest.mark.nvcc
@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "dtype", "consts"),
    [
        ("gemm_sm75", "f16", {}),
        ("gemm_sm89", "f8e4m3", {}),
        ("gemm_sm89", "f8e5m2", {}),
        ("flash_fwd_sm75", "f16", {"D": 64}),
        ("flash_fwd_sm75", "f16", {"D": 128}),
    ],
)
def test_programs_compile_without_spills(name: str, dtype: str, consts: dict[str, int]) -> None:
    resources = compile_cuda(lower(check_program(name, dtype, **consts))).resources
    assert not resources.spill_stores and not resources.spill_loads


@pytest.mark.sweep(4)
@pytest.mark.nvcc
@pytest.mark.parametrize(("arch", "dtype"), [case for case in CASES if case[0] != "sm_80"])
def test_attention_compiles_without_spills(arch: str, dtype: str) -> None:
    resources = compile_cuda(lower(make_attention(arch, dtype))).resources
    assert not resources.spill_stores and not resources.spill_loads


NUMBERS = """\
@kernel(arch="sm_75")
def numbers(X: Global[f32, M, 64], Y: Global[f32, M, 64], Z: Global[f16, M, 64]):
    work = tiles(cdiv(M, 64), dynamic=True)
    with role("all", warps=4) as w:
        for t in work:
            r = t * 64 + w * 16
            x = load(X[r : r + 16, :])
            y = min(x, max(tanh(x), exp2(x), log2(abs(x)))) + row_max(x) + col_sum(x) / row_sum(x) + where(warp_any(x > 3.0), x, 0.0)
            store(Y[r : r + 16, :], y + cast(cast(y, i32) // 3, f32), add=True)
            store(Z[r : r + 16, :], cast(y, f16) + min(cast(x, f16), 1.0))
"""


@pytest.mark.nvcc
def test_functions_of_every_target_have_instructions_on_the_oldest() -> None:
    source = lower(cuir.check(cuir.parse(NUMBERS)))
    assert "x == x && y == y" in source.source and "min.NaN" not in source.source
    assert compile_cuda(source).cubin
    later = lower(cuir.check(cuir.parse(NUMBERS.replace("sm_75", "sm_80")))).source
    assert "x == x && y == y" not in later and "min.NaN" in later and "max.NaN" in later


@pytest.mark.parametrize("columns", [16, 64, 128])
def test_pairs_of_halves_are_stored_where_ldmatrix_loads_them(columns: int) -> None:
    """The printed places of a lane's pairs are those of its rows and columns in swizzled panels, and no two lanes meet in a bank."""
    text = f"""\
@kernel(arch="sm_75")
def put(X: Global[f16, 32, {columns}], Y: Global[f16, 32, {columns}]):
    s = shared(f16, [32, {max(columns, 64)}])
    with role("all", warps=1):
        store(s[:, 0:{columns}], load(X[0:32, :]))
        store(Y[0:32, :], load(s[:, 0:{columns}]))
"""
    source = lower(cuir.check(cuir.parse(text))).source
    first, count, place = re.search(  # type: ignore[union-attr]
        r"cuir::at<32>\(to__\d+, row, (.*?)\);.*?p_ < (\d+);.*?put<uint32_t>\(\(?cuir::beyond<32>\(first__\d+, (.*?)\), \w+\[p_\]\);",
        source,
        re.DOTALL,
    ).groups()
    row_text, byte_text, half_text = re.fullmatch(r"(.*), (32 \* .*)\) \^ (\(.*\))", place).groups()  # type: ignore[union-attr]
    frag = Fragment(32, columns, 32)
    assert int(count) == frag.count // 2

    def at(row: int, byte: int) -> int:
        return (byte >> 7) * 32 * 128 + row * 128 + (((byte >> 4 & 7) ^ (row & 7)) << 4) + (byte & 15)

    for p in range(frag.count // 2):
        banks = set()
        for lane in range(32):
            names = {"lane": lane, "p_": p}
            row, byte, half = (eval(part.replace("/", "//"), names) for part in (row_text, byte_text, half_text))  # the printed text
            start = at(lane // 4, eval(first, names))
            actual = ((start ^ (byte & 96)) + (byte >> 7) * (32 * 128) + row * 128) ^ half
            expected_row, expected_column = frag.element(lane, 2 * p)
            assert actual == at(expected_row, 2 * expected_column)
            banks.add(actual // 4 % 32)
        assert len(banks) == 32


@pytest.mark.parametrize("arch", ["sm_75", "sm_80"])
def test_parts_of_panels_and_transposed_left_operands(arch: str) -> None:
    """The interpreter multiplies A^T by B, and the printed addresses take the column inside of the panel."""
    checked = cuir.check(cuir.parse(PARTS.replace("ARCH", arch)), consts={"T": F16})
    a, b = torch.randn(64, 64).half(), torch.randn(64, 64).half()
    c = torch.empty(64, 64)
    cuir.run(checked, {"A": a, "B": b, "C": c})
    torch.testing.assert_close(c, a.float().T @ b.float(), atol=1e-3, rtol=1e-3)
    source = lower(checked).source
    assert source.count("% 64 * 2)") == 4 and "load_matrix_T(cuir::beyond<64>" in source


@pytest.mark.sweep(4)
@pytest.mark.nvcc
@pytest.mark.parametrize("arch", ["sm_75", "sm_80"])
def test_parts_of_panels_run_as_ptx(arch: str) -> None:
    """A wrong chunk of a panel would be read, which only the machine code shows."""
    checked = cuir.check(cuir.parse(PARTS.replace("ARCH", arch)), consts={"T": F16})
    a, b = torch.randn(64, 64).half(), torch.randn(64, 64).half()
    c = torch.full((64, 64), math.nan)
    compile_lowered(lower(checked)).launch({"A": a, "B": b, "C": c}, SCHEDULES[0])
    torch.testing.assert_close(c, a.float().T @ b.float(), atol=1e-3, rtol=1e-3)


@pytest.mark.nvcc
def test_a_warpgroup_transposes_its_left_operand() -> None:
    """Each of its warps takes 16 columns of the array."""
    text = (
        PARTS.replace("ARCH", "sm_80")
        .replace("warps=4) as w", "warpgroups=1)")
        .replace("            r = w * 16\n", "")
        .replace("r : r + ", "0:")
    )
    text = text.replace("0:16", "0:64")
    a, b = torch.randn(64, 64).half(), torch.randn(64, 64).half()
    c = torch.full((64, 64), math.nan)
    compile_lowered(lower(cuir.check(cuir.parse(text), consts={"T": F16}))).launch({"A": a, "B": b, "C": c}, SCHEDULES[0])
    torch.testing.assert_close(c, a.float().T @ b.float(), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(("first", "count"), [("8 * w", 32), ("24 * (w % 2)", 24)])
def test_operands_that_begin_anywhere_in_a_panel_are_refused(first: str, count: int) -> None:
    text = PARTS.replace("ARCH", "sm_80").replace("p * 32 : p * 32 + 32], mma", f"0:{count}], mma")
    text = text.replace("sB[:, p * 32 : p * 32 + 32])", f"sB[:, {first} : {first} + {count}])")
    checked = cuir.check(cuir.parse(text), consts={"T": F16})
    with pytest.raises(CuirError, match="begins inside of a panel") as caught:
        lower(checked)
    assert caught.value.diagnostics[0].code == "L002"
