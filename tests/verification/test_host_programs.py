"""The machine's side of a host program's calls; the command's tests run whole programs."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from cuir.ptx.isa.tensor_boxes import decode_boxes
from cuir.ptx.launch.fat_binaries import HEAD, MAGIC, PART, PTX_KIND
from cuir.text.diagnostics import CuirError
from cuir.verification.cuda_runs import RunLedger
from cuir.verification.host_programs import START, HostProgram

PTX = b""".version 8.0
.target sm_80
.address_size 64
.visible .global .align 4 .u32 count = 5;
.visible .entry store(.param .u64 p, .param .u8 small, .param .u32 n) {
    .reg .b32 %r<3>;
    .reg .b64 %d<3>;
    ld.param.u64 %d1, [p];
    ld.param.u32 %r1, [n];
    st.global.u32 [%d1], %r1;
    ret;
}
"""


@pytest.fixture
def host() -> HostProgram:
    """A program that has registered one fat binary."""
    program = HostProgram(Path("a.out"), "together", RunLedger("again {}"), 2 * START)
    part = PART.pack(PTX_KIND, 257, PART.size, len(PTX), 0, 64, 0, 9, 80, 0, 0) + PTX
    program.register(HEAD.pack(MAGIC, 1, HEAD.size, len(part)) + part)
    return program


def pack_launch(name: bytes, parameters: bytes, places: list[tuple[int, int]]) -> bytes:
    head = struct.pack("<13I", 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, len(places), len(parameters))
    return head + b"".join(struct.pack("<QQ", *p) for p in places) + parameters + name + b"\0"


def test_parameters_have_offsets_and_sizes(host: HostProgram) -> None:
    status, rows = host.find_function(b"1 store\0")
    assert status == 3 and struct.unpack("<6I", rows) == (0, 8, 8, 1, 12, 4)
    assert host.find_function(b"1 nothing\0") == (-1, b"")


def test_a_launch_writes_the_programs_memory(host: HostProgram) -> None:
    parameters = struct.pack("<QBxxxI", 0x7F0000000000 + START, 1, 77)
    assert host.launch(pack_launch(b"store", parameters, [(START, 64)])) == (0, b"")
    assert host.arena[START : START + 4].view(np.uint32)[0] == 77
    assert host.defined[START : START + 8].tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    assert host.ledger.launches == 1 and not host.ledger.findings


def test_what_a_launch_breaks_is_entered(host: HostProgram) -> None:
    parameters = struct.pack("<QBxxxI", 0x7F0000000000 + START + 64, 1, 77)
    status, _ = host.launch(pack_launch(b"store", parameters, [(START, 64)]))
    assert status == 719 and [d.code for d in host.ledger.findings.values()] == ["M402"]
    assert host.launch(pack_launch(b"nothing", b"", []))[0] == 719 and len(host.ledger.findings) == 2


def test_variables_are_read_and_written(host: HostProgram) -> None:
    numbers = struct.pack("<QQQ", 1, 0, 4)
    assert host.read_variable(numbers + b"count\0") == (0, struct.pack("<I", 5))
    assert host.write_variable(numbers + b"count\0" + struct.pack("<I", 9)) == (0, b"")
    assert host.read_variable(numbers + b"count\0") == (0, struct.pack("<I", 9))
    assert host.read_variable(numbers + b"other\0")[0] == 13


def test_tensor_maps_are_encoded() -> None:
    host = HostProgram(Path("a.out"), "together", RunLedger("{}"), 2 * START)
    message = struct.pack("<IIIQ5Q5Q5I5I", 7, 2, 3, START, 16, 8, 0, 0, 0, 64, 0, 0, 0, 0, 16, 8, 0, 0, 0, 1, 1, 0, 0, 0)
    status, data = host.encode_map(message)
    boxes = decode_boxes(data)
    assert status == 0 and boxes is not None
    assert (boxes.type, boxes.sizes, boxes.strides, boxes.box, boxes.swizzle) == ("f32", (16, 8), (64,), (16, 8), 128)


def test_a_program_without_ptx_and_a_lacking_call_are_told(host: HostProgram) -> None:
    host.register(HEAD.pack(MAGIC, 1, HEAD.size, 0))
    with pytest.raises(CuirError, match="holds no PTX"):
        host.find_function(b"2 store\0")
    with pytest.raises(CuirError, match="calls `cudaFoo`"):
        host.refuse(b"cudaFoo\0")


@pytest.mark.nvcc
def test_kernels_that_a_library_enters_and_nothing_uses_are_not_sent() -> None:
    """PyTorch's library for GPUs enters thousands when it is loaded."""
    code = (
        "import ctypes; r = ctypes.CDLL(None); r.__cudaRegisterFatBinary.restype = ctypes.c_void_p\n"
        "w = (ctypes.c_uint64 * 3)(); h = ctypes.c_void_p(r.__cudaRegisterFatBinary(w))\n"
        "for i in range(6000): r.__cudaRegisterFunction(h, ctypes.c_void_p(16 * i), b'k', b'k', -1, *[None] * 5)\n"
        "for i in range(2000): r.__cudaRegisterVar(h, ctypes.c_void_p(16 * i), None, b'v', 0, ctypes.c_size_t(4), 0, 0)\n"
    )
    program = HostProgram(Path("a.out"), "together", RunLedger("again {}"), 2 * START)
    process, ours = program.start([sys.executable, "-c", code])
    with ours:
        assert process.wait(60) == 0
    assert not program.binaries
