"""Launches of lowered kernels in the machine for PTX: arguments in the order of the signature, findings at lines of the program."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings

import corpus
from cuir.checking.checker import check
from cuir.interp import run
from cuir.lowering import lower
from cuir.runtime.argument_buffer import ArgumentLayout
from cuir.syntax.parser import parse
from cuir.text.diagnostics import CuirError
from cuir.verification.ptx_launches import compile_lowered, make_call
from tests.strategies.typed import Case, arguments, kernels, older_kernels

COPY = """
@kernel(arch="sm_90a")
def twice(X: Global[f16, M, 64], Y: Global[f16, M, 64]):
    s = shared(f16, [64, 64])
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1):
        for t in work:
            store_wait()
            store(s, X[t * 64 + rows(64), cols(64)])
            fence_async()
            store_async(s, Y[t * 64 : t * 64 + 64, 0:64])
"""


def test_arguments_are_those_of_the_signature() -> None:
    program = parse(corpus.programs()["gemm"].read_text(encoding="utf-8"), "gemm.cuir")
    cuda = lower(check(program, consts={"BM": 64, "BN": 64}))
    a, b, bias, c = torch.zeros(100, 80).half(), torch.zeros(72, 80).half(), torch.zeros(72), torch.zeros(100, 72).half()
    arguments = dict(zip([t.name for t in cuda.checked.tensors], (a, b, c, bias), strict=True))
    call = make_call(cuda, arguments, 2)
    assert len(call.arguments) == len(ArgumentLayout(cuda).parameters)
    assert call.grid[0] in (1, 2) and call.block == (cuda.threads, 1, 1) and call.shared == cuda.shared_bytes
    assert list(call.arguments[-len(cuda.dims) :]) == [{"M": 100, "N": 72, "K": 80}[d] for d in cuda.dims]


@pytest.mark.nvcc
def test_every_unit_of_work_has_a_cta_without_mbarriers() -> None:
    """However few CTAs are said to be resident."""
    text = """
@kernel(arch="sm_80")
def double(X: Global[f32, M, 64], Y: Global[f32, M, 64]):
    work = tiles(cdiv(M, 64), dynamic=True)
    with role("all", warpgroups=1):
        for t in work:
            store(Y[t * 64 : t * 64 + 64, :], load(X[t * 64 : t * 64 + 64, :]) * 2.0)
"""
    x, y = torch.randn(300, 64), torch.zeros(300, 64)
    kernel = compile_lowered(lower(check(parse(text, "double.cuir"))))
    assert make_call(kernel.cuda, {"X": x, "Y": y}, 2).grid == (5, 1, 1)
    kernel.launch({"X": x, "Y": y}, "random:1")
    assert torch.equal(y, 2 * x)


@pytest.mark.nvcc
def test_a_finding_stands_at_the_statement_of_the_program() -> None:
    x, y = torch.randn(100, 64).half(), torch.zeros(100, 64).half()
    right = compile_lowered(lower(check(parse(COPY, "twice.cuir"))))
    right.launch({"X": x, "Y": y}, "random:1")
    assert torch.equal(x, y) and right.coverage > 0.5 and right.lanes > 1000
    faulty = compile_lowered(lower(check(parse(COPY.replace("            fence_async()\n", ""), "twice.cuir"))))
    with pytest.raises(CuirError) as error:
        faulty.launch({"X": x, "Y": y}, "random:1")
    found = next(d for d in error.value.diagnostics if d.code == "R403")
    assert found.span is not None and found.span.source.name == "twice.cuir" and "store_async" in found.span.text()
    lowered = [n for n in found.notes if n.message == "in the lowered text"]
    assert lowered and lowered[0].span is not None and lowered[0].span.source.name.endswith(".cu")


def draw_long_kernel(arch: str, number: int) -> Case:
    """The longest of forty random kernels."""
    cases: list[Case] = []

    @seed(number)
    @settings(max_examples=40, database=None, suppress_health_check=list(HealthCheck))
    @given(kernels() if arch == "sm_90a" else older_kernels(arch))
    def collect(case: Case) -> None:
        cases.append(case)

    collect()
    return max(cases, key=lambda c: len(c.text))


LATER = [  # GPUs that run code for earlier ones
    pytest.param(arch, compiled, marks=pytest.mark.thorough("nvcc gets the same text as for the earlier GPU"))
    for arch, compiled in (("sm_75", "sm_86"), ("sm_80", "sm_86"), ("sm_80", "sm_89"))
]


@pytest.mark.nvcc
@pytest.mark.sweep(64)
@pytest.mark.parametrize("number", range(16))
@pytest.mark.parametrize(("arch", "compiled"), [("sm_75", "sm_75"), ("sm_80", "sm_80"), ("sm_90a", "sm_90a"), *LATER])
def test_random_kernels_give_the_interpreters_numbers(arch: str, compiled: str, number: int) -> None:
    """Without a finding; a number that a comparison or a conversion took over an edge may be another one."""
    case = draw_long_kernel(arch, number)
    checked = check(parse(case.text, "k.cuir"))
    found, expected = (arguments(checked, dict.fromkeys(checked.dims, case.M)) for _ in range(2))
    run(checked, expected)
    compile_lowered(replace(lower(checked), arch=compiled)).launch(found, ("together", "random:1", "last")[number % 3])
    for name in (t.name for t in checked.tensors if t.written):
        same = torch.isclose(found[name].double(), expected[name].double(), rtol=1e-2, atol=1e-2, equal_nan=True)
        assert same.double().mean() > 0.99, name
