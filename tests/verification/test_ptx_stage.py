"""The question on PTX: kernels of the corpus pass on every card, and faults of synchronisation that reach PTX are found there."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from functools import partial

import pytest

import corpus
from corpus.computes import COMPUTES
from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.lowering import lower
from cuir.mutation.mutants import choose_mutants, mutants
from cuir.ops.limits import TARGETS
from cuir.spec.function_specification import AnySpecification, FunctionSpecification
from cuir.spec.loading import as_any
from cuir.syntax.nodes import Program
from cuir.syntax.parser import parse
from cuir.syntax.types import F16, DType
from cuir.text.diagnostics import CuirError
from cuir.verification.function_judge import check_function
from cuir.verification.inputs import FunctionLaunch
from cuir.verification.ptx_launches import PtxKernel, compile_lowered
from cuir.verification.ptx_stage import FAULT, SCHEDULES, ask_ptx, check_ptx_case, choose_ptx_problems
from cuir.verification.spec_dispatch import prepare_launch
from cuir.verification.values.cases import Draw

pytestmark = pytest.mark.nvcc
TILES = {"gemm": 64, "gemm_sm75": 64}
QUICK = ("gemm", "gemm_clusters", "decode_sm90", "decode_cache_sm90", "decode_paged")
UNKNOWN: dict[tuple[str, str], str] = {}  # kernels that the machine cannot run, and what it does not know


def read_program(name: str) -> Program:
    return parse((corpus.programs() | corpus.kernels())[name].read_text(encoding="utf-8"), f"{name}.cuir")


def prepare(name: str, kernel: str) -> tuple[Program, Checked, AnySpecification]:
    """A kernel of the corpus with small consts, and what it computes."""
    program, computed = read_program(name), COMPUTES[name][kernel]
    params = {p.name for p in program.kernels()[kernel].params}
    small: dict[str, int | DType] = {n: 64 for n in ("D", "BM", "BN") if n in params and n not in computed.tested} if name in TILES else {}
    spec = as_any(corpus.specification(computed.specification), computed.specification)
    return program, check(program, kernel, {"T": F16, **computed.tested, **small}), spec


KERNELS = [
    pytest.param(n, k, marks=[] if n in QUICK else pytest.mark.thorough("the machine takes 10 to 60 CPU seconds for attention"))
    for n in COMPUTES
    for k in COMPUTES[n]
]


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "kernel"), KERNELS)
def test_kernels_of_the_corpus_run_as_ptx(name: str, kernel: str) -> None:
    program, checked, spec = prepare(name, kernel)
    problems = list(choose_ptx_problems(checked, spec))
    number = len(name) % len(SCHEDULES)  # of three runs of one problem, one
    try:
        compiled = compile_lowered(lower(checked))
        for case, schedule in (problems[number], problems[-1]):
            check_ptx_case(program, compiled, spec, case, schedule)
    except CuirError as error:
        assert UNKNOWN.get((name, kernel), "unexpected") in error.diagnostics[0].message, str(error)
    else:
        assert (name, kernel) not in UNKNOWN and compiled.coverage > 0.2


@functools.cache
def list_kernels_for(arch: str) -> list[tuple[str, str]]:
    """Return programs and kernels of the corpus whose code runs on an architecture."""
    digits = arch.removeprefix("sm_")
    capability = int(digits[:-1]), int(digits[-1])
    return [
        (name, kernel)
        for name, path in (corpus.programs() | corpus.kernels()).items()
        for own, kernel in re.findall(r'^@kernel\(arch="(\w+)".*\ndef (\w+)', path.read_text(encoding="utf-8"), re.MULTILINE)
        if kernel in COMPUTES.get(name, {}) and TARGETS[own].runs_on(capability)
    ]


@pytest.mark.thorough("the machine takes 5 to 60 CPU seconds for attention")
@pytest.mark.parametrize(("arch", "name", "kernel"), [(a, *k) for a in ("sm_86", "sm_89") for k in list_kernels_for(a)])
def test_kernels_run_as_nvcc_compiles_them_for_later_gpus(arch: str, name: str, kernel: str) -> None:
    """The lowered text is that of an earlier target; headers and nvcc choose by the architecture."""
    program, checked, spec = prepare(name, kernel)
    compiled = compile_lowered(replace(lower(checked), arch=arch))
    assert compiled.kernel.module.module.target == arch
    problems = list(choose_ptx_problems(checked, spec))
    for case, schedule in (problems[len(name) % len(SCHEDULES)], problems[-1]):
        check_ptx_case(program, compiled, spec, case, schedule)
    assert compiled.coverage > 0.2


def test_the_stage_tells_what_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    program, checked, spec = prepare("decode_paged", "combine")
    told: list[str] = []
    stage = ask_ptx(program, checked, spec, told.append)
    assert stage.verdict == "passed" and "6 runs" in stage.reason and "million instructions of threads" in stage.reason
    assert told[0] == "ptx: nvcc compiles the lowered kernel" and len(told) == 7
    text = lower(checked).source
    wrong = replace(lower(checked), source=text.replace("exp2f", "log2f").replace("ex2.approx", "lg2.approx"))
    assert wrong.source != text
    monkeypatch.setattr("cuir.verification.ptx_stage.require_launchable", lambda checked: wrong)
    failed = ask_ptx(program, checked, spec)
    assert failed.verdict == "failed" and failed.diagnostics[0].code.startswith("V") and FAULT in failed.diagnostics[0].notes[-1].message


@pytest.mark.thorough("nvcc compiles each mutant; the left out waits of tests/ptx/machine are quicker")
@pytest.mark.parametrize("seed", range(3))
def test_mutants_of_synchronisation_are_found_in_ptx(seed: int) -> None:
    program, checked, spec = prepare("gemm", "gemm")
    text = lower(checked).source
    found, carried = 0, 0
    for mutant in choose_mutants(mutants(program, "gemm"), limit=4, faults=(1, 2, 4, 5, 6, 7, 8, 9), seed=seed):
        try:
            cuda = lower(check(mutant.program, "gemm", checked.consts))
        except CuirError:
            continue
        if cuda.source == text or mutant.equivalent is not None:
            continue
        carried += 1
        compiled = compile_lowered(cuda)
        try:
            for case, schedule in choose_ptx_problems(checked, spec):
                problem = prepare_launch(program, checked, spec, case, poison=True)
                assert isinstance(problem, FunctionLaunch) and isinstance(case, Draw) and isinstance(spec, FunctionSpecification)
                check_function(checked, spec, problem, case, partial(run_as_ptx, compiled, schedule))  # without the interpreter
        except CuirError:
            found += 1
    assert carried and found >= carried - 1  # without `mma_wait(acc)` the lowering waits in the loop


def run_as_ptx(compiled: PtxKernel, schedule: str, launch: FunctionLaunch) -> None:
    compiled.launch(launch.arguments(), schedule)
