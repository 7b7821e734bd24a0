"""8-bit floats: in the interpreter as in PyTorch, refused where the instruction cannot read them, and their code compiles."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import cuir
from cuir.checking.checked import Checked
from cuir.lowering import lower
from cuir.lowering.ir.build_ir import build
from cuir.lowering.passes.pipeline import PASSES
from cuir.lowering.validate import validate
from cuir.runtime.nvcc import compile_cuda
from cuir.syntax.types import DTYPES
from cuir.text.diagnostics import CuirError
from cuir.verification.ptx_launches import compile_lowered
from tests.gpu.test_float8 import (
    BESIDE_HALVES,
    CASTS,
    INTERLEAVED,
    MOVED,
    PANELS,
    PRODUCT,
    PRODUCT_SHAPES,
    WIDENED,
    all_numbers,
    beside_is_right,
    interleaved_operands,
    make_widened_case,
    numbers,
    operands,
    round_to,
)
from tests.lowering.conftest import one_file

FLOATS = ("f8e4m3", "f8e5m2")
needs_nvcc = pytest.mark.nvcc


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(64, 64, 128), (100, 72, 256)])
def test_products_in_the_interpreter(dtype: str, shape: tuple[int, int, int]) -> None:
    inputs, expected = operands(dtype, *shape, "cpu")
    cuir.run(cuir.check(cuir.parse(PRODUCT), consts={"T": DTYPES[dtype]}), inputs)
    torch.testing.assert_close(inputs["C"], expected.float(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("case", PRODUCT_SHAPES)
def test_products_beside_halves_in_the_interpreter(case: tuple[int, int, int, int, str, str], dtype: str) -> None:
    checked, inputs, expected = make_widened_case(case, dtype, "cpu")
    cuir.run(checked, inputs)
    beside_is_right(case, dtype, inputs, expected)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("a, sB[:, 0 : K].T", "cast(a, f32), sB[:, 0 : K].T"), "T132"),
        (("a, sB[:, 0 : K].T", "a, load(sB[:, 0 : K])"), "T131"),
        (("mma(a, sB[:, 0 : K].T)", "mma_async(a, sB[:, 0 : K].T)"), "T133"),
        (("mma(a, sB[:, 0 : K].T)", "mma(sB[:, 0 : K], sA[:, 0 : K].T)"), "T132"),
        (('arch="sm_90a"', 'arch="sm_100a"'), "T132"),
    ],
)
def test_what_is_no_product_beside_halves(change: tuple[str, str], code: str) -> None:
    """Only the right operand is widened, from shared memory, by mma, where the card can."""
    text = BESIDE_HALVES.replace("WORKERS", "warpgroups=1").replace(*change)
    assert change[0] in BESIDE_HALVES
    consts = {"T": DTYPES["f16"], "W": DTYPES["f8e4m3"], "R": 64, "C": 64, "K": 64, "N": 64, "SLAB": 64}
    with pytest.raises(CuirError) as caught:
        cuir.check(cuir.parse(text), consts=consts)
    assert caught.value.diagnostics[0].code == code, caught.value


@pytest.mark.parametrize("dtype", FLOATS)
def test_casts_in_the_interpreter(dtype: str) -> None:
    x = numbers("cpu")
    y, z = torch.empty_like(x, dtype=getattr(torch, DTYPES[dtype].torch)), torch.empty_like(x)
    cuir.run(cuir.check(cuir.parse(CASTS), consts={"T": DTYPES[dtype]}), {"X": x, "Y": y, "Z": z})
    expected = round_to(x, dtype).float()
    torch.testing.assert_close(y.float(), expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(z, expected * 2, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", FLOATS)
def test_one_instruction_takes_32_of_the_inner_dim(dtype: str) -> None:
    source = lower(cuir.check(cuir.parse(PRODUCT), consts={"T": DTYPES[dtype]})).source
    name = dtype.removeprefix("f8").upper()
    assert f"GMMA::MMA_64x64x32_F32{name * 2}_SS_TN<>::fma" in source
    assert source.count(f"cuir::wgmma_64x64_{name.lower()}_ss_k_k<0>") == 4  # of 128


@pytest.mark.parametrize("dtype", FLOATS)
def test_two_are_loaded_and_converted_at_a_time(dtype: str) -> None:
    source = lower(cuir.check(cuir.parse(PANELS), consts={"T": DTYPES[dtype]})).source
    assert f"cuir::load_pairs_{dtype}<64, 128>(" in source and f"get<cuir::{dtype}>(cuir::at" not in source


def lower_widened(dtype: str, wide: str, text: str = WIDENED) -> str:
    return lower(cuir.check(cuir.parse(text), consts={"T": DTYPES[dtype], "W": DTYPES[wide]})).source


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_widened_to_f16_is_loaded_as_that(dtype: str) -> None:
    """f16 holds each of them; so does bf16, to which there is no conversion of two. What is needed as it is, too, is loaded as it is."""
    assert f"cuir::load_halves_{dtype}<64, 128>(" in lower_widened(dtype, "f16") and "cuir::pack_f16" not in lower_widened(dtype, "f16")
    assert "load_halves" not in lower_widened(dtype, "bf16") and "load_halves" not in lower_widened(dtype, "f32")
    twice = WIDENED.replace(
        "store(Y[t * 64 : t * 64 + 64, :], cast(load(s), W))",
        "x = load(s)\n            store(Y[t * 64 : t * 64 + 64, :], cast(x, W) + cast(row_max(cast(x, f32)), W))",
    )
    assert f"load_pairs_{dtype}" in lower_widened(dtype, "f16", twice)
    small = WIDENED.replace("load(s)", "load(s[0:64, 0:64])").replace("Y[t * 64 : t * 64 + 64, :]", "Y[t * 64 : t * 64 + 64, 0:64]")
    assert f"cuir::load_halves_{dtype}<64, 64>(" in lower_widened(dtype, "f16", small)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("wide", ["f16", "bf16"])
def test_what_goes_from_array_to_array_is_moved_in_chunks(dtype: str, wide: str) -> None:
    """If it is needed for nothing else, and both arrays lie in panels."""
    moved = lower_widened(dtype, wide, MOVED)
    assert (
        f"cuir::load_chunks_{dtype}<64, 128, 4, {'true' if wide == 'bf16' else 'false'}>(" in moved
        and "cuir::store_chunks<64, 128, 4>(" in moved
    )
    parts = MOVED.replace("128]", "768]").replace(
        "store(w, cast(load(s), W))",
        "for c in range(t + 1):\n                store(w[:, c * 384 : c * 384 + 192], cast(load(s[:, c * 384 : c * 384 + 192]), W))",
    )
    parts = parts.replace("load(w)", "load(w[:, 0:64])").replace("Y[t * 64 : t * 64 + 64, :]", "Y[t * 64 : t * 64 + 64, 0:64]")
    assert f"cuir::load_chunks_{dtype}<64, 192, 4" in lower_widened(dtype, wide, parts)  # columns that are no power of two
    twice = MOVED.replace("store(w, cast(load(s), W))", "x = cast(load(s), W)\n            store(w, where(x > 0.0, x, 0.0))")
    assert "cuir::load_chunks" not in lower_widened(dtype, wide, twice)
    plain = (
        MOVED.replace("shared(W, [64, 128])", "shared(W, [64, 136])")
        .replace("store(w,", "store(w[:, 0:128],")
        .replace("load(w)", "load(w[:, 0:128])")
    )
    assert "cuir::load_chunks" not in lower_widened(dtype, wide, plain)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("wide", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("text", [WIDENED, MOVED], ids=["widened", "moved"])
def test_all_numbers_widened_in_the_interpreter(text: str, dtype: str, wide: str) -> None:
    x, y = all_numbers(dtype, "cpu"), torch.empty(64, 128, dtype=getattr(torch, DTYPES[wide].torch))
    cuir.run(cuir.check(cuir.parse(text), consts={"T": DTYPES[dtype], "W": DTYPES[wide]}), {"X": x, "Y": y})
    torch.testing.assert_close(y.float(), x.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("mma_async(sA, sB.T, acc)", "mma_async(sA, sC, acc)"), "T131"),
        (("mma_async(sA, sB.T, acc)", "mma(sA, sB.T, acc)"), "T132"),
        (("store(C[m : m + 64, n : n + BN], acc)", "store(A[m : m + 64, n : n + BN], cast(acc, T), add=True)"), "T122"),
    ],
)
def test_what_the_instruction_cannot_read_is_refused(change: tuple[str, str], code: str) -> None:
    text = PRODUCT.replace(*change).replace("sA, sB = shared", "sC = shared(T, [BK, 128])\n    sA, sB = shared")
    with pytest.raises(CuirError) as caught:
        cuir.check(cuir.parse(text), consts={"T": DTYPES["f8e4m3"], "BN": 128})
    assert code in {d.code for d in caught.value.diagnostics}


# ---- left operands in registers
def make_interleaved(change: tuple[str, str] = ("", ""), dtype: str = "f8e4m3") -> Checked:
    assert change[0] in INTERLEAVED
    return cuir.check(cuir.parse(INTERLEAVED.replace(*change)), consts={"T": DTYPES[dtype], "N": 96})


@pytest.mark.parametrize("dtype", FLOATS)
def test_an_interleaved_product_is_that_of_the_transpose(dtype: str) -> None:
    inputs, expected = interleaved_operands(dtype, "cpu")
    cuir.run(make_interleaved(dtype=dtype), inputs)
    torch.testing.assert_close(inputs["O"].double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("interleave(cast(x, T))", "interleave(x)"), "T112"),
        (("K: const = 128", "K: const = 16"), "T135"),
        (("sV[w * 64 : w * 64 + 64, 0 : N]", "sV[w * 64 : w * 64 + 64, 0 : N].T"), "T120"),
        (("sT[:, w * 64 : w * 64 + 64]", "sT[:, 0 : 128]"), "T125"),
        (("shared(T, [N, 128])", "shared(T, [N, 144])"), "T138"),
        (("shared(T, [N, 128])", "shared(f16, [N, 128])"), "T112"),
        (("sV[w * 64 : w * 64 + 64, 0 : N]", "x"), "T106"),
        (("w * 64 : w * 64 + 64", "w * 16 : w * 16 + 16"), "T135"),
    ],
)
def test_what_is_not_interleaved(change: tuple[str, str], code: str) -> None:
    with pytest.raises(CuirError) as caught:
        make_interleaved(change)
    assert code in {d.code for d in caught.value.diagnostics}, caught.value


@pytest.mark.parametrize(
    "change",
    [("interleave(cast(x, T))", "cast(x, T)"), ("acc = zeros(f32, [64, N])", "acc = zeros(f32, [64, N])\n            store(sV[0:64], p)")],
)
def test_left_operands_that_no_instruction_takes(change: tuple[str, str]) -> None:
    """Columns in order, and tiles that are more than left operands."""
    with pytest.raises(CuirError) as caught:
        lower(make_interleaved(change))
    assert caught.value.diagnostics[0].code == "L002"


def test_weights_stay_packed_from_turn_to_turn() -> None:
    source = lower(make_interleaved()).source
    assert "uint32_t p[16];" in source and "wgmma_64x96_e4m3_rs_k_k<0>(acc, p[12], p[13], p[14], p[15]" in source
    assert source.count("cuir::pack_words_f8e4m3(p") == 2 and "round_f8" not in source


def test_passes_keep_an_interleaved_product() -> None:
    checked = make_interleaved()
    inputs, _ = interleaved_operands("f8e4m3", "cpu")
    assert validate(build(checked), PASSES, inputs) is None


@needs_nvcc
@pytest.mark.sweep
@pytest.mark.parametrize("dtype", FLOATS)
def test_an_interleaved_product_in_the_machine_for_ptx(dtype: str) -> None:
    inputs, expected = interleaved_operands(dtype, "cpu")
    compile_lowered(lower(make_interleaved(dtype=dtype))).launch(inputs, "random:1")
    torch.testing.assert_close(inputs["O"].double(), expected, rtol=1e-5, atol=1e-4)


@needs_nvcc
def test_the_code_compiles() -> None:
    texts = [PRODUCT, CASTS, *(x.replace("W: const", "W: const = f16") for x in (WIDENED, MOVED))]
    lowered = [lower(cuir.check(cuir.parse(text), consts={"T": DTYPES[dtype]})) for text in texts for dtype in FLOATS]
    assert compile_cuda(replace(lowered[0], source=one_file([cuda.source for cuda in lowered]))).cubin
