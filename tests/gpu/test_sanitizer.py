"""compute-sanitizer finds no access outside of memory in a small run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import corpus
from cuir.checking.checker import check
from cuir.lowering import Cuda, lower
from cuir.runtime.compiled import CompiledKernel
from cuir.runtime.nvcc import compile_cuda
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from cuir.text.source import Span
from cuir.verification.on_gpu import make_diagnostics


def damage() -> tuple[Cuda, Span]:
    """The kernel, and the statement whose store goes 2^36 elements too far."""
    cuda = lower(check(parse(corpus.programs()["flash_fwd"].read_text(encoding="utf-8"), "flash_fwd.cuir"), None, {"T": F16, "D": 64}))
    lines = cuda.source.splitlines()
    number = next(n for n in cuda.line_map if " LSE[uint32_t(b)" in lines[n - 1])
    lines[number - 1] = lines[number - 1].replace(" LSE[uint32_t(b)", " LSE[(int64_t(1) << 36) + uint32_t(b)", 1)
    return replace(cuda, source="\n".join(lines) + "\n"), cuda.line_map[number]


def store_outside() -> int:
    """Runs it."""
    q, k, v = (torch.randn(1, 1, 40, 64, device="cuda", dtype=torch.float16) for _ in "qkv")
    CompiledKernel(compile_cuda(damage()[0]))(q, k, v, scale=0.125)
    torch.cuda.synchronize()
    return 0


SANITIZER = shutil.which("compute-sanitizer")
ROOT = Path(__file__).parents[2]


@pytest.mark.gpu
@pytest.mark.skipif(SANITIZER is None, reason="no compute-sanitizer on the PATH")
def test_memcheck() -> None:
    command = [
        SANITIZER or "",
        "--tool",
        "memcheck",
        "--report-api-errors",  # cuda-bindings asks the driver for functions that it does not have
        "no",
        "--error-exitcode",
        "9",
        sys.executable,
        "-m",
        "tests.gpu.isolation",
        "tests.gpu.call_cases",
        "small_run",
        "[]",
    ]
    # without torch's pools each tensor is an allocation of its own, with bounds that memcheck knows
    env = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    finished = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert finished.returncode == 0 and "ERROR SUMMARY: 0 errors" in finished.stdout, (finished.stdout + finished.stderr)[-4000:]


@pytest.mark.gpu
@pytest.mark.skipif(SANITIZER is None, reason="no compute-sanitizer on the PATH")
def test_a_store_outside_of_memory_names_the_statement(tmp_path: Path) -> None:
    log, (cuda, span) = tmp_path / "log", damage()
    command = [
        SANITIZER or "",
        "--tool",
        "memcheck",
        "--report-api-errors",
        "no",
        "--log-file",
        str(log),
        sys.executable,
        "-m",
        "tests.gpu.isolation",
        "tests.gpu.test_sanitizer",
        "store_outside",
        "[]",
    ]
    subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, capture_output=True, timeout=300, check=False
    )
    text = log.read_text()
    result = make_diagnostics(text, cuda.line_map)
    assert result and all(d.code == "V404" and d.span == span for d in result), text[:4000]


@pytest.mark.gpu
@pytest.mark.parametrize("more", [(), ("--sanitizer", "memcheck"), ("--sanitizer", "racecheck")])
def test_verify_on_the_gpu(more: tuple[str, ...]) -> None:
    if more and SANITIZER is None:
        pytest.skip("no compute-sanitizer on the PATH")
    command = [sys.executable, "-m", "cuir", "verify", "flash_fwd", "--against", "causal", "--head-dim", "64", "--gpu", *more, "--json"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert finished.returncode == 0, finished.stdout[-4000:] + finished.stderr[-4000:]
    (stage,) = [s for s in json.loads(finished.stdout)["verification"]["stages"] if s["name"] == "gpu"]
    assert stage["verdict"] == "passed" and stage["rows"]


@pytest.mark.thorough("the test on a GPU compiles it, too")
def test_the_damaged_kernel_compiles() -> None:
    cuda, span = damage()
    assert "LSE" in span.source.line(span.line) and (shutil.which("nvcc") is None or compile_cuda(cuda).cubin)
