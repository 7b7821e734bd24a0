"""NVRTC in place of nvcc: with one that pretends, and with the library where it is installed."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, cast

import pytest

from cuir.checking.checker import check
from cuir.lowering import Cuda, lower
from cuir.runtime import nvcc, nvrtc
from cuir.runtime.cards import CARDS
from cuir.runtime.nvcc import Nvcc, compile_cuda, find_compiler
from cuir.runtime.nvrtc import compile_by_nvrtc, describe_version, find_headers, import_nvrtc
from cuir.syntax.parser import parse
from cuir.text.diagnostics import CuirError
from tests.stand_in_cards import stand_in

LOG = b"ptxas info    : Used 40 registers, used 1 barriers\n    8 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads\n\0"
PORTABLE = """
@kernel(arch="sm_80")
def scale(X: Global[f32, M, 64], Y: Global[f32, M, 64]):
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1):
        for t in work:
            i = t * 64 + rows(64)
            store(Y[i, cols(64)], X[i, cols(64)] * 2.0)
"""


@dataclass
class Library:
    """Stands in for cuda.bindings.nvrtc. options: those of the compilations."""

    status: int = 0
    log: bytes = LOG
    options: list[list[str]] = field(default_factory=list)

    def nvrtcVersion(self) -> tuple[int, int, int]:
        return 0, 13, 9

    def nvrtcCreateProgram(self, source: bytes, name: bytes, *headers: Any) -> tuple[int, bytes]:
        return 0, source

    def nvrtcCompileProgram(self, program: bytes, count: int, options: list[bytes]) -> tuple[int]:
        self.options.append([o.decode() for o in options])
        return (self.status,)

    def nvrtcGetProgramLogSize(self, program: bytes) -> tuple[int, int]:
        return 0, len(self.log)

    def nvrtcGetProgramLog(self, program: bytes, buffer: bytes) -> tuple[int]:
        return self._fill(buffer, self.log)

    def nvrtcGetCUBINSize(self, program: bytes) -> tuple[int, int]:
        return 0, 5

    def nvrtcGetCUBIN(self, program: bytes, buffer: bytes) -> tuple[int]:
        return self._fill(buffer, b"cubin")

    def nvrtcGetPTXSize(self, program: bytes) -> tuple[int, int]:
        return 0, 3

    def nvrtcGetPTX(self, program: bytes, buffer: bytes) -> tuple[int]:
        return self._fill(buffer, b"ptx")

    def nvrtcDestroyProgram(self, program: bytes) -> tuple[int]:
        return (0,)

    @staticmethod
    def _fill(buffer: bytes, content: bytes) -> tuple[int]:
        import ctypes

        ctypes.memmove(ctypes.c_char_p(buffer), content, len(content))  # the library writes into bytes, too
        return (0,)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, no_nvcc: None) -> Library:
    result = Library()
    monkeypatch.setattr(nvcc, "import_nvrtc", lambda: cast(ModuleType, result))
    monkeypatch.setattr(nvrtc, "find_headers", lambda: "/headers")
    return result


def test_nvrtc_compiles_without_nvcc(cuda: Cuda, library: Library) -> None:
    assert find_compiler() == "NVRTC 13.9"
    compiled = compile_cuda(cuda)
    assert compiled.cubin == b"cubin" and compiled.resources.compiler == "NVRTC 13.9"
    assert (compiled.resources.registers, compiled.resources.spill_stores, compiled.resources.stack) == (40, 16, 8)
    (options,) = library.options
    assert "-arch=sm_90a" in options and "-I/headers" in options
    assert compile_cuda(cuda).cubin == b"cubin" and len(library.options) == 1


def test_one_card_gets_machine_code_and_several_ptx(library: Library) -> None:
    cuda = lower(check(parse(PORTABLE)))
    with stand_in(CARDS[8, 6]):
        assert compile_cuda(cuda).cubin == b"cubin"
    with stand_in(CARDS[8, 6], CARDS[12, 0]):
        assert compile_cuda(cuda).cubin == b"ptx"
    assert [next(o for o in options if o.startswith("-arch")) for options in library.options] == ["-arch=sm_86", "-arch=compute_80"]


def test_a_candidate_that_waits_for_its_compiler_goes_on(cuda: Cuda, library: Library) -> None:
    run = Nvcc()
    compile_cuda(cuda, run)
    assert run.begun.is_set() and run.process is None


def test_a_refused_text_is_a_fault_of_the_lowering(cuda: Cuda, library: Library) -> None:
    library.status, library.log = 6, b'k.cu(9): error: identifier "x" is undefined\0'
    with pytest.raises(CuirError, match="identifier") as error:
        compile_cuda(cuda)
    assert error.value.diagnostics[0].code == "L010"


@pytest.mark.skipif(import_nvrtc() is None, reason="NVRTC is not installed")
@pytest.mark.parametrize("capability", [(8, 6), (9, 0)])
def test_the_library_compiles(capability: tuple[int, int]) -> None:
    library = import_nvrtc()
    assert library is not None and describe_version(library).startswith("NVRTC 1") and find_headers() is not None
    with stand_in(CARDS[capability]):
        output, log = compile_by_nvrtc(library, lower(check(parse(PORTABLE))), nvcc.include_dir())
    assert output is not None and output[:4] == b"\x7fELF" and "registers" in log
