"""The build that says what a kernel that hangs waits for: its text here; that it finds waits is tested on a GPU (tests/gpu/test_hang.py)."""

from __future__ import annotations

import pytest

import corpus
from cuir import CuirError
from cuir.checking.checker import check
from cuir.lowering import Cuda, lower
from cuir.runtime.nvcc import compile_cuda
from cuir.runtime.watchdog import Stuck, add_watchdog, describe_stuck
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from tests.gpu.test_hang import FAULTY, faulty, find_expected_lines


def flash_fwd() -> Cuda:
    return lower(check(parse(corpus.programs()["flash_fwd"].read_text(encoding="utf-8"), "flash_fwd.cuir"), None, {"T": F16, "D": 64}))


def test_lines_stay_where_they_were() -> None:
    plain = flash_fwd()
    lines = zip(plain.source.splitlines(), add_watchdog(plain, 2.0).source.splitlines(), strict=True)
    changed = [number for number, (a, b) in enumerate(lines, 1) if a != b]
    assert len(changed) == 1 and changed[0] not in plain.line_map


@pytest.mark.nvcc
def test_it_compiles() -> None:
    assert compile_cuda(add_watchdog(lower(faulty(FAULTY[0])), 2.0)).cubin


def test_waits_are_told_by_line_and_parity_the_most_frequent_first() -> None:
    cuda = flash_fwd()
    (a, span_a), (b, span_b) = [(n, s) for n, s in cuda.line_map.items() if ".wait(" in s.source.line(s.line)][:2]
    otherwise = cuda.checked.origin.span
    result = describe_stuck(
        [Stuck(a, 3, 0, 1, 5), *(Stuck(b, i, 128, 0, 7) for i in range(4)), Stuck(1, 0, 96, 0, 0)], cuda.line_map, otherwise
    )
    assert [span for _, span in result] == [span_b, span_a, otherwise]
    assert (
        result[0][0].startswith("4 warps wait here")
        and "threads from 128 on in CTA 0" in result[0][0]
        and "0x0000000000000007" in result[0][0]
    )
    assert "parity 1" in result[1][0] and "for the next tile" in result[2][0]


def test_a_kernel_without_barriers_is_refused() -> None:
    text = '@kernel(arch="sm_90a")\ndef f(X: Global[f32, 64]):\n    with role("w", warps=4):\n        store(X[0:64], load(X[0:64]))\n'
    with pytest.raises(CuirError, match="L002"):
        add_watchdog(lower(check(parse(text))), 1.0)


@pytest.mark.parametrize("name", FAULTY)
def test_the_faulty_programs_lower(name: str) -> None:
    lines = {span.line for span in lower(faulty(name)).line_map.values()}
    assert find_expected_lines(name) and find_expected_lines(name) <= lines
