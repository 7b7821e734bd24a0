"""Products of f32 operands: rounded in the interpreter as the tensor core takes them, refused without their parts, read without bank conflicts, and their code compiles."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import cuir
from cuir.lowering import lower
from cuir.lowering.ir.build_ir import build
from cuir.lowering.passes.pipeline import PASSES
from cuir.lowering.validate import random_arguments, validate
from cuir.ops.meaning.tiles import split_operands
from cuir.runtime.nvcc import compile_cuda
from cuir.text.diagnostics import CuirError
from tests.gpu.test_float32 import PRODUCT, exact, operands
from tests.lowering.conftest import one_file

SHAPES = [(64, 32, 64, 64), (128, 64, 128, 40), (64, 8, 24, 8)]
FLOATS = st.floats(width=32, allow_subnormal=False)
needs_nvcc = pytest.mark.nvcc


def check_product(shape: tuple[int, int, int, int], parts: int = 2, loaded: bool = False) -> cuir.Checked:
    rows, keys, k, e = shape
    return cuir.check(cuir.parse(PRODUCT), consts={"PARTS": parts, "K": k, "E": e, "R": rows, "BN": keys, "LOADED": loaded})


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int32) & 0x1FFF


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_in_the_interpreter(shape: tuple[int, int, int, int], parts: int, loaded: bool) -> None:
    arguments = operands(*shape, "cpu")
    cuir.run(check_product(shape, parts, loaded), arguments)
    expected = exact(arguments["A"], arguments["B"].T, parts)
    assert (arguments["S"] - expected).norm() <= 3e-7 * expected.norm()
    plain = arguments["A"].double() @ arguments["B"].double().T
    off = float((arguments["S"] - plain).norm() / plain.norm())
    assert off < 3e-7 if parts == 2 else 5e-5 < off < 6e-4


@pytest.mark.parametrize("name", ["x", "s", "k", "j", "i", "P"])
def test_a_product_reads_the_tile_that_it_is_given_whatever_its_name(name: str) -> None:
    text = re.sub(r"\bx\b", name, PRODUCT)
    source = lower(cuir.check(cuir.parse(text), consts={"PARTS": 1, "K": 64, "E": 64})).source
    (read,), (_, parameters) = re.findall(r"x_\[i_\] = (\w+)\[.*\];", source), re.findall(r"\[&\]\((int s_.*)\) \{", source)
    assert f"float {read}[16];" in source and not re.search(rf"\b{read}\b", parameters)


@given(x=FLOATS)
def test_one_part_is_a_number_of_tf32_near_the_operand(x: float) -> None:
    value = torch.tensor([[x]])
    (item, _), (repeated, _) = split_operands(value, value, 1), split_operands(*split_operands(value, value, 1), 1)
    assert not bits(item).any() and (torch.equal(item, repeated) or item.isnan().all()) and item.isnan().item() == value.isnan().item()
    if value.isfinite().item() and item.isfinite().item():
        assert abs(item.item() - x) <= 0.7 * 2.0**-10 * abs(x) + 2.0**-140


@given(x=FLOATS)
@example(x=7.266259067014356e-36)
def test_two_parts_are_the_operand_but_for_the_last_bit(x: float) -> None:
    value = torch.tensor([[x]])
    left, right = split_operands(value, value, 2)
    assert left.shape == (1, 3) and right.shape == (3, 1) and not bits(left[left.isfinite()]).any()
    if abs(x) < 3e38:
        small, large = left[0, 0].double(), left[0, 1].double()
        step = 2.0**-136  # of TF32 below the normal numbers, where what is left of a tiny operand lies
        assert abs(float(small + large) - x) <= max(2.0**-22 * abs(x), step) and abs(small) <= 2.0**-11 * abs(x)
    else:  # not lost: an infinity or a NaN makes a NaN
        assert left.isnan().any() or value.isfinite().item()


@pytest.mark.parametrize(
    ("report_text", "message"), [("", "`parts`, which is not given"), (", parts=3", "1 or 2, found 3"), (", parts=0", "1 or 2, found 0")]
)
def test_operands_of_f32_say_their_parts(report_text: str, message: str) -> None:
    text = PRODUCT.replace("sV[:, 0 : E], parts=PARTS)", f"sV[:, 0 : E]{report_text})")
    with pytest.raises(CuirError, match=message) as caught:
        cuir.check(cuir.parse(text), consts={"PARTS": 2, "K": 64, "E": 64})
    assert {d.code for d in caught.value.diagnostics} == {"T147"}


def test_other_operands_have_none() -> None:
    text = (
        PRODUCT.replace("f32, [", "f16, [")
        .replace("A: Global[f32", "A: Global[f16")
        .replace("B: Global[f32", "B: Global[f16")
        .replace("V: Global[f32", "V: Global[f16")
    )
    with pytest.raises(CuirError, match="of f32 operands") as caught:
        cuir.check(
            cuir.parse(text.replace("32) * 32", "64) * 64").replace("mma(x,", "mma(cast(x, f16),")), consts={"PARTS": 1, "K": 64, "E": 64}
        )
    assert {d.code for d in caught.value.diagnostics} == {"T147"}


@pytest.mark.parametrize("loaded", [False, True])
def test_every_pass_keeps_the_product(loaded: bool) -> None:
    kernel = check_product(SHAPES[0], 2, loaded)
    assert validate(build(kernel), PASSES, random_arguments(kernel, torch.Generator().manual_seed(0))) is None


@pytest.mark.parametrize("shape, wide", [(SHAPES[0], True), (SHAPES[2], False)])
@pytest.mark.parametrize("loaded", [False, True])
def test_whole_panels_are_read_16_bytes_at_a_time(shape: tuple[int, int, int, int], wide: bool, loaded: bool) -> None:
    source = lower(check_product(shape, 1, loaded)).source
    first = source[source.index("cuir::multiply<") :]
    first = first[: first.index("});")]
    assert ("cuir::load_pairs(" in first) == wide
    assert ("as_tf32(" in source[source.index("---- role math") :]) == (wide and loaded)


def banks(rows: int) -> list[set[int]]:
    """Banks that eight lanes at a time touch when a warp reads its columns of two steps of eight rows, as `operand_places` gives the addresses."""
    place = lambda row, byte: row * 128 + ((byte >> 4 & 7) ^ (row & 7)) * 16 + byte % 16  # noqa: E731
    results = []
    for h in range(2):
        for phase in range(4):
            starts = [place(lane // 4, 32 * (lane % 4) + 16 * h) for lane in range(8 * phase, 8 * phase + 8)]
            results.append({(s // 4 + i) % 32 for s in starts for i in range(4)})
    return results


def test_lanes_meet_in_no_bank() -> None:
    assert all(len(touched) == 32 for touched in banks(8))
    for e in range(2):  # of the right operand as it lies: each lane a word
        words = {(row * 128 + ((col * 4 >> 4 & 7) ^ (row & 7)) * 16 + col * 4 % 16) // 4 % 32 for row in range(e, 8, 2) for col in range(8)}
        assert len(words) == 32


@needs_nvcc
def test_the_code_compiles() -> None:
    lowered = [lower(check_product(SHAPES[1], parts, loaded)) for loaded, parts in ((False, 2), (True, 1))]
    result = compile_cuda(replace(lowered[0], source=one_file([cuda.source for cuda in lowered])))
    assert result.cubin and not re.search("error", "".join(result.resources.warnings))


RING = """
@kernel(arch="sm_90a")
def copied(X: Global[f32, M, 64], Y: Global[f32, M, 64]):
    buf, own = shared(f32, [64, 64]), shared(f32, [64, 64])
    filled, free = mbarrier(1), mbarrier(1)
    work = tiles(cdiv(M, 64))
    with role("load", warps=1):
        i = 0
        for t in work:
            free.wait(i % 2 ^ 1)
            filled.expect(nbytes(buf))
            copy_async(X[t * 64 : t * 64 + 64, :], buf, filled)
            i += 1
    with role("store", warpgroups=1):
        i = 0
        for t in work:
            filled.wait(i % 2)
            READ
            free.arrive()
            store(Y[t * 64 : t * 64 + 64, :], x)
            i += 1
"""


@pytest.mark.parametrize(
    "read, fenced",
    [
        ("x = load(buf)", True),
        ("x = mma(buf, buf.T, parts=2)", True),
        ("x = zeros(f32, [64, 64])", False),
        ("store(own, zeros(f32, [64, 64]))\n            x = load(own)", False),
    ],
)
def test_reads_are_fenced_before_a_copy_may_overwrite_them(read: str, fenced: bool) -> None:
    """Reads under way and a bulk copy go through different proxies: the arrival that lets the copy go orders them by a fence alone."""
    source = lower(cuir.check(cuir.parse(RING.replace("READ", read)))).source
    assert bool(re.search(r"fence_view_async_shared\(\);\s*cuir::arrive_warp\(free", source)) == fenced
