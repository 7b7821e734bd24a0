"""The buffer of a kernel's parameters: the offsets that the CUDA signature gives them, and the values that are packed."""

from __future__ import annotations

import ctypes
import functools
import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

import corpus
from cuir.checking.checker import check
from cuir.lowering import Cuda, lower
from cuir.runtime.argument_buffer import MAP_ALIGNMENT, MAP_BYTES, ArgumentLayout, round_parameter
from cuir.syntax.parser import parse
from cuir.syntax.types import F16

SIZES = {"int64_t": 8, "int": 4, "float": 4, "bool": 1, "CUtensorMap": MAP_BYTES}  # of what is no pointer, in bytes
MIXED = """\
@kernel(arch="sm_90a")
def mixed(X: Global[f16, M, 64], W: Scratch[f32, M, 64], Y: Global[f16, B, M, 64], a: bool, n: i32, b: bool, f: f32, c: bool):
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1):
        for t in work:
            i = t * 64 + rows(64)
            x = cast(X[i, cols(64)], f32) * f
            store(W[i, cols(64)], x)
            store(Y[0, i, cols(64)], cast(x * (f if a and b and c else cast(n, f32)), f16))
"""


@functools.cache
def lower_named(name: str) -> Cuda:
    if name == "mixed":
        return lower(check(parse(MIXED, "mixed.cuir")))
    sources = {**corpus.kernels(), **corpus.programs()}
    file, _, kernel = name.partition(":")
    return lower(check(parse(sources[file].read_text(encoding="utf-8"), f"{file}.cuir"), kernel or None, {"T": F16, "D": 128}))


def offsets_of_signature(cuda: Cuda) -> list[tuple[str, int, int]]:
    """Parameters of the CUDA text with offset and size, as its ABI lays them out: each at a multiple of its alignment."""
    (signature,) = re.findall(r"__launch_bounds__\(\d+, 1\)\s+\w+\((.*?)\) \{", cuda.source, re.S)
    result, at = [], 0
    for parameter in signature.split(",\n"):
        kind, name = re.sub(r"\b(const|__restrict__|__grid_constant__)\b", "", parameter).strip().rsplit(None, 1)
        size = 8 if kind.rstrip().endswith("*") else SIZES[kind.strip()]
        alignment = MAP_ALIGNMENT if size == MAP_BYTES else size
        at = (at + alignment - 1) // alignment * alignment
        result.append((name, at, size))
        at += size
    return result


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", ["mixed", "flash_fwd_sm90", "flash_bwd_sm90:flash_bwd", "flash_fwd_cluster"])
def test_parameters_lie_where_the_cuda_signature_puts_them(name: str) -> None:
    cuda = lower_named(name)
    layout, expected = ArgumentLayout(cuda), offsets_of_signature(cuda)
    assert [(p.offset, p.size) for p in layout.parameters] == [(at, size) for _, at, size in expected]
    assert layout.size == max(at + size for _, at, size in expected)
    assert [p.name for p in layout.parameters if p.code in ("f", "i", "?")] == [n for n, _, size in expected if size in (1, 4)]


@given(st.data())
def test_values_are_read_back_from_their_offsets(data: st.DataObject) -> None:
    layout = ArgumentLayout(lower_named("mixed"))
    ranges = {
        "Q": st.integers(0, 2**64 - 1),
        "q": st.integers(-(2**63), 2**63 - 1),
        "i": st.integers(-(2**31), 2**31 - 1),
        "f": st.floats(width=32, allow_nan=False),
        "?": st.booleans(),
    }
    fields = [p for p in layout.parameters if p.code]
    maps = [data.draw(st.binary(min_size=MAP_BYTES, max_size=MAP_BYTES)) for p in layout.parameters if not p.code]
    values = [data.draw(ranges[p.code]) for p in fields]
    packed = layout.pack(maps, values)
    whole = packed.as_bytes()
    assert packed.address % MAP_ALIGNMENT == 0 and len(whole) == layout.size
    assert [struct.unpack_from(p.code, whole, p.offset)[0] for p in fields] == values
    assert [whole[p.offset : p.offset + MAP_BYTES] for p in layout.parameters if not p.code] == maps


@given(st.floats(-3.5e38, 3.5e38))
def test_a_number_is_rounded_as_a_parameter_of_f32_holds_it(value: float) -> None:
    rounded = round_parameter("f32", value)
    assert struct.pack("f", rounded) == bytes(ctypes.c_float(value))
