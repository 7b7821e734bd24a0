"""PyCUDA itself over a driver that only writes down what it gets (`pretend_driver.c`); `test_pycuda_driver.py` runs each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import cuir
from cuir.arguments.foreign_arrays import make_view
from cuir.lowering import Cuda
from cuir.runtime.driver_api import driver, relax_capture
from cuir.runtime.launch import Launcher, bind_arguments
from cuir.runtime.loader import DriverKernel
from cuir.runtime.nvcc import compile_cuda
from cuir.runtime.pycuda_kernel import PyCudaKernel
from cuir.runtime.pycuda_loader import import_pycuda
from cuir.text.diagnostics import CuirError
from tests.arguments.copy_kernel import COPY
from tests.page_blocks import find_block
from tests.runtime.test_argument_buffer import lower_named

FIRST_OFFSET = 112  # of the first parameter, as the driver that pretends has it
SHAPES = {"X": (200, 64), "Y": (3, 200, 64)}  # of `mixed`
NUMBERS = {"a": True, "n": -7, "b": False, "f": 0.1, "c": True}


def launches() -> list[dict[str, str]]:
    """Read what the driver has written down of launches."""
    lines = Path(os.environ["CUIR_PRETEND_LOG"]).read_text(encoding="utf-8").splitlines()
    return [dict(word.split("=") for word in line.split()[1:]) for line in lines if line.startswith("launch ")]


def arrays(shapes: dict[str, tuple[int, ...]], dtype: str = "f2") -> dict[str, Any]:
    from pycuda import gpuarray

    return {name: gpuarray.empty(shape, np.dtype(dtype)) for name, shape in shapes.items()}


def load(cuda: Cuda) -> PyCudaKernel:
    kernel = cuda.pycuda()
    assert isinstance(kernel, PyCudaKernel)
    return kernel


def start_by_driver(kernel: PyCudaKernel, call: dict[str, Any]) -> None:
    """Launch by the default loader in PyCUDA's context, since there is no torch for GPUs here."""
    DriverKernel.activate = lambda self: relax_capture(self.cuda)  # type: ignore[method-assign]
    launcher = Launcher(compile_cuda(kernel.compiled.cuda), torch.device("cuda", 0))
    views = kernel._as_views(call, 0)
    plan = launcher.plan(views, bind_arguments(kernel.compiled.cuda.checked, views))
    os.environ["CUIR_PRETEND_SIZES"] = ",".join(str(p.size) for p in launcher.layout.parameters)
    packed = launcher.pack(plan, tuple(views[t.name].data_ptr() for t in kernel.compiled.cuda.checked.tensors), 0, False)
    assert packed is not None
    launcher._start(packed.launch)


def same_launches(name: str) -> None:
    """Both loaders hand the driver the same bytes, grid, threads and shared memory; a cluster's size is in the text, or in the launch."""
    import pycuda.autoinit  # noqa: F401

    kernel = load(lower_named(name))
    if name == "mixed":
        call = {**arrays(SHAPES), "W": arrays({"W": (200, 64)}, "f4")["W"], **NUMBERS}
    else:
        queries = arrays(dict.fromkeys("QKVO", (1, 2, 200, 128)))
        call = {**queries, **arrays({"LSE": (1, 2, 200)}, "f4"), "scale": 0.125}
    kernel(**call)
    start_by_driver(kernel, call)
    ours, default = launches()
    before = "00" * FIRST_OFFSET  # PyCUDA's launches have one buffer, from the beginning of the parameter space
    assert ours["params"].startswith(before)
    ours["params"] = ours["params"].removeprefix(before)
    counter = next((p.offset for p in kernel.prepare(**call).kernel.layout.parameters if p.name == "counter"), None)
    if counter is not None:  # each loader has its own
        for launch in (ours, default):
            launch["params"] = launch["params"][: 2 * counter] + launch["params"][2 * counter + 16 :]
    cluster = kernel.compiled.cuda.cluster
    assert ours.pop("cluster") == "0" and default.pop("cluster") == str(cluster if cluster > 1 else 0)
    assert (ours == default and f"__cluster_dims__({cluster}" in kernel.source) or cluster == 1


def own_context() -> None:
    """Arrays of PyCUDA's own context: results, streams, and the arguments that a user launches with."""
    import pycuda.autoinit

    drv, kernel = import_pycuda(), load(lower_named("mixed"))
    x = arrays({"X": (200, 64)})["X"]
    y = arrays({"Y": (3, 200, 64)})["Y"]
    assert kernel(X=x, Y=y, **NUMBERS) is y and kernel(X=x, out=y, **NUMBERS) is y
    launch, stream = kernel.prepare(X=x, Y=y, **{**NUMBERS, "f": np.float32(0.1), "n": np.int32(-7), "a": np.bool_(True)}), drv.Stream()
    assert launch() is y and launch(stream) is y
    launch.function(*launch.arguments, grid=launch.grid, block=launch.block, shared=launch.shared, stream=stream)
    first, second, third, fourth, fifth = launches()
    assert first["stream"] == third["stream"] == "0" and fourth["stream"] == fifth["stream"] == f"{stream.handle:x}"
    assert third["params"] == fourth["params"] == fifth["params"] and second["grid"] == fifth["grid"]
    assert {l["context"] for l in launches()} == {f"{pycuda.autoinit.context.handle:x}"}
    assert launch.function.__class__ is drv.Function and launch.grid == kernel.grid(X=x, Y=y, **NUMBERS) == (4, 1, 1)
    assert kernel.block == launch.block == (128, 1, 1) and kernel.shared == launch.shared and kernel.function is launch.function
    assert len(kernel.arguments(X=x, Y=y, **NUMBERS)) == len(launch.arguments)


def results_are_allocated() -> None:
    """Results that are left out are GPUArrays, of unsigned integers for bf16."""
    import pycuda.autoinit  # noqa: F401
    from pycuda import gpuarray

    kernel = load(cuir.lower(cuir.check(cuir.parse(COPY), consts={"T": cuir.bf16})))
    y = kernel(X=arrays({"X": (200, 64)}, "u2")["X"])
    assert isinstance(y, gpuarray.GPUArray) and y.shape == (200, 64) and y.dtype == np.uint16
    mine = import_pycuda().mem_alloc(200 * 64 * 2)
    assert kernel(X=arrays({"X": (200, 64)}, "u2")["X"], Y=mine) is mine
    empty = kernel(X=arrays({"X": (0, 64)}, "u2")["X"])
    assert empty.shape == (0, 64) and len(launches()) == 2
    with pytest.raises(CuirError) as caught:
        kernel(X=mine)
    assert [d.code for d in caught.value.diagnostics] == ["U403"] and "GPUArray" in str(caught.value)


def primary_context() -> None:
    """`pycuda.autoprimaryctx` makes torch's context PyCUDA's."""
    import pycuda.autoprimaryctx

    kernel = load(lower_named("mixed"))
    kernel(**arrays(SHAPES), **NUMBERS)
    (launch,) = launches()
    assert launch["context"] == f"{pycuda.autoprimaryctx.context.handle:x}" == "1000"


class External:
    """Stands for a stream of torch made of a handle, which this torch has not; `waits` has (one, the other that it waits for)."""

    waits: ClassVar[list[tuple[int, int]]] = []

    def __init__(self, handle: int, device: Any):
        self.handle = handle

    def wait_stream(self, second: External) -> None:
        self.waits.append((self.handle, second.handle))


def tensors_of_torch() -> None:
    """Calls with tensors that torch has on a GPU: in its context, on its current stream, checked once; there is no torch for GPUs here."""
    stream = 0
    torch.cuda.is_available = lambda: True  # type: ignore[method-assign]
    torch.cuda.get_device_capability = lambda device=None: (9, 0)  # type: ignore[method-assign]
    torch.cuda.is_current_stream_capturing = lambda: False  # type: ignore[method-assign]
    torch.cuda.ExternalStream = External  # type: ignore[misc,assignment]
    torch._C._cuda_getCurrentRawStream = lambda index: stream  # type: ignore[attr-defined]
    torch._C._cuda_getDevice = lambda: 0  # type: ignore[attr-defined]
    kernel, drv = load(lower_named("mixed")), import_pycuda()
    memory = {name: torch.zeros(shape, dtype=torch.float16) for name, shape in SHAPES.items()} | {"W": torch.zeros(200, 64)}
    call = {n: make_view(None, t.data_ptr(), t.shape, None, t.dtype, 0) for n, t in memory.items()} | NUMBERS
    y = kernel(**call)
    assert y is call["Y"] and kernel(**call) is y and drv.Context.get_current() is None
    assert len(kernel._records) == 1 and len(next(iter(kernel._launchers.values())).packed) == 1  # the second call was recognised
    stream = 77
    for _ in range(2):
        kernel(**call)
    result = launches()
    assert {item["context"] for item in result} == {"1000"} and len({item["params"] for item in result}) == 1
    (mine,) = {item["stream"] for item in result[2:]}
    assert [item["stream"] for item in result[:2]] == ["0", "0"] and External.waits == 2 * [(int(mine, 16), 77), (77, int(mine, 16))]
    context = drv.Device(0).make_context()
    with pytest.raises(CuirError, match="U511"):
        kernel(**{**call, "f": 0.5})
    context.pop()
    kernel(**{**call, "f": 0.5})
    assert len(launches()) == 5


def errors_of_a_call() -> None:
    """Nothing is launched, and the context is as it was."""
    import pycuda.autoinit
    from pycuda import gpuarray

    kernel, good = load(lower_named("mixed")), {**arrays(SHAPES), **NUMBERS}
    for code, wrong in (
        ("U404", arrays({"X": (200, 64)}, "f4")),
        ("U404", arrays({"X": (200, 64)}, "u2")),
        ("U405", arrays({"X": (1, 200, 64)})),
        ("U408", arrays({"X": (100, 64)})),
        ("U409", {"f": np.float32(np.inf)}),
        ("U401", arrays({"V": (200, 64)})),
        ("U403", {"X": "x"}),
        ("U407", {"X": torch.zeros(200, 64, dtype=torch.float16)}),
        ("U419", {"Y": gpuarray.GPUArray((1, 200, 64), np.float16, gpudata=good["X"].gpudata)}),
    ):
        with pytest.raises(CuirError) as caught:
            kernel(**{**good, **wrong})
        assert code in [d.code for d in caught.value.diagnostics], (code, str(caught.value))
    assert not launches()
    pycuda.autoinit.context.pop()
    with pytest.raises(CuirError, match=r"U511.*(?s:.)*autoprimaryctx"):
        kernel(**good)
    pycuda.autoinit.context.push()
    kernel(**good)
    assert len(launches()) == 1


def refused_by_the_driver() -> None:
    """A cubin that is none is refused as by the default loader."""
    import pycuda.autoinit

    kernel = load(lower_named("mixed"))
    with pytest.raises(CuirError) as caught:
        kernel(**arrays(SHAPES), **NUMBERS)
    (result,) = caught.value.diagnostics
    assert result.code == "L011" and "device kernel image is invalid" in result.message
    assert int(driver().cuCtxGetCurrent()[1]) == pycuda.autoinit.context.handle


def refused_by_the_compiler() -> None:
    with pytest.raises(CuirError) as caught:
        load(lower_named("mixed"))
    (result,) = caught.value.diagnostics
    assert result.code == "L010" and "expected a monkey" in result.message


def compiled_as_on_the_default_way() -> None:
    """nvcc makes the same machine code of the same text."""
    cuda = cuir.lower(cuir.check(cuir.parse(COPY), consts={"T": cuir.f16}))
    default, ours = compile_cuda(cuda), load(cuda).compiled
    numbers = ("registers", "spill_stores", "spill_loads", "stack", "shared_bytes", "threads", "warnings", "compiler")
    assert all(getattr(default.resources, n) == getattr(ours.resources, n) for n in numbers)
    from cuir.runtime.machine_code import parse_functions

    assert parse_functions(default.cubin) == parse_functions(ours.cubin)


def page() -> None:
    """The program of docs/pycuda.md that launches by hand; the driver computes nothing."""
    text = find_block("docs/pycuda.md", "step", "launch.py").text
    finished = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    first, second = launches()
    assert first["params"] == second["params"] and first["grid"] == second["grid"] == "8"
