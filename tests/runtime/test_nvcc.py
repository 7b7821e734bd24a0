"""Compiling: the cache, what ptxas says, what is missing; with a compiler that only pretends, and with nvcc where there is one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, seed, settings

import corpus
from cuir.attn.splicing.splice import transfer
from cuir.caching.disk import cache_dir
from cuir.checking.checker import check
from cuir.lowering import Cuda, lower
from cuir.performance.search.compiling import build as build_as_task
from cuir.performance.search.compiling import read_build
from cuir.runtime import nvcc as compiling
from cuir.runtime.machine_code import count_exponentials
from cuir.runtime.nvcc import compile_cuda, include_dir, target
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from cuir.text.diagnostics import CuirError
from tests.lowering.conftest import GOOD, HEAD, kernel, one_file
from tests.lowering.kernels import HARD, NAMES, corpus_kernel, queues, with_names
from tests.strategies.typed import Case, kernels

NVCC = shutil.which("nvcc")
needs_nvcc = pytest.mark.nvcc
Pretend = Callable[..., Callable[[], int]]


# ---- the cache
def test_a_second_compilation_reads_the_cache(cuda: Cuda, pretend: Pretend) -> None:
    calls = pretend()
    first, second = compile_cuda(cuda), compile_cuda(cuda)
    assert calls() == 1 and first.cubin == second.cubin == b"cubin\n" and first.resources == second.resources
    assert not [p for p in cache_dir().iterdir() if p.suffix not in (".json", ".cubin")]  # no temporary file stays


def test_the_key_is_text_architecture_flags_and_compiler(cuda: Cuda, pretend: Pretend, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = pretend()
    compile_cuda(cuda)
    compile_cuda(replace(cuda, source=cuda.source + "// more\n"))
    compile_cuda(replace(cuda, arch="sm_80"))
    monkeypatch.setattr(compiling, "FLAGS", (*compiling.FLAGS, "-G"))
    compile_cuda(cuda)
    monkeypatch.setattr(compiling, "compiler_version", lambda nvcc: "nvcc V100")
    compile_cuda(cuda)
    assert calls() == 5


@pytest.mark.parametrize("damage", ["no cubin", "no record", "broken record", "record of another version", "empty record"])
def test_a_damaged_entry_is_made_anew(cuda: Cuda, pretend: Pretend, damage: str) -> None:
    calls = pretend()
    compile_cuda(cuda)
    (record,) = cache_dir().glob("*.json")
    if damage == "no cubin":
        record.with_suffix(".cubin").unlink()
    elif damage == "no record":
        record.unlink()
    else:
        record.write_text(
            {"broken record": "{", "record of another version": json.dumps({"kernel": "k", "new": 1}), "empty record": ""}[damage]
        )
    assert compile_cuda(cuda).cubin == b"cubin\n" and calls() == 2
    compile_cuda(cuda)
    assert calls() == 2


def test_a_folder_that_cannot_be_written_is_no_error(cuda: Cuda, pretend: Pretend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = pretend()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CUIR_CACHE", str(tmp_path / "file" / "cache"))
    assert compile_cuda(cuda).cubin == compile_cuda(cuda).cubin and calls() == 2


def test_a_full_disk_leaves_no_half_entry(cuda: Cuda, pretend: Pretend, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = pretend()

    def full(source: str, destination: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as m:
        m.setattr(os, "replace", full)
        compile_cuda(cuda)
    assert not list(cache_dir().glob("*.json")) and not list(cache_dir().glob("*.cubin"))
    compile_cuda(cuda)
    assert calls() == 2


def test_without_nvcc_a_cached_cubin_serves(cuda: Cuda, pretend: Pretend, request: pytest.FixtureRequest) -> None:
    pretend()
    result = compile_cuda(cuda)
    request.getfixturevalue("no_nvcc")
    assert compile_cuda(cuda).cubin == result.cubin


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CUIR_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "cuir"
    monkeypatch.setenv("CUIR_CACHE", str(tmp_path / "mine"))
    assert cache_dir() == tmp_path / "mine"


# ---- what is missing, what is refused
def test_no_nvcc(cuda: Cuda, no_nvcc: None) -> None:
    with pytest.raises(CuirError) as caught:
        compile_cuda(cuda)
    (result,) = caught.value.diagnostics
    assert result.code == "U503" and "CUDA_HOME" in (result.hint or "")


@pytest.mark.parametrize("how", ["not installed", "a folder without them"])
def test_no_headers(cuda: Cuda, pretend: Pretend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str) -> None:
    pretend()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    if how == "a folder without them":
        monkeypatch.setenv("CUTLASS_INCLUDE", str(tmp_path))
    with pytest.raises(CuirError) as caught:
        compile_cuda(cuda)
    (result,) = caught.value.diagnostics
    assert result.code == "U504" and "cubridge[gpu]" in (result.hint or "")


def test_text_that_the_compiler_refuses_is_found_in_the_program(pretend: Pretend) -> None:
    cuda = lower(kernel("a = n + 1\nstore(I[0], a)"))
    number = next(i for i, line in enumerate(cuda.source.split("\n"), 1) if "I[0] = " in line)
    calls = pretend(f'echo "k.cu({number}): error: expected a monkey" >&2; exit 2')
    with pytest.raises(CuirError) as caught:
        compile_cuda(cuda)
    (result,) = caught.value.diagnostics
    assert result.code == "L010" and result.span and result.span.line == 9 and "expected a monkey" in result.message
    assert calls() <= 2, "once with the headers that the text names, once with all of them"
    assert not list(cache_dir().glob("*")) if cache_dir().exists() else True


def test_a_compiler_that_dies_without_a_word(cuda: Cuda, pretend: Pretend) -> None:
    pretend("exit 139")
    with pytest.raises(CuirError) as caught:
        compile_cuda(cuda)
    assert [d.code for d in caught.value.diagnostics] == ["L010"]


# ---- what ptxas says
def test_resources(cuda: Cuda, pretend: Pretend) -> None:
    pretend(GOOD)
    r = compile_cuda(cuda).resources
    assert (r.registers, r.stack, r.spill_stores, r.spill_loads, r.threads) == (168, 16, 24, 32, 128)
    assert len(r.warnings) == 1 and "C7510" in r.warnings[0] and r.compiler == "nvcc V99.1.7"
    assert "168 registers, 56 bytes of spills" in r.summary() and "1 warnings" in r.summary() and "C7510" in r.as_text()
    assert json.loads(json.dumps(r.as_json()))["registers"] == 168


@pytest.mark.parametrize(
    ("word", "costs"),
    [
        ("(C7514) Potential Performance Loss: wgmma.mma_async instructions are serialized due to ...", True),
        ("(C7517) warpgroup.wait is injected in around line 9 by compiler to allow use of registers defined by GMMA in function 'k'", True),
        ("(C7519) warpgroup.arrive is injected in around line 9 by compiler to allow use of registers in GMMA in function 'k'", False),
    ],
)
def test_a_fence_that_ptxas_puts_in_serialises_nothing(pretend: Pretend, word: str, costs: bool) -> None:
    message = f'echo "ptxas info    : {word}" >&2\n'
    pretend("".join(message if "C7510" in line else line for line in GOOD.splitlines(keepends=True) if "spill" not in line))
    text = HEAD + "        store(Y[rows(64)], zeros(f32, [64, 1]))\n"
    r, result = compile_cuda(lower(check(parse(text)))).resources, read_build(build_as_task(text, "k", {}))
    assert r.warnings == result.warnings == (word,) and r.serialised == (r.warnings if costs else ())
    assert ("1 warnings" in r.summary()) == costs and f"{'warning' if costs else 'note'}: {word}" in r.as_text()
    assert result.serialised == costs and result.clean == (not costs) and bool(result.describe_flaw()) == costs


def test_exponentials_are_counted_between_waits() -> None:
    code = [
        "MUFU.EX2 R1, R2",
        "WARPGROUP.DEPBAR.LE gsb0, 0x1",
        "MUFU.EX2 R3, R3",
        "MUFU.RCP R3, R3",
        "MUFU.EX2 R3, R3",
        "WARPGROUP.DEPBAR.LE gsb0, 0x0",
    ]
    assert count_exponentials(code) == (1, 2, 0) and count_exponentials(["MUFU.EX2 R1, R2"]) == ()


@pytest.mark.parametrize(
    ("arch", "options"),
    [
        ("sm_90a", ("cubin", "compute_90a", "-code=sm_90a")),
        ("sm_80", ("fatbin", "compute_80", "-code=sm_80,sm_90,compute_80")),
    ],
)
def test_targets(arch: str, options: tuple[str, str, str]) -> None:
    assert target(arch) == options


# ---- with nvcc
@needs_nvcc
@pytest.mark.sweep
@pytest.mark.parametrize("consts", [{}, {"CLUSTER": 2, "BM": 384, "BN": 80}], ids=["alone", "in clusters"])
def test_the_expert_kernel_compiles_without_spills(consts: dict[str, int]) -> None:
    checked = corpus_kernel("flash_fwd_sm90.flash_fwd")
    result = compile_cuda(lower(check(checked.program, None, {**checked.consts, **consts})))
    r = result.resources
    assert result.cubin[:4] == b"\x7fELF" and r.spill_stores + r.spill_loads + r.stack == 0 and r.warnings == ()


@pytest.mark.thorough("a kernel of D 128; the expert kernel itself compiles in the test before")
@needs_nvcc
def test_weights_without_a_softmax_compile_without_spills() -> None:
    """Two exponentials and two reciprocals an element, the first of each made into the second: what holds them above a wait holds each element once."""
    checked = corpus_kernel("flash_fwd_sm90.flash_fwd")
    program = transfer(checked.program, corpus.variant("combo")()).program
    cuda = lower(check(program, None, {"T": F16, "D": 128, "BM": 128, "BN": 128}))
    ties = [line for line in cuda.source.splitlines() if "__any_sync" in line and "any_bits" in line]
    assert ties and all(line.count("any_bits(") == 1 and re.search(r"any_bits\(W\w*\)", line) for line in ties)
    r = compile_cuda(cuda).resources
    assert r.spill_stores + r.spill_loads + r.stack == 0 and r.warnings == ()


def some_random_kernels() -> list[Case]:
    """The five longest of forty."""
    cases: list[Case] = []

    @seed(2026)
    @settings(max_examples=40, database=None, suppress_health_check=list(HealthCheck))
    @given(kernels())
    def collect(case: Case) -> None:
        cases.append(case)

    collect()
    return sorted(cases, key=lambda c: -len(c.text))[:5]


@pytest.mark.sweep
@pytest.mark.nvcc
@pytest.mark.parametrize("part", range(12))
def test_the_corpus_random_kernels_and_hard_names_compile(part: int, tmp_path: Path) -> None:
    """Compile to PTX; without ptxas, which the test of the expert kernel runs."""
    sources = [lower(checked).source for checked in map(corpus_kernel, NAMES[part::12])]
    sources += [lower(check(parse(case.text))).source for case in some_random_kernels()[part::12]]
    sources += [lower(checked).source for checked in queues()[part::12]]
    sources.append(lower(kernel(with_names([n for n in HARD if n != "INFINITY"]))).source)
    path = tmp_path / "all.cu"
    path.write_text(one_file(sources), encoding="utf-8")
    expected_values = subprocess.run([NVCC or "nvcc", "--help"], capture_output=True, text=True, check=True).stdout
    quick = "-Ofc=max" if "--Ofast-compile" in expected_values else "-Xcicc=-O0"  # the one takes half the time, and is not in nvcc 12.3
    options = [
        "-std=c++17",
        "--expt-relaxed-constexpr",
        "-diag-suppress=780",
        quick,
        "-I",
        include_dir(),
        "-o",
        str(tmp_path / "all.ptx"),
    ]
    finished = subprocess.run(
        [NVCC or "nvcc", "-ptx", "-arch=compute_90a", *options, str(path)], capture_output=True, text=True, check=False
    )
    errors = [line for line in (finished.stdout + finished.stderr).split("\n") if "error" in line]
    assert finished.returncode == 0 and not errors, errors[:5]
    assert (tmp_path / "all.ptx").read_text().count(".entry") == len(sources)
