"""Run forms on a card, by the driver's API alone, and record their results.

    python -m tests.ptx.card.record FILE [FAMILY ...]    runs families, all if none is named
    python -m tests.ptx.card.record --keep FILE ...      records what the files hold

A process runs many kernels; one that fails ends it, and the next process goes on behind that kernel.
"""

from __future__ import annotations

import base64
import ctypes
import json
import lzma
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from . import bulk_forms, conversion_forms, float_forms, integer_forms, memory_forms, product_forms, tensor_forms, warp_forms
from .forms import Array, Box, Form, write_module

FAMILIES = {
    "floats": float_forms.list_forms,
    "integers": integer_forms.list_forms,
    "conversions": conversion_forms.list_forms,
    "warps": warp_forms.list_forms,
    "products": product_forms.list_forms,
    "memory": memory_forms.list_forms,
    "bulk": bulk_forms.list_forms,
    "tensors": tensor_forms.list_forms,
}
RESULTS = Path(__file__).parent / "results.jsonl.xz"
IN_A_MODULE = 64  # kernels
SECONDS = 25  # of a process
MAP_TYPES = {"u8": 0, "u16": 1, "u32": 2, "s32": 3, "u64": 4, "s64": 5, "f16": 6, "f32": 7, "f64": 8, "bf16": 9}
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}


class Part(NamedTuple):
    """Some forms of a family, in one module."""

    family: str
    first: int
    last: int

    @property
    def forms(self) -> Sequence[Form]:
        """The forms."""
        return FAMILIES[self.family]()[self.first : self.last]


def split_families(names: Sequence[str]) -> list[Part]:
    """Return the modules of families."""
    counts = {name: len(FAMILIES[name]()) for name in names}
    return [Part(name, i, min(i + IN_A_MODULE, n)) for name, n in counts.items() for i in range(0, n, IN_A_MODULE)]


def assemble(part: Part, folder: Path) -> tuple[Path, str]:
    """Return the machine code of a module, and what the assembler says."""
    source = folder / f"{part.family}_{part.first}.ptx"
    source.write_text(write_module(part.forms), encoding="utf-8")
    target = source.with_suffix(".cubin")
    command = ["nvcc", "-cubin", "-arch=sm_90a", "-o", str(target), str(source)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    return target, process.stdout + process.stderr


# ---- a process on the card
class Card:
    """The first device, by the driver's API."""

    def __init__(self, cubin: bytes):
        self.driver = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(self.module), cubin)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the driver. Raises OSError if it fails."""
        status = getattr(self.driver, name)(*arguments)
        if status:
            raise OSError(f"{name}: error {status}")

    def allocate(self, data: Array) -> ctypes.c_uint64:
        """Return the address of memory that holds bytes."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(len(data)))
        self.call("cuMemcpyHtoD_v2", address, data.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(len(data)))
        return address

    def run(self, form: Form) -> Array:
        """Return the bytes that the kernel of a form writes."""
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), self.module, form.entry.encode())
        output = np.zeros(form.nbytes, np.uint8)
        addresses = [self.allocate(np.ascontiguousarray(form.draw())), self.allocate(output)]
        arguments: list[object] = list(addresses)
        if form.box is not None:
            arguments.append(self.encode_box(form.box, addresses[form.box.written].value + form.box.offset))
        pointers = (ctypes.c_void_p * len(arguments))(*[ctypes.addressof(a) for a in arguments])  # type: ignore[arg-type]
        self.call("cuLaunchKernel", function, 1, 1, 1, form.threads, 1, 1, 0, None, pointers, None)
        self.call("cuCtxSynchronize")
        self.call("cuMemcpyDtoH_v2", output.ctypes.data_as(ctypes.c_void_p), addresses[1], ctypes.c_size_t(len(output)))
        for address in addresses:
            self.call("cuMemFree_v2", address)
        return output

    def encode_box(self, box: Box, address: int) -> ctypes.Array[ctypes.c_uint64]:
        """Return a tensor map; the alignment of 64 bytes comes from room around it."""
        room = (ctypes.c_uint64 * 24)()
        shift = -ctypes.addressof(room) % 64
        tensor = (ctypes.c_uint64 * 16).from_buffer(room, shift)
        rank = len(box.sizes)
        sizes, strides = (ctypes.c_uint64 * rank)(*box.sizes), (ctypes.c_uint64 * max(1, rank - 1))(*box.strides)
        lengths, steps = (ctypes.c_uint32 * rank)(*box.box), (ctypes.c_uint32 * rank)(*box.steps)
        base = ctypes.c_void_p(address)
        kind = MAP_TYPES[box.type]
        self.call("cuTensorMapEncodeTiled", tensor, kind, rank, base, sizes, strides, lengths, steps, 0, SWIZZLES[box.swizzle], 0, 0)
        return tensor


def work(cubin: Path, part: Part, done: int) -> None:
    """Run the forms of a module but the first ones, and print a line for each."""
    forms = part.forms
    try:
        card = Card(cubin.read_bytes())
    except OSError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return
    for form in forms[done:]:
        try:
            line = {"form": form.name, "output": base64.b64encode(card.run(form).tobytes()).decode()}
        except OSError as error:
            print(json.dumps({"form": form.name, "error": str(error)}), flush=True)
            return
        print(json.dumps(line), flush=True)


def run_part(part: Part, cubin: Path) -> Iterator[dict[str, str]]:
    """Yield a line for each form of a module: its output, or its error."""
    forms, done = part.forms, 0
    while done < len(forms):
        command = [
            sys.executable,
            "-m",
            "tests.ptx.card.record",
            "--work",
            str(cubin),
            part.family,
            str(part.first),
            str(part.last),
            str(done),
        ]
        try:
            process = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
            output, reason = process.stdout, process.stderr[-300:]
        except subprocess.TimeoutExpired as late:
            output, reason = (late.stdout or b"").decode(), "no end"
        lines = [json.loads(line) for line in output.splitlines()]
        if any("form" not in line for line in lines):
            yield {"family": part.family, **lines[0]}
            return
        yield from ({"family": part.family, **line} for line in lines)
        done += len(lines)
        if done < len(forms) and (not lines or "error" not in lines[-1]):
            yield {"family": part.family, "form": forms[done].name, "error": reason}
            done += 1


def run_families(names: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield a line for each form of families, run on the card."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(12) as pool:

        def run(part: Part) -> list[dict[str, str]]:
            cubin, said = assemble(part, Path(folder))
            return list(run_part(part, cubin)) if cubin.exists() else [{"family": part.family, "error": said}]

        for lines in pool.map(run, split_families(names)):
            yield from lines


# ---- what is recorded
def keep_results(files: Sequence[str], target: Path) -> None:
    """Write those elements of results that forms keep; a later file's count where several have them."""
    lines = [json.loads(line) for name in files for line in Path(name).read_text(encoding="utf-8").splitlines()]
    outputs = {(line["family"], line["form"]): base64.b64decode(line["output"]) for line in lines if "output" in line}
    kept = []
    for family, list_forms in FAMILIES.items():
        for form in list_forms():
            if (family, form.name) in outputs:
                elements = form.choose(np.frombuffer(outputs[family, form.name], np.uint8))
                kept.append(json.dumps({"family": family, "form": form.name, "kept": elements.tobytes().hex()}))
    target.write_bytes(lzma.compress(("\n".join(kept) + "\n").encode(), preset=9 | lzma.PRESET_EXTREME))


def read_results() -> dict[tuple[str, str], bytes]:
    """Return the recorded results, by family and form."""
    lines = map(json.loads, lzma.decompress(RESULTS.read_bytes()).decode().splitlines())
    return {(line["family"], line["form"]): bytes.fromhex(line["kept"]) for line in lines}


def main(arguments: Sequence[str]) -> None:
    """Run families, all if none is named, and write each result to a file as it comes."""
    with open(arguments[0], "w", encoding="utf-8") as file:
        for line in run_families(list(arguments[1:]) or list(FAMILIES)):
            if "error" in line:
                print(line, file=sys.stderr)
            file.write(json.dumps(line) + "\n")
            file.flush()


if __name__ == "__main__":
    if sys.argv[1] == "--keep":
        keep_results(sys.argv[2:], RESULTS)
    elif sys.argv[1] == "--work":
        _, _, place, family, *numbers = sys.argv
        first, last, done = (int(n) for n in numbers)
        work(Path(place), Part(family, first, last), done)
    else:
        main(sys.argv[1:])
