"""compute-sanitizer's reports in lines of the program. The texts are made by hand in the format of compute-sanitizer 2025, not recorded."""

from __future__ import annotations

from importlib.resources import files

import pytest

from cuir import parse
from cuir.checking.checker import check
from cuir.lowering import Cuda, lower
from cuir.runtime.nvcc import compile_cuda
from cuir.runtime.sass import find_disassembler, parse_listing, read_lines_of_cubin
from cuir.syntax.types import F16
from cuir.verification.sanitizer import make_diagnostics, read_reports

MEMCHECK = """========= COMPUTE-SANITIZER
result: noise of the program itself
========= Invalid __global__ read of size 2 bytes
=========     at cuir::to_float(const __half &)+0x530 in /usr/include/cuda_fp16.hpp:12
=========     by thread ({thread},0,0) in block (3,0,0)
=========     Access at 0x7f6510c00001 is out of bounds
=========     and is 2 bytes after the nearest allocation at 0x7f6510c00000 of size 4096 bytes
=========     Device Frame: flash_fwd+0x530 in /tmp/tmpab/flash_fwd.cu:{line}
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cuLaunchKernel [0x2b3c] in libcuda.so.1
=========         Host Frame: main in launcher.cu:{line} [0x12]
=========
"""
RACECHECK = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at flash_fwd(CUtensorMap, float *)+0x1b0 in kernel.cu:{write}
=========     and Read access at flash_fwd(CUtensorMap, float *)+0x2d0 in kernel.cu:{read} [508 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


@pytest.fixture(scope="module")
def cuda() -> Cuda:
    text = (files("corpus") / "programs" / "flash_fwd.cuir").read_text(encoding="utf-8")
    return lower(check(parse(text, "flash_fwd.cuir"), None, {"T": F16, "D": 64}))


def from_statement(cuda: Cuda, words: str) -> int:
    """A CUDA line that comes from the first statement with these words."""
    return next(
        n for n, span in cuda.line_map.items() if words in span.source.line(span.line) and "//" not in cuda.source.splitlines()[n - 1]
    )


def test_an_illegal_access_names_the_statement_once(cuda: Cuda) -> None:
    line = from_statement(cuda, "O[")
    text = "".join(MEMCHECK.format(thread=t, line=line) for t in range(3)) + "========= ERROR SUMMARY: 3 errors\n"
    (result,) = make_diagnostics(text, cuda.line_map)
    assert (
        result.code == "V404"
        and result.span == cuda.line_map[line]
        and "Invalid __global__ read of size 2 bytes (3 reports)" in result.message
    )
    output = result.render()
    assert output.startswith(f"flash_fwd.cuir:{cuda.line_map[line].line}:") and "^" in output and "out of bounds" in output
    assert "libcuda" not in output


def test_a_race_names_both_statements(cuda: Cuda) -> None:
    write, read = from_statement(cuda, "O["), from_statement(cuda, "LSE[")
    (result,) = make_diagnostics(RACECHECK.format(write=write, read=read), cuda.line_map)
    assert result.span == cuda.line_map[write] and result.notes[0].span == cuda.line_map[read]
    assert "Race reported: the write is here" in result.message and "read is here" in result.notes[0].message


def test_without_a_line_the_offset_counts_and_without_both_it_is_said(cuda: Cuda) -> None:
    text = MEMCHECK.format(thread=0, line=1).replace(" in /tmp/tmpab/flash_fwd.cu:1", "")
    line = from_statement(cuda, "O[")
    (result,) = make_diagnostics(text, cuda.line_map, {0x530: (2, line)})
    assert result.span == cuda.line_map[line]
    (result,) = make_diagnostics(text, cuda.line_map, {}, cuda.checked.origin.span)
    assert result.span == cuda.checked.origin.span and "no statement gave the code at" in result.notes[0].message


def test_a_clean_run_has_no_report() -> None:
    clean = "========= COMPUTE-SANITIZER\nresult: {}\n========= ERROR SUMMARY: 0 errors\n"
    assert read_reports(clean) == [] and read_reports("") == []


def test_a_listing_gives_the_lines_of_each_instruction() -> None:
    listing = """
\t//## File "/x/sm_30.hpp", line 373 inlined at "/tmp/k.cu", line 164
\t//## File "/tmp/k.cu", line 164 inlined at "/tmp/k.cu", line 200
\t//## File "/tmp/k.cu", line 200
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   S2R R0, SR_TID.X ;
\t//## File "/tmp/k.cu", line 7
        /*0020*/                   EXIT ;
"""
    assert {i.offset: i.lines for i in parse_listing(listing)} == {0x0: (164, 200), 0x10: (164, 200), 0x20: (7,)}
    assert [i.text for i in parse_listing(listing)][1:] == ["S2R R0, SR_TID.X", "EXIT"]


@pytest.mark.skipif((find_disassembler() or [""])[0].rpartition("/")[2] != "nvdisasm", reason="no nvdisasm")
def test_most_instructions_come_from_a_statement(cuda: Cuda) -> None:
    chains = read_lines_of_cubin(compile_cuda(cuda).cubin)
    mapped = [any(n in cuda.line_map for n in lines) for lines in chains.values()]
    assert len(mapped) > 500 and sum(mapped) > 0.85 * len(mapped)  # the rest is the frame: barriers made, numbers for divisions
