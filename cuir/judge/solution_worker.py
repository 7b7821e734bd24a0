"""Process that holds a solution and runs it when the judge asks: `python -m cuir.judge.solution_worker`.

Nothing of the judge or the reference is in it, so that a solution can neither read nor change them.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import socket
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.testing
import torch.utils.cpp_extension

from ..spec.loading import import_file
from ..text.diagnostics import CuirError
from .arena_tensors import BASE, DeviceArena, use_device
from .extension_builds import build_extension, join_sources, list_functions
from .extension_calls import ExtensionHost
from .launch_solutions import LaunchSolution
from .solution_entries import ENTRIES, find_entry
from .triton_launches import serve_triton

WATCHED = (
    torch,
    torch.nn.functional,
    torch.cuda,
    torch.cuda.Event,
    torch.Tensor,
    torch.testing,
    torch.nn.Module,
    time,
    torch.autograd.profiler,
)
SIDE_STREAM = 0x100 + 63  # the handle of a stream of the caller, which the stand-in never gives out


class CudaStandIn:
    """Stand-ins for functions of `torch.cuda` in the process.

    Attributes:
        current: Handle of the current stream.
    """

    def __init__(self, arena: DeviceArena):
        self.arena, self.current = arena, 0

    def make_stream(self, *arguments: object, **named: object) -> SimpleNamespace:
        """Return a stream of PyTorch's pool."""
        handle = ctypes.c_void_p()
        self.arena.runtime.cudaStreamCreateWithFlags(ctypes.byref(handle), 1)
        return self.wrap_stream(handle.value or 0)

    def wrap_stream(self, handle: int) -> SimpleNamespace:
        """Return a stream by its handle."""
        runtime = self.arena.runtime

        def wait(other: Any) -> None:
            event = self.make_event()
            event.record(other)
            runtime.cudaStreamWaitEvent(ctypes.c_void_p(handle), event.handle, 0)

        return SimpleNamespace(
            cuda_stream=handle,
            synchronize=lambda: runtime.cudaStreamSynchronize(ctypes.c_void_p(handle)),
            wait_stream=wait,
            wait_event=lambda event: runtime.cudaStreamWaitEvent(ctypes.c_void_p(handle), event.handle, 0),
            record_event=lambda event=None: self.make_event().record(SimpleNamespace(cuda_stream=handle)),
            query=lambda: True,
        )

    def make_event(self, *arguments: object, **named: object) -> SimpleNamespace:
        """Return an event."""
        handle, runtime = ctypes.c_void_p(), self.arena.runtime
        runtime.cudaEventCreate(ctypes.byref(handle))
        event = SimpleNamespace(handle=handle, query=lambda: True, elapsed_time=lambda other: 1.0)

        def record(stream: Any = None) -> SimpleNamespace:
            runtime.cudaEventRecord(handle, ctypes.c_void_p(self.current if stream is None else stream.cuda_stream))
            return event

        event.record = record
        event.synchronize = lambda: runtime.cudaEventSynchronize(handle)
        event.wait = lambda stream=None: runtime.cudaStreamWaitEvent(
            ctypes.c_void_p(self.current if stream is None else stream.cuda_stream), handle, 0
        )
        return event

    @contextlib.contextmanager
    def use_stream(self, stream: Any) -> Iterator[None]:
        """Make a stream the current one within a block."""
        before, self.current = self.current, stream.cuda_stream if stream is not None else self.current
        try:
            yield
        finally:
            self.current = before

    def install(self) -> None:
        """Put the stand-ins into `torch.cuda`."""
        properties = SimpleNamespace(
            **{"name": "the machine for PTX", "major": 9, "minor": 0, "multi_processor_count": 2, "warp_size": 32},
            **{"total_memory": self.arena.capacity, "shared_memory_per_block_optin": 227 << 10, "max_threads_per_multi_processor": 2048},
        )
        answers: dict[str, Callable[..., object]] = {
            "is_available": lambda: True,
            "device_count": lambda: 1,
            "current_device": lambda: 0,
            "synchronize": lambda *a, **k: self.arena.runtime.cudaDeviceSynchronize(),
            "current_stream": lambda *a: self.wrap_stream(self.current),
            "default_stream": lambda *a: self.wrap_stream(0),
            "Stream": self.make_stream,
            "Event": self.make_event,
            "stream": self.use_stream,
            "get_device_capability": lambda *a: (9, 0),
            "get_device_properties": lambda *a: properties,
            "get_device_name": lambda *a: properties.name,
            "empty_cache": lambda: None,
            "set_device": lambda *a: None,
            "device": lambda *a: contextlib.nullcontext(),
            "is_current_stream_capturing": lambda: False,
        }
        for name, answer in answers.items():
            setattr(torch.cuda, name, answer)


class SolutionWorker:
    """The solution's side of the judge.

    Attributes:
        inputs: Tensors of the last call, whose memory a later call may take again.
    """

    def __init__(self, channel: socket.socket, arena: DeviceArena, arch: str):
        self.stream = channel.makefile("rwb")
        self.arena, self.arch = arena, arch
        self.cuda = CudaStandIn(arena)
        self.cuda.install()
        self.host = ExtensionHost(arena, lambda: self.cuda.current)
        self.inputs: list[object] = []
        self.results: list[torch.Tensor] = []
        self.run: Callable[..., object] = lambda *a: None
        for name, replacement in (("load_inline", self.load_inline), ("load", self.load_files)):
            setattr(torch.utils.cpp_extension, name, replacement)
        serve_triton(arena, arch, lambda: self.cuda.current)
        self.watched = {(owner.__name__, name): value for owner in WATCHED for name, value in vars(owner).items() if callable(value)}

    # ---- extensions
    def load_inline(self, name: str, cpp_sources: Any = "", cuda_sources: Any = "", functions: Any = None, **options: Any) -> ModuleType:
        """Compile an extension from texts, as PyTorch's function of this name."""
        texts = [t for s in (cuda_sources, cpp_sources) if s for t in ([s] if isinstance(s, str) else s)]
        names = [functions] if isinstance(functions, str) else list(functions or [])
        flags = [*(options.get("extra_cuda_cflags") or ()), *(options.get("extra_cflags") or ())]
        return self.load(join_sources(texts, names), name, flags)

    def load_files(self, name: str, sources: Any, **options: Any) -> ModuleType:
        """Compile an extension from files, as PyTorch's function of this name."""
        paths = [Path(p).resolve() for p in ([sources] if isinstance(sources, str) else sources)]
        texts = [f'#include "{p}"' for p in sorted(paths, key=lambda p: p.suffix != ".cu")]
        return self.load(join_sources(texts, []), name, list(options.get("extra_cuda_cflags") or ()))

    def load(self, text: str, name: str, flags: list[str]) -> ModuleType:
        """Compile and load an extension."""
        return self.host.load(build_extension(text, "".join(c if c.isalnum() else "_" for c in name), self.arch, flags), name)

    # ---- commands of the judge
    def load_solution(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Load the solution, and make its module."""
        path = Path(request["path"])
        given = torch.load(request["file"], weights_only=True)
        took = False
        with use_device(self.arena):
            if request["launch"]:
                self.run = LaunchSolution(path, Path(request["launch"]), self.arena, self.arch, lambda: self.cuda.current).run
                return {"took": False}
            if path.suffix == ".cuir":
                self.run = self.load_program(path)
                return {"took": False}
            if path.suffix == ".cu":
                text = path.read_text(encoding="utf-8")
                module: ModuleType = self.load(join_sources([text], list_functions(text)), path.stem, [])
            else:
                module = import_file(path, "the solution")
            program = next((v for v in vars(module).values() if type(v).__name__ == "DecoratedKernel"), None)
            if program is not None and not any(n in vars(module) for n in ENTRIES):
                self.run = self.load_program(program)
                return {"took": False}
            entry = getattr(module, find_entry(module, path.suffix == ".cu"))
            if isinstance(entry, type):
                torch.manual_seed(request["seed"])
                made = entry(*[self.arena.move(x) if isinstance(x, torch.Tensor) else x for x in given["init"]])
                took = self.take_state(made, given["state"])
                made.cuda()
                entry = made
            self.run = entry
        return {"took": took}

    def load_program(self, origin: object) -> Callable[..., object]:
        """Return what runs a program in CuIR."""
        from .cuir_solutions import CuirSolution  # the compiler's import takes long

        return CuirSolution(origin, self.arena, lambda: self.cuda.current).run

    def take_state(self, module: torch.nn.Module, state: Mapping[str, torch.Tensor]) -> bool:
        """Give the solution the reference's parameters; return whether it has them under the same names."""
        own = module.state_dict()
        if own.keys() != state.keys() or any(own[n].shape != x.shape for n, x in state.items()):
            return False
        module.load_state_dict(state)
        return True

    def call(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Run the solution once, and write what it returned."""
        given = torch.load(request["file"], weights_only=True)
        stream = SIDE_STREAM if request["side_stream"] else 0
        self.arena.recorded.clear()
        kept = self.results if request["keep"] else []
        with use_device(self.arena):
            if not request["same_memory"]:
                self.inputs = [self.arena.move(x) if isinstance(x, torch.Tensor) else x for x in given]
            else:
                for old, new in zip(self.inputs, given):
                    if isinstance(old, torch.Tensor):
                        old.copy_(new)
            self.arena.recorded.clear()
            threads = threading.active_count()
            self.cuda.current = stream
            self.arena.runtime.cuir_begin_call(ctypes.c_void_p(stream))
            returned = self.run(*self.inputs)
            is_open = self.arena.runtime.cuir_end_call()
            recorded = list(self.arena.recorded)
            self.cuda.current = 0
            outputs = list(returned) if isinstance(returned, (tuple, list)) else [returned]
        answer: dict[str, object] = {"streams": is_open, "recorded": recorded, "kinds": [self.describe_kind(x) for x in outputs]}
        answer["threads"] = threading.active_count() - threads
        answer["changed"] = self.list_changed()
        tensors = [x for x in outputs if isinstance(x, torch.Tensor)]
        torch.save(
            {
                "outputs": [self.copy(x) for x in tensors],
                "undefined": [self.find_undefined(x) for x in tensors],
                "inputs": [self.copy(x) for x in self.inputs if isinstance(x, torch.Tensor)],
                "kept": [self.copy(x) for x in kept],
            },
            request["answer"],
        )
        answer["places"] = [[x.untyped_storage().data_ptr(), x.data_ptr()] for x in tensors]
        self.results = tensors
        return answer

    def copy(self, x: torch.Tensor) -> torch.Tensor:
        """Return a plain copy in the host's memory."""
        return x.detach().as_subclass(torch.Tensor).clone().contiguous()

    def find_undefined(self, x: torch.Tensor) -> torch.Tensor:
        """Return which elements of a tensor nothing has written."""
        if not self.arena.holds(x) or not x.numel():
            return torch.zeros(x.shape, dtype=torch.bool)
        first = (x.data_ptr() - BASE) // x.element_size() * x.element_size()
        offsets = torch.as_strided(torch.arange(x.untyped_storage().nbytes() // x.element_size()), x.shape, x.stride())
        return self.arena.defined[first + (offsets - offsets.reshape(-1)[0]) * x.element_size()] == 0

    def describe_kind(self, value: object) -> str:
        """Return what a solution returned: "tensor" for a plain tensor on the device."""
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            return type(value).__name__
        assert isinstance(value, torch.Tensor)
        return "tensor" if self.arena.holds(value) or not value.numel() else "a tensor in the host's memory"

    def list_changed(self) -> list[str]:
        """Return what the solution has put into modules of others."""
        now = {(owner.__name__, name): value for owner in WATCHED for name, value in vars(owner).items()}
        return sorted({f"{owner}.{name}" for (owner, name), value in self.watched.items() if not is_kept(value, now.get((owner, name)))})

    def serve(self) -> None:
        """Answer the judge until it leaves."""
        answers = {"load": self.load_solution, "call": self.call}
        for line in self.stream:
            request = json.loads(line)
            try:
                answer = {"ok": True, **answers[request["do"]](request)}
            except CuirError as error:
                cause = error.__cause__
                answer = {"ok": False, "error": error.diagnostics[0].message, "type": type(cause).__name__ if cause else "CuirError"}
            except BaseException as error:  # a solution may raise anything
                answer = {"ok": False, "error": f"{type(error).__name__}: {error}"[:2000], "type": type(error).__name__}
            self.stream.write(json.dumps(answer).encode() + b"\n")
            self.stream.flush()
            gc.collect()


def is_kept(before: object, now: object) -> bool:
    """Return whether a function is the same, or within what PyTorch's compiler puts around it when it is imported."""
    code = getattr(now, "__code__", None)
    wraps = getattr(now, "__wrapped__", None) is before
    return now is before or (wraps and code is not None and Path(code.co_filename).is_relative_to(Path(torch.__file__).parent))


def main() -> None:
    """Serve the judge on a socket; arguments: socket, file of what is defined, capacity, architecture."""
    channel, shadow, capacity = (int(a) for a in sys.argv[1:4])
    torch.set_num_threads(1)
    os.environ.setdefault("CUDA_HOME", "/usr/local/cuda")
    sys.modules.setdefault("cuir_solution", types.ModuleType("cuir_solution"))
    SolutionWorker(socket.socket(fileno=channel), DeviceArena(shadow, capacity), sys.argv[4]).serve()


if __name__ == "__main__":
    main()
