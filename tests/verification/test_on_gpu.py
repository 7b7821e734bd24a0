"""Comparisons of `verify --gpu`: the interpreter under another schedule stands for the GPU, with faults.

compute-sanitizer's reports in lines of the program. The texts are made by hand in the format of compute-sanitizer 2025, not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

import pytest

import corpus
from cuir import CuirError, parse
from cuir.attn.verification.numeric import RATIO
from cuir.attn.verification.problems import Case
from cuir.checking.checker import check
from cuir.interp import Schedule, run
from cuir.lowering import Cuda, lower
from cuir.runtime.machine_code import find_disassembler, parse_listing, read_lines_of_cubin
from cuir.runtime.nvcc import compile_cuda
from cuir.spec.loading import as_specification
from cuir.spec.specification import Lengths
from cuir.syntax.types import F16
from cuir.verification.on_gpu import compare, make_diagnostics, read_reports

PROGRAM = parse((corpus.programs()["flash_fwd"]).read_text(encoding="utf-8"), "flash_fwd.cuir")
CHECKED = check(PROGRAM, None, {"T": F16, "D": 64})
SPEC = as_specification(corpus.variant("causal"), "causal", {})
CASE = Case("more queries than keys", Lengths(1, 2, 1, 70, 40))  # the first 30 queries have no keys


def gpu(fault: Callable[[dict[str, Any], int], None] = lambda arguments, launch: None) -> Callable[[Mapping[str, Any]], None]:
    """A launch that runs, and does what `fault` does to the tensors after launch 0, 1, ..."""
    finished = iter(range(100))

    def launch(arguments: Mapping[str, Any]) -> None:
        run(CHECKED, arguments, schedule=Schedule.random(3))
        fault(dict(arguments), next(finished))

    return launch


def compare_launch(launched: Callable[[Mapping[str, Any]], None]) -> Any:
    return compare(PROGRAM, CHECKED, SPEC, CASE, launched, device="cpu", launches=2)


def test_a_right_kernel_agrees() -> None:
    result = compare_launch(gpu())
    assert result.distance == 0 and result.repeated == 2 and 0 < result.numbers.error < 1e-3
    assert result.as_json()["case"] == str(CASE)


def last_bit(a: dict[str, Any], launch: int) -> None:
    a["O"][0, 1, 69, 5] *= 1 + launch * 2.0**-10


def unwritten(a: dict[str, Any], launch: int) -> None:
    a["O"][0, 1, 69, 5] = float("nan")


def keyless(a: dict[str, Any], launch: int) -> None:
    a["LSE"][0, 0, 3] = -1e30


def small(a: dict[str, Any], launch: int) -> None:
    a["O"] *= 1.02


def illegal(a: dict[str, Any], launch: int) -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be reported later")


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        (last_bit, "V402", "launch 2 gives other bits than launch 1: O[0, 1, 69, 5]"),
        (unwritten, "V302", "head 1, query 69, column 5"),
        (keyless, "V303", "query 3"),
        (small, "V301", "O differs from float64"),
        (illegal, "V403", "faults on the GPU: CUDA error: an illegal memory access was encountered (more queries"),
    ],
)
def test_a_fault_is_named(fault: Callable[[dict[str, Any], int], None], code: str, words: str) -> None:
    with pytest.raises(CuirError) as caught:
        compare_launch(gpu(fault))
    (result,) = caught.value.diagnostics
    assert result.code == code and words in result.message and result.span == CHECKED.origin.span


def test_two_that_are_both_near_float64_may_be_too_far_apart() -> None:
    def mirror(a: dict[str, Any], launch: int) -> None:
        """Return numbers as far from float64 as is allowed, on the other side of it."""
        expected, _ = SPEC.reference(a["Q"], a["K"], a["V"], a["scale"])
        half, _ = SPEC.half(a["Q"], a["K"], a["V"], a["scale"])
        off = a["O"].double() - expected
        allowed = RATIO * (half.double() - expected).norm() + 0.8 * 2.0**-11 * expected.norm()
        a["O"].copy_(expected - off * (allowed / off.norm()))

    with pytest.raises(CuirError) as caught:
        compare_launch(gpu(mirror))
    (actual,) = caught.value.diagnostics
    assert actual.code == "V402" and "from the interpreter's, more than" in actual.message


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
