"""compute-sanitizer finds no access outside of memory in a small run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 and "ERROR SUMMARY: 0 errors" in done.stdout, (done.stdout + done.stderr)[-4000:]
