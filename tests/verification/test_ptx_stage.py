"""The question on PTX: kernels of the corpus pass on every card, and faults of synchronisation that reach PTX are found there."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

import corpus
from corpus.computes import COMPUTES
from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.lowering import lower
from cuir.mutation.equivalent_mutants import why
from cuir.mutation.mutant_comparison import Trial
from cuir.mutation.mutants import choose_mutants, mutants
from cuir.mutation.mutation_sites import Mutant
from cuir.ops.limits import TARGETS
from cuir.spec.function_specification import AnySpecification
from cuir.spec.loading import as_any
from cuir.syntax.nodes import Program
from cuir.syntax.parser import parse
from cuir.syntax.types import F16, DType
from cuir.text.diagnostics import CuirError
from cuir.verification.ptx_launches import RESIDENT, PtxKernel, compile_lowered
from cuir.verification.ptx_stage import FAULT, SCHEDULES, ask_ptx, check_ptx_case, choose_ptx_problems, judge_ptx_case
from cuir.verification.spec_dispatch import make_small_launches

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


SYNCHRONISATION = (*range(1, 11), 15)  # classes of faults


@pytest.mark.thorough("nvcc compiles each mutant; the left out waits of tests/ptx/machine are quicker")
@pytest.mark.parametrize("seed", range(3))
def test_mutants_of_synchronisation_are_found_in_ptx(seed: int) -> None:
    program, checked, spec = prepare("gemm", "gemm")
    chosen = choose_mutants(mutants(program, "gemm"), limit=4, faults=(1, 2, 4, 5, 6, 7, 8, 9), seed=seed)
    carried = list(compile_carried(program, checked, [m for m in chosen if m.equivalent is None]))
    found = [m for m, compiled in carried if find_refusal(checked, m.program, compiled, spec)]
    assert carried and len(found) >= len(carried) - 1  # without `mma_wait(acc)` the lowering waits in the loop


@pytest.mark.thorough("nvcc compiles each mutant, and the machine runs it")
@pytest.mark.parametrize(
    ("name", "kernel"), [("gemm_sm75", "gemm"), ("gemm_sm89", "gemm"), ("flash_fwd_sm75", "flash_fwd"), ("flash_fwd_warps", "flash_fwd")]
)
def test_each_harmful_mutant_of_synchronisation_that_reaches_ptx_is_found(name: str, kernel: str) -> None:
    """The machine refuses each mutant, or an argument of `cuir mutate` says that it does no harm."""
    program, checked, spec = prepare(name, kernel)
    listed = [m for m in mutants(program, kernel) if m.fault in SYNCHRONISATION and m.equivalent is None]
    carried = list(compile_carried(program, checked, listed))
    passed = [m for m, compiled in carried if not find_refusal(checked, m.program, compiled, spec)]
    trials = {m: Trial(program, m.program, spec, kernel, checked.consts, "quick") for m in passed}
    assert [m.description for m, t in trials.items() if why(t) is None] == []
    assert len(carried) - len(passed) > 3


def compile_carried(program: Program, checked: Checked, candidates: Iterable[Mutant]) -> Iterator[tuple[Mutant, PtxKernel]]:
    """Yield mutants that the lowering takes, and whose PTX or launch differs from the program's."""
    original = describe_code(compile_lowered(lower(checked)))
    for mutant in candidates:
        try:
            cuda = lower(check(mutant.program, checked.name, checked.consts))
        except CuirError:
            continue
        compiled = compile_lowered(cuda)
        if describe_code(compiled) != original:
            yield mutant, compiled


def describe_code(compiled: PtxKernel) -> tuple[str, int, int]:
    """Return the PTX without places in sources and idle commits, and the launch's shared memory and threads."""
    code = re.split(r"^\s*\.file", compiled.kernel.module.module.text, maxsplit=1, flags=re.MULTILINE)[0]
    text = re.sub(r"//.*|^\s*\.loc.*", "", code, flags=re.MULTILINE)
    if "cp.async.wait_group" not in text:
        text = text.replace("cp.async.commit_group;", "")  # cp.async.wait_all commits by itself
    return re.sub(r"\n\s+", "\n", text), compiled.cuda.shared_bytes, compiled.cuda.threads


def find_refusal(checked: Checked, program: Program, compiled: PtxKernel, spec: AnySpecification) -> str:
    """Return the code of what the machine, or wrong numbers, say against a mutant of a kernel; "" if nothing.

    Behind the problems of the stage, launches that are small enough to explore, a schedule each.
    """
    small = zip(make_small_launches(checked, spec, 2, 4), itertools.cycle(SCHEDULES))
    further = ((case, schedule, ctas) for (case, ctas), schedule in small)
    for case, schedule, ctas in itertools.chain(((*p, RESIDENT) for p in choose_ptx_problems(checked, spec)), further):
        try:
            judge_ptx_case(program, compiled, spec, case, schedule, ctas)
        except CuirError as refusal:
            code = refusal.diagnostics[0].code
            assert code[0] not in "OUX", str(refusal)  # nothing was judged
            return code
    return ""
