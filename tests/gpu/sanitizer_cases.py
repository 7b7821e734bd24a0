"""A kernel whose CUDA text is made to store outside of memory: what compute-sanitizer says of it must name the statement of the program."""

from __future__ import annotations

from dataclasses import replace

import torch

import corpus
from cuir.checking.checker import check
from cuir.lowering import Cuda, lower
from cuir.runtime.compiled import CompiledKernel
from cuir.runtime.nvcc import compile_cuda
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from cuir.text.source import Span


def damaged() -> tuple[Cuda, Span]:
    """The kernel, and the statement whose store goes 2^36 elements too far."""
    cuda = lower(check(parse(corpus.programs()["flash_fwd"].read_text(encoding="utf-8"), "flash_fwd.cuir"), None, {"T": F16, "D": 64}))
    lines = cuda.source.splitlines()
    number = next(n for n in cuda.line_map if " LSE[uint32_t(b)" in lines[n - 1])
    lines[number - 1] = lines[number - 1].replace(" LSE[uint32_t(b)", " LSE[(int64_t(1) << 36) + uint32_t(b)", 1)
    return replace(cuda, source="\n".join(lines) + "\n"), cuda.line_map[number]


def store_outside() -> int:
    """Runs it."""
    q, k, v = (torch.randn(1, 1, 40, 64, device="cuda", dtype=torch.float16) for _ in "qkv")
    CompiledKernel(compile_cuda(damaged()[0]))(q, k, v, scale=0.125)
    torch.cuda.synchronize()
    return 0
