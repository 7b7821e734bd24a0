"""Structs with pointers as arguments."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch

from cuir.cuda import LoadedModule, Struct
from cuir.ptx.module import read_module
from cuir.text.diagnostics import CuirError

TEXT = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .align 8 .b8 s[24])
{
.reg .b32 %r<9>;
.reg .b64 %d<9>;
ld.param.u64 %d1, [s];
ld.param.u64 %d2, [s+8];
ld.param.u32 %r1, [s+16];
mov.u32 %r0, %tid.x;
mul.wide.u32 %d0, %r0, 4;
add.u64 %d1, %d1, %d0;
add.u64 %d2, %d2, %d0;
ld.global.u32 %r2, [%d1];
add.u32 %r2, %r2, %r1;
st.global.u32 [%d2], %r2;
ret;
}
"""


def run(s: Struct | bytes) -> None:
    LoadedModule(read_module(TEXT), Path("k.ptx"))["k"](1, 32, s)


def test_words_of_a_struct_point_into_tensors() -> None:
    x, y = torch.arange(40, dtype=torch.int32), torch.zeros(32, dtype=torch.int32)
    run(Struct(struct.pack("<QQi4x", 32, 0, 100), ((0, x), (8, y))))
    assert y.tolist() == [108 + n for n in range(32)]


def test_what_does_not_fit_is_refused() -> None:
    x = torch.zeros(32, dtype=torch.int32)
    with pytest.raises(CuirError, match="no pointer at 20"):
        run(Struct(bytes(24), ((20, x),)))
    with pytest.raises(CuirError, match="has 24 bytes, found 8"):
        run(Struct(bytes(8), ((0, x),)))
