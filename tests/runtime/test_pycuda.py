"""The loader by PyCUDA without PyCUDA and without a GPU: what is missing, the text of clusters, the order of what PyCUDA is asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import cuir
from cuir.lowering import Cuda, lower
from cuir.lowering.cuda.writer import symbol
from cuir.runtime import pycuda_loader
from cuir.runtime.argument_buffer import ArgumentLayout, Arguments
from cuir.runtime.nvcc import Compiled, Resources
from cuir.runtime.pycuda_loader import Context, PyCudaFunction, import_pycuda
from cuir.text.diagnostics import CuirError
from tests.lowering.conftest import HEAD, kernel
from tests.runtime.test_argument_buffer import lower_named


# ---- what is missing
@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import_pycuda.cache_clear()
    monkeypatch.setitem(sys.modules, "pycuda", None)
    yield
    import_pycuda.cache_clear()


def test_without_pycuda_a_call_says_what_to_install(absent: None, cuda: Cuda) -> None:
    for load in (cuda.pycuda, lambda: cuir.compile(cuda.checked, loader="pycuda")):
        with pytest.raises(CuirError) as caught:
            load()
        (result,) = caught.value.diagnostics
        assert result.code == "U510" and "cubridge[pycuda]" in (result.hint or "") and "nvcc" in (result.hint or "")


def test_a_library_that_pycuda_links_and_nobody_finds_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Any:
        raise ImportError("libcurand.so.10: cannot open shared object file: No such file or directory")

    import_pycuda.cache_clear()
    monkeypatch.setattr(pycuda_loader, "_import_driver", fail)
    with pytest.raises(CuirError) as caught:
        import_pycuda()
    (result,) = caught.value.diagnostics
    assert result.code == "U510" and "libcurand.so.10" in result.message and "LD_LIBRARY_PATH" in (result.hint or "")


def test_an_unknown_loader_is_refused_with_those_there_are(cuda: Cuda) -> None:
    with pytest.raises(CuirError) as caught:
        cuir.compile(cuda, loader="cupy")
    (result,) = caught.value.diagnostics
    assert result.code == "U512" and "pycuda" in (result.hint or "")


# ---- clusters
def test_the_text_of_a_cluster_says_its_size_and_keeps_its_lines() -> None:
    cuda = lower_named("flash_fwd_cluster")
    text = cuda.with_cluster_dims()
    before, after = cuda.source.split("\n"), text.source.split("\n")
    changed = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    size = f"__cluster_dims__({cuda.cluster}, 1, 1) "
    assert cuda.cluster > 1 and [b.replace(size, "") == a for a, b in changed] == [True] and text.line_map == cuda.line_map


def test_a_kernel_without_clusters_keeps_its_text(cuda: Cuda) -> None:
    assert cuda.with_cluster_dims() is cuda


# ---- the order of calls
class Recorder:
    """Stands for pycuda.driver, and writes down what it is asked for. refuses: the calls that raise its error."""

    class Error(Exception):
        pass

    function_attribute = SimpleNamespace(MAX_DYNAMIC_SHARED_SIZE_BYTES=8)

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.refuses: set[str] = set()
        self.first_offset = 0

    def note(self, name: str, *values: Any) -> None:
        self.calls.append((name, *values) if values else name)
        if name in self.refuses:
            raise self.Error(f"{name} failed: invalid argument")

    def module_from_buffer(self, cubin: bytes) -> Any:
        self.note("load", cubin)
        return self

    def get_function(self, name: str) -> Any:
        self.note("function", name)
        return self

    def set_attribute(self, kind: int, value: int) -> None:
        self.note("attribute", kind, value)

    def __call__(self, arguments: np.void, *, grid: Any, block: Any, shared: int, stream: Any) -> None:
        self.note("launch", bytes(memoryview(arguments)), grid, block, shared, stream)

    def Stream(self, flags: int) -> Any:
        self.note("stream", flags)
        return SimpleNamespace(handle=77)

    def push(self) -> None:
        self.note("push")

    def pop(self) -> None:
        self.note("pop")


class External:
    """Stands for a stream of torch made of a handle."""

    calls: list[Any]

    def __init__(self, handle: int, device: Any):
        self.handle = handle

    def wait_stream(self, second: External) -> None:
        self.calls.append(("wait", self.handle, second.handle))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()

    @contextmanager
    def relax(cuda: Cuda) -> Iterator[None]:
        recorder.note("relax")
        yield

    monkeypatch.setattr(pycuda_loader, "import_pycuda", lambda: recorder)
    monkeypatch.setattr(pycuda_loader, "relax_capture", relax)
    monkeypatch.setattr(PyCudaFunction, "_examine_copy", lambda *_: (5, recorder.first_offset))
    monkeypatch.setattr(External, "calls", recorder.calls, raising=False)
    monkeypatch.setattr(torch.cuda, "ExternalStream", External)
    return recorder


def load(cuda: Cuda, recorder: Recorder) -> PyCudaFunction:
    compiled = Compiled(cuda, b"cubin", Resources("k", 0, 0, 0, 0, 0, cuda.threads, 0.0, "none"))
    return PyCudaFunction(compiled, ArgumentLayout(cuda), Context(recorder, 1, 0, (9, 0)))


def pack(text: bytes) -> Arguments:
    memory = np.frombuffer(text, np.uint8)
    return Arguments(memory.ctypes.data, len(text), memory)


def test_a_kernel_is_loaded_in_its_context_with_its_shared_memory(cuda: Cuda, recorder: Recorder) -> None:
    loaded = load(cuda, recorder)
    assert recorder.calls == ["push", "relax", ("load", b"cubin"), ("function", symbol("k")), ("attribute", 8, cuda.shared_bytes), "pop"]
    assert loaded.resident == 5 and loaded.function is recorder


def test_a_launch_on_the_default_stream_is_one_call_in_the_context(cuda: Cuda, recorder: Recorder) -> None:
    loaded = load(cuda, recorder)
    launch = loaded.prepare(3, 0, pack(b"\x01\x02\x03"))
    recorder.calls.clear()
    loaded.start(launch)
    once = ["push", ("launch", b"\x01\x02\x03", (3, 1, 1), (cuda.threads, 1, 1), cuda.shared_bytes, None), "pop"]
    assert recorder.calls == once
    loaded.start(launch)
    assert recorder.calls == 2 * once


def test_the_buffer_of_a_launch_begins_where_the_parameter_space_does(cuda: Cuda, recorder: Recorder) -> None:
    recorder.first_offset = 4
    loaded = load(cuda, recorder)
    assert loaded.prepare(3, 0, pack(b"\x01")).arguments == np.void(b"\x00\x00\x00\x00\x01")
    recorder.calls.clear()
    loaded.start(loaded.prepare(3, 0, pack(b"\x01")))
    assert recorder.calls[1][:2] == ("launch", b"\x00\x00\x00\x00\x01")


def test_a_stream_of_torch_and_one_of_pycuda_wait_for_each_other(cuda: Cuda, recorder: Recorder) -> None:
    loaded = load(cuda, recorder)
    launch = loaded.prepare(3, 42, pack(b"\x01"))
    assert recorder.calls.count(("stream", 1)) == 1 and loaded.prepare(4, 42, pack(b"\x01")).stream is launch.stream
    recorder.calls.clear()
    loaded.start(launch)
    names = [c if isinstance(c, str) else c[:3] if c[0] == "wait" else c[0] for c in recorder.calls]
    assert names == ["push", ("wait", 77, 42), "launch", ("wait", 42, 77), "pop"]
    mine = SimpleNamespace(handle=42)
    assert loaded.prepare_own(3, mine, pack(b"\x01")) == pycuda_loader.PyCudaStart((3, 1, 1), np.void(b"\x01"), mine, 0)


@pytest.mark.parametrize("refused", ["load", "function", "attribute"])
def test_an_error_of_loading_is_that_of_the_default_loader(cuda: Cuda, recorder: Recorder, refused: str) -> None:
    recorder.refuses = {refused}
    with pytest.raises(CuirError) as caught:
        load(cuda, recorder)
    (result,) = caught.value.diagnostics
    assert result.code == "L011" and "invalid argument" in result.message and result.span is not None
    assert recorder.calls[-1] == "pop"


def test_an_error_of_a_launch_leaves_the_context_as_it_was(cuda: Cuda, recorder: Recorder) -> None:
    loaded = load(cuda, recorder)
    recorder.refuses = {"launch"}
    with pytest.raises(CuirError, match="L011"):
        loaded.start(loaded.prepare(3, 0, pack(b"\x01")))
    assert recorder.calls.count("push") == recorder.calls.count("pop")


# ---- compiling
class CompileError(Exception):
    def __init__(self, stderr: str):
        self.stdout, self.stderr = "", stderr


def compile_with(monkeypatch: pytest.MonkeyPatch, compile_source: Any) -> None:
    """Stand in for pycuda.compiler.compile."""
    monkeypatch.setitem(sys.modules, "pycuda", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "pycuda.compiler", SimpleNamespace(compile=compile_source))
    monkeypatch.setattr(pycuda_loader, "import_pycuda", lambda: SimpleNamespace(CompileError=CompileError))


def test_the_compiler_gets_the_flags_of_the_default_way(monkeypatch: pytest.MonkeyPatch, pretend: Any) -> None:
    import warnings

    requests: list[Any] = []

    def compile_source(source: str, nvcc: str, options: list[str], **named: Any) -> bytes:
        requests.append((source, options, named))
        warnings.warn("The CUDA compiler succeeded, but said the following:\nptxas info : Used 40 registers, used 1 barriers", stacklevel=2)
        return b"cubin"

    pretend()
    compile_with(monkeypatch, compile_source)
    cuda = lower_named("flash_fwd_cluster")
    first = pycuda_loader.compile_with_pycuda(cuda)
    assert pycuda_loader.compile_with_pycuda(cuda).cubin == first.cubin == b"cubin" and len(requests) == 1  # the cache has it
    source, options, named = requests[0]
    assert source == cuda.with_cluster_dims().source and options == list(pycuda_loader.FLAGS) and first.resources.registers == 40
    assert named["no_extern_c"] and named["target"] == "cubin" and named["arch"].startswith("compute_") and named["code"].startswith("sm_")


def test_a_message_of_the_compiler_is_that_of_the_default_way(monkeypatch: pytest.MonkeyPatch, pretend: Any) -> None:
    cuda = lower(kernel("a = n + 1\nstore(I[0], a)", HEAD))
    number = next(i for i, line in enumerate(cuda.source.split("\n"), 1) if "I[0] = " in line)

    def compile_source(*_: Any, **__: Any) -> bytes:
        raise CompileError(f"kernel.cu({number}): error: expected a monkey")

    pretend()
    compile_with(monkeypatch, compile_source)
    with pytest.raises(CuirError) as caught:
        pycuda_loader.compile_with_pycuda(cuda)
    (result,) = caught.value.diagnostics
    assert result.code == "L010" and result.span and result.span.line == 9 and "expected a monkey" in result.message


def test_registers_that_spill_are_warned_of_as_on_the_default_way(monkeypatch: pytest.MonkeyPatch, pretend: Any, cuda: Cuda) -> None:
    import warnings

    def compile_source(*_: Any, **__: Any) -> bytes:
        warnings.warn("ptxas info : 16 bytes stack frame, 24 bytes spill stores, 32 bytes spill loads", stacklevel=2)
        return b"cubin"

    pretend()
    compile_with(monkeypatch, compile_source)
    with pytest.warns(UserWarning) as caught:
        kernel = cuda.pycuda()
    (warned,) = {str(w.message) for w in caught}
    assert "24 bytes of stores" in warned and "32 bytes of loads" in warned and kernel.spilled == 24
