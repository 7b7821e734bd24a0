"""A user's own host program on the stand-in for CUDA's runtime: each of its launches runs in the machine for PTX.

The stand-in (`ptx/launch/cuda_runtime.c`) tells what messages hold. Device memory is a file that both map.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ..ptx import machine as machine  # registers what instructions do
from ..ptx.isa.tensor_boxes import SWIZZLES, TILED, TensorBoxes
from ..ptx.launch.device_memory import Allocation
from ..ptx.launch.fat_binaries import BUILD, read_ptx
from ..ptx.launch.kernel_launch import KernelRun, LoadedModule, PlacedCall
from ..ptx.launch.stand_in import build_stand_in, find_runtime
from ..ptx.module import read_module
from ..text.diagnostics import CuirError
from .cuda_runs import RunLedger

START = 1 << 20  # of memory that the program allocates; below lie variables
STDERR = 2  # the process's own
GAP = 256  # bytes behind the last allocation
FAILED, INVALID = 719, 13  # cudaErrorLaunchFailure, cudaErrorInvalidSymbol
SAME_ADDRESSES = 0x0040000  # personality of a process whose libraries lie far from device memory
HEAD, REPLY = struct.Struct("<II"), struct.Struct("<iI")


class HostProgram:
    """A host program, and the machine's side of its calls.

    Attributes:
        ledger: What its launches showed.
        tell: Takes a line about each launch before it runs.
    """

    def __init__(self, program: Path, schedule: str, ledger: RunLedger, capacity: int, tell: Callable[[str], None] = lambda text: None):
        self.program, self.schedule, self.ledger, self.tell = program, schedule, ledger, tell
        self.files = [os.memfd_create(name) for name in ("device", "defined")]
        for file in self.files:
            os.ftruncate(file, capacity)
        self.capacity = capacity
        self.arena, self.defined = (np.frombuffer(mmap.mmap(file, capacity), np.uint8) for file in self.files)
        self.binaries: list[bytes] = []
        self.modules: dict[int, LoadedModule] = {}
        self.answers: dict[int, Callable[[bytes], tuple[int, bytes]]] = {
            1: self.register,
            2: self.find_function,
            4: self.launch,
            5: self.write_variable,
            6: self.read_variable,
            7: self.encode_map,
            8: self.refuse,
        }

    def run(self, arguments: Sequence[str], to_stderr: bool = False) -> int:
        """Run the program to its end; return its exit code. Raises CuirError for a call that the stand-in lacks."""
        process, ours = self.start([str(self.program.resolve()), *arguments], stdout=STDERR if to_stderr else None)
        try:
            self._serve(ours)
        except BaseException:
            process.kill()
            raise
        finally:
            ours.close()
            process.wait()
        return process.returncode

    def start(
        self, command: Sequence[str], files: Sequence[int] = (), stdout: int | None = None, stderr: int | None = None
    ) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """Start a process on the stand-in; return it, and the socket of its messages.

        files: further descriptors that it keeps. Raises CuirError U503, O121.
        """
        ours, theirs = socket.socketpair()
        environment = {
            **os.environ,
            "LD_PRELOAD": str(build_stand_in()),
            "LD_LIBRARY_PATH": f"{find_runtime().parent}:{os.environ.get('LD_LIBRARY_PATH', '')}",
            "CUIR_CUDA_MACHINE": f"{theirs.fileno()},{self.files[0]},{self.files[1]},{self.capacity}",
        }
        process = subprocess.Popen(
            list(command),
            env=environment,
            pass_fds=(theirs.fileno(), *self.files, *files),
            stdout=stdout,
            stderr=stderr,
            preexec_fn=lambda: ctypes.CDLL(None).personality(SAME_ADDRESSES) and None,
        )
        theirs.close()
        return process, ours

    def _serve(self, channel: socket.socket) -> None:
        """Answer messages until the program ends."""
        with channel.makefile("rb") as stream:
            while len(head := stream.read(HEAD.size)) == HEAD.size:
                kind, size = HEAD.unpack(head)
                status, answer = self.answers[kind](stream.read(size))
                channel.sendall(REPLY.pack(status, len(answer)) + answer)

    def _find_module(self, number: int) -> LoadedModule:
        """Return a module by its number, read when it is first used. Raises CuirError O121 without PTX."""
        if number not in self.modules:
            texts = read_ptx(self.binaries[number - 1])
            if not texts:
                raise CuirError.of("O121", f"`{self.program}` holds no PTX", hint=f"build it by {BUILD}")
            self.modules[number] = LoadedModule(read_module(texts[0]), self.program)
        return self.modules[number]

    # ---- messages
    def register(self, data: bytes) -> tuple[int, bytes]:
        """Take a fat binary."""
        self.binaries.append(data)
        return 0, b""

    def find_function(self, data: bytes) -> tuple[int, bytes]:
        """Return how many parameters a kernel has, with their offsets and sizes."""
        number, _, name = data.rstrip(b"\0").decode().partition(" ")
        function = self._find_module(int(number)).module.functions.get(name)
        if function is None:
            return -1, b""
        offset, rows = 0, b""
        for v in function.parameters:
            offset = -(-offset // v.alignment) * v.alignment
            rows += struct.pack("<II", offset, v.size or 0)
            offset += v.size or 0
        return len(function.parameters), rows

    def launch(self, data: bytes) -> tuple[int, bytes]:
        """Run a launch; the status is that of the runtime."""
        module, *sizes, shared, count, size = struct.unpack_from("<13I", data)
        places = [struct.unpack_from("<QQ", data, 52 + 16 * i) for i in range(count)]
        at = 52 + 16 * count
        name = data[at + size :].rstrip(b"\0").decode()
        allocations = tuple(
            Allocation(f"allocation {i + 1} of {n:,} bytes", start, n, self.arena[start : start + n], self.defined[start : start + n])
            for i, (start, n) in enumerate(places)
            if n
        )
        end = max([START, *(start + n for start, n in places)]) + GAP
        cluster = tuple(sizes[6:9]) if sizes[6] else None
        call = PlacedCall((*sizes[:3],), (*sizes[3:6],), shared, cluster, data[at : at + size], allocations, end)
        self.tell(f"launch {self.ledger.launches + 1}: {name}, {sizes[0]} x {sizes[1]} x {sizes[2]} CTAs")
        return self.run_launch(module, name, call), b""

    def run_launch(self, module: int, name: str, call: PlacedCall) -> int:
        """Run a launch of a kernel; return the status of the runtime."""
        try:
            run = KernelRun(self._find_module(module).choose(name), call, self.schedule)
            return 0 if self.ledger.execute(run) else FAILED
        except CuirError as error:
            self.ledger.enter(error.diagnostics, self.schedule)
            return FAILED

    def _find_variable(self, data: bytes) -> tuple[np.ndarray | None, bytes]:
        """Return the bytes of a variable that a message names, and what follows the name."""
        module, offset, n = struct.unpack_from("<QQQ", data)
        name, _, rest = data[24:].partition(b"\0")
        state = self._find_module(module).state.get(name.decode())
        return (None if state is None else state[offset : offset + n]), rest

    def write_variable(self, data: bytes) -> tuple[int, bytes]:
        """Write a variable of a module."""
        place, content = self._find_variable(data)
        if place is None:
            return INVALID, b""
        place[:] = np.frombuffer(content, np.uint8)
        return 0, b""

    def read_variable(self, data: bytes) -> tuple[int, bytes]:
        """Read a variable of a module."""
        place, _ = self._find_variable(data)
        return (INVALID, b"") if place is None else (0, place.tobytes())

    def encode_map(self, data: bytes) -> tuple[int, bytes]:
        """Encode a tensor map."""
        kind, rank, swizzle, address, *numbers = struct.unpack("<IIIQ5Q5Q5I5I", data)
        sizes, strides, box, steps = numbers[:rank], numbers[5 : 5 + rank - 1], numbers[10 : 10 + rank], numbers[15 : 15 + rank]
        if kind not in TILED or swizzle >= len(SWIZZLES):
            return 1, b""
        boxes = TensorBoxes(address, TILED[kind], tuple(sizes), tuple(strides), tuple(box), tuple(steps), SWIZZLES[swizzle])
        return 0, boxes.encode()

    def refuse(self, data: bytes) -> tuple[int, bytes]:
        """Raise CuirError U100 with the name of a call that the stand-in lacks."""
        name = data.rstrip(b"\0").decode()
        raise CuirError.of("U100", f"`{self.program.name}` calls `{name}`, which the stand-in for CUDA's runtime does not have")
