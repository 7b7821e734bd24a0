"""Kernels on the loader by PyCUDA beside the default loader, one function each; `test_pycuda.py` runs them in processes of their own."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import corpus
import cuir
from cuir.checking.checker import check
from cuir.runtime.pycuda_kernel import PyCudaKernel
from cuir.runtime.pycuda_loader import import_pycuda
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from cuir.text.diagnostics import CuirError
from tests.gpu import call_cases
from tests.gpu.test_programs import PROGRAMS, consts_of, distance
from tests.page_blocks import read_blocks
from tests.runtime.test_argument_buffer import MIXED

ROOT = Path(__file__).parents[2]
NUMBERS = {"a": True, "n": -7, "b": True, "f": 0.75, "c": True}


def expert(dim: int = call_cases.DIM) -> Any:
    """Lower the expert forward kernel: causal, tiles handed out by a counter, tensor maps."""
    text = corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8")
    return cuir.lower(check(parse(text, "flash_fwd_sm90.cuir"), None, {"T": F16, "D": dim}))


def by_pycuda(lowered: Any) -> PyCudaKernel:
    kernel = lowered.pycuda()
    assert isinstance(kernel, PyCudaKernel)
    return kernel


def same_bits(name: str) -> None:
    """All problems of a program of the corpus on both loaders; sums of atomic additions are close."""
    program = parse(corpus.programs()[name].read_text(encoding="utf-8"), f"{name}.cuir")
    for problem in PROGRAMS[name](torch.float16):
        lowered = cuir.lower(check(program, problem.kernel, consts_of(program, problem)))
        actual = []
        for kernel in (cuir.compile(lowered), by_pycuda(lowered)):
            arguments = dict(problem.arguments)
            arguments |= {x: torch.full_like(arguments[x], 0.0 if x in problem.summed else torch.nan) for x in problem.expected}
            kernel(**arguments)
            torch.cuda.synchronize()
            actual.append({x: arguments[x] for x in problem.expected})
        for x, expected in problem.expected.items():
            default, ours = actual[0][x], actual[1][x]
            assert distance(ours, expected) <= 1.5e-3, (name, x)
            bits = torch.equal(ours.view(torch.uint8), default.view(torch.uint8))
            assert bits or (x in problem.summed and distance(ours, default) <= 1e-5), (name, x)


def scalars_and_scratch() -> None:
    """Scalars of every kind, strides and scratch, left out and given; against the default loader and against what the program says."""
    lowered = cuir.lower(check(parse(MIXED, "mixed.cuir")))
    default, ours = cuir.compile(lowered), by_pycuda(lowered)
    x = torch.randn(200, 64, device="cuda").half()
    for numbers in (NUMBERS, {**NUMBERS, "c": False}, {**NUMBERS, "a": np.bool_(False), "f": np.float32(0.5), "n": np.int32(3)}):
        plain = {n: v.item() if isinstance(v, np.generic) else v for n, v in numbers.items()}
        factor = plain["f"] if plain["a"] and plain["b"] and plain["c"] else float(plain["n"])
        a, b = torch.zeros(3, 200, 64, device="cuda").half(), torch.zeros(3, 200, 128, device="cuda").half()[..., :64]
        default(X=x, Y=a, **plain)
        ours(X=x, Y=b, **numbers)
        assert torch.equal(a, b) and torch.equal(b[0], (x.float() * plain["f"] * factor).half()) and not b[1:].any()


def streams_of_torch() -> None:
    """Calls keep the order of torch's current stream; overlapping streams have counters of their own."""
    kernel, p = by_pycuda(expert()), call_cases.problem(1024, 1024)
    expected, _ = kernel(**p)
    assert call_cases.right(expected, p)
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    results = []
    for _ in range(5):
        for s in streams:
            with torch.cuda.stream(s):
                q = torch.zeros_like(p["Q"])
                torch.cuda._sleep(1_000_000)
                q.copy_(p["Q"])
                o, _ = kernel(**{**p, "Q": q})
                results.append(o.clone())
                o.zero_()
    torch.cuda.synchronize()
    assert all(torch.equal(r, expected) for r in results)


def graphs_of_torch() -> None:
    """A captured call is replayed with new data, the first one of a kernel too."""
    kernel, p, second = by_pycuda(expert()), call_cases.problem(), call_cases.problem(seed=1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, _ = kernel(**p)
    for new in (call_cases.problem(), second):
        for x in "QKV":
            p[x].copy_(new[x])
        graph.replay()
        torch.cuda.synchronize()
        assert call_cases.right(o, p) and torch.equal(o, kernel(**p)[0])


def prepared() -> None:
    """A user launches the function with its arguments, grid, threads and shared memory, tensor maps included."""
    lowered = expert()
    kernel, p = by_pycuda(lowered), call_cases.problem()

    import pycuda.autoprimaryctx  # noqa: F401
    import pycuda.driver as drv
    from pycuda import gpuarray

    expected, wanted_lse = cuir.compile(lowered)(**p)
    mine, lse = torch.full_like(expected, torch.nan), torch.full_like(wanted_lse, torch.nan)
    launch = kernel.prepare(**p, O=mine, LSE=lse)
    stream = drv.Stream()

    def by_hand() -> None:
        launch.function(*launch.arguments, grid=launch.grid, block=launch.block, shared=launch.shared)

    for start in (launch, lambda: launch(stream), by_hand):
        mine.fill_(torch.nan)
        torch.cuda.synchronize()
        start()
        drv.Context.synchronize()
        assert torch.equal(mine, expected) and torch.equal(lse, wanted_lse)
    assert isinstance(launch.function, drv.Function) and launch.function.num_regs == kernel.compiled.resources.registers
    q = gpuarray.to_gpu(p["Q"].cpu().numpy())  # in one context arrays and tensors go together
    o, _ = kernel(**{**p, "Q": q})
    assert isinstance(o, gpuarray.GPUArray) and np.array_equal(o.get(), expected.cpu().numpy())


def numpy_problem() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {x: random.standard_normal((2, 4, 300, call_cases.DIM)).astype(np.float16) for x in "QKV"}


def default_digest() -> str:
    inputs = {x: torch.from_numpy(v).cuda() for x, v in numpy_problem().items()}
    o, lse = cuir.compile(expert())(**inputs, scale=call_cases.SCALE)
    return digest(o.cpu().numpy(), lse.cpu().numpy())


def own_context_digest() -> str:
    """On a context of PyCUDA's own, with GPUArrays and allocations, on the default stream and on one of PyCUDA's."""
    kernel = by_pycuda(expert())

    import pycuda.autoinit  # noqa: F401
    import pycuda.driver as drv
    from pycuda import gpuarray

    inputs: dict[str, Any] = {x: gpuarray.to_gpu(v) for x, v in numpy_problem().items()}
    o, lse = kernel(**inputs, scale=np.float32(call_cases.SCALE))
    results = {digest(o.get(), lse.get())}
    memory, stream = drv.mem_alloc(o.nbytes), drv.Stream()
    launch = kernel.prepare(**inputs, O=memory, LSE=lse, scale=call_cases.SCALE)
    for s in (None, stream):
        drv.memset_d8(lse.gpudata, 0, lse.nbytes)
        drv.Context.synchronize()
        launch(s)
        drv.Context.synchronize()
        repeated = np.empty_like(o.get())
        drv.memcpy_dtoh(repeated, memory)
        results.add(digest(repeated, lse.get()))
    assert len(results) == 1
    return results.pop()


def digest(*arrays: np.ndarray) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)).hexdigest()


def another_context() -> None:
    """Tensors of torch are refused while PyCUDA's context is another one."""
    kernel, p = by_pycuda(expert()), call_cases.problem()
    context = import_pycuda().Device(0).make_context()
    try:
        with pytest.raises(CuirError, match="U511"):
            kernel(**p)
    finally:
        context.pop()
    assert call_cases.right(kernel(**p)[0], p)


def errors_of_a_call() -> None:
    """The same errors as on the default loader."""
    lowered, p = expert(), call_cases.problem()
    default, ours = cuir.compile(lowered), by_pycuda(lowered)
    q = p["Q"]
    odd = torch.empty(q.numel() + 8, device="cuda", dtype=torch.float16)[1 : q.numel() + 1].view(q.shape)
    for wrong in ({"Q": q.cpu()}, {"Q": q.bfloat16()}, {"V": p["V"][:, :, 1:]}, {"scale": float("nan")}, {"W": q}, {"Q": odd}):
        messages = []
        for kernel in (default, ours):
            with pytest.raises(CuirError) as caught:
                kernel(**{**p, **wrong})
            messages.append(str(caught.value))
        assert messages[0] == messages[1]


def refusals() -> None:
    """Refusals of nvcc and of the driver have the words of the default loader."""
    lowered = expert()
    lines = lowered.source.split("\n")
    line = next(n for n, text in enumerate(lines, 1) if text.endswith(";") and n in lowered.line_map)
    broken = replace(lowered, source="\n".join([*lines[: line - 1], lines[line - 1] + " nonsense;", *lines[line:]]))
    for load in (cuir.compile, lambda cuda: cuda.pycuda()):
        with pytest.raises(CuirError) as caught:
            load(broken)
        (result,) = caught.value.diagnostics
        assert result.code == "L010" and "nonsense" in result.message and result.span == lowered.line_map[line]
    kernel = by_pycuda(lowered)
    with pytest.raises(CuirError) as caught:
        PyCudaKernel(replace(kernel.compiled, cubin=b"no cubin"))(**call_cases.problem())
    assert [d.code for d in caught.value.diagnostics] == ["L011"]


def command_line() -> None:
    """`cuir run` writes the same results by both loaders."""
    import json

    results = []
    for loader in ("driver", "pycuda"):
        command = [
            "-m",
            "cuir",
            "run",
            "flash_fwd",
            "-c",
            "T=f16,D=64",
            "-d",
            "B=1,H=2,HK=2,M=300,N=300",
            "-s",
            "scale=0.125",
            "--loader",
            loader,
            "--json",
        ]
        finished = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
        assert finished.returncode == 0, finished.stdout + finished.stderr
        results.append(json.loads(finished.stdout))
    assert results[0]["outputs"] == results[1]["outputs"] and f"--loader {loader}" in results[1]["replay"] and results[1]["on"] == "gpu"


def page(name: str) -> None:
    """A program of docs/pycuda.md."""
    (block,) = (b for b in read_blocks(ROOT / "docs" / "pycuda.md") if b.name == name)
    result = "from cuir.runtime.pycuda_loader import import_pycuda\nimport_pycuda()\n"  # libraries of CUDA that lie in torch's packages
    finished = subprocess.run([sys.executable, "-c", result + block.text], cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert name != "launch.py" or finished.stdout.strip() == "2.0"


def example() -> None:
    from examples.pycuda_launch import main

    assert main() == 0
