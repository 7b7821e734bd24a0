"""Lowered kernels in the machine for PTX: compiled by nvcc, launched on a problem's arguments, findings at lines of the program.

The launch is that of `runtime/launch.py`: tensor maps, pointers with strides, the counter, scalars and dims.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from ..arguments.binding import Argument, add_scratch, bind
from ..arguments.tile_count import count_tiles
from ..caching.disk import PTX, write_whole
from ..lowering import Cuda
from ..lowering.lowered import TensorMap as LoweredMap
from ..ptx import machine as machine  # registers what instructions do
from ..ptx.launch import KernelCall, LoadedKernel, LoadedModule
from ..ptx.launch.compile_ptx import Build, compile_to_ptx
from ..ptx.launch.kernel_launch import KernelRun
from ..ptx.launch.structs import Argument as PtxArgument
from ..ptx.launch.tensor_maps import TensorMap
from ..ptx.module import read_module
from ..runtime.argument_buffer import round_parameter
from ..runtime.launch_description import count_ctas
from ..text.diagnostics import CuirError, Diagnostic, Note
from ..text.source import Span

RESIDENT = 2  # CTAs (or clusters) that a launch has at most, as on a very small GPU
SWIZZLE = 128  # bytes of the pattern of a swizzled map


class PtxKernel:
    """A lowered kernel in the machine.

    Attributes:
        ran: Numbers of the instructions that launches so far have run.
        lanes: Instructions of threads that they have run.
    """

    def __init__(self, cuda: Cuda, kernel: LoadedKernel):
        self.cuda, self.kernel = cuda, kernel
        self.ran: set[int] = set()
        self.lanes = 0

    @property
    def coverage(self) -> float:
        """Share of the instructions that have run."""
        return len(self.ran) / max(1, len(self.kernel.module.find_program(self.kernel.name).instructions))

    def launch(self, arguments: Mapping[str, Argument], schedule: str, resident: int = RESIDENT) -> None:
        """Run the kernel; tensors take what it writes. Raises CuirError with all findings, at lines of the program."""
        run = KernelRun(self.kernel, make_call(self.cuda, arguments, resident), schedule)
        try:
            run.execute()
        except CuirError:
            if not run.findings.diagnostics:
                raise
        self.ran |= run.list_ran()
        self.lanes += run.state.counts.lanes
        if run.findings.diagnostics:
            raise CuirError([self.place(d) for d in run.findings.diagnostics])

    def place(self, d: Diagnostic) -> Diagnostic:
        """Return a finding at the statements of the program, with the lines of CUDA as notes."""
        spans = [d.span, *(n.span for n in d.notes)]
        found = [self._find_statement(s) for s in spans]
        notes = tuple(replace(n, span=s or n.span) for n, s in zip(d.notes, found[1:]))
        lowered = tuple(Note("in the lowered text", s) for s, f in zip(spans, found) if s is not None and f is not None)
        return replace(d, span=found[0] or d.span, notes=(*notes, *lowered))

    def _find_statement(self, span: Span | None) -> Span | None:
        """Return the statement that a place in the lowered text, or in a function called there, comes from."""
        while span is not None:
            if span.source.name == self.kernel.module.path.name and span.line in self.cuda.line_map:
                return self.cuda.line_map[span.line]
            span = span.via
        return None


def compile_lowered(cuda: Cuda) -> PtxKernel:
    """Compile a lowered kernel to PTX, or read it from the cache. Raises CuirError U503, U504, O121, O123."""
    cuda = cuda.with_cluster_dims()
    path = PTX.path(cuda.digest, ".cu")
    if not path.is_file():
        write_whole({path: cuda.source.encode()})
    module = LoadedModule(read_module(compile_to_ptx(path, Build(cuda.arch, slim=True))), path)
    return PtxKernel(cuda, module.choose(cuda.name))


def make_call(cuda: Cuda, arguments: Mapping[str, Argument], resident: int) -> KernelCall:
    """Return the launch of a lowered kernel. Raises CuirError as `bind`."""
    checked = cuda.checked
    whole = add_scratch(checked.tensors, arguments)
    bound = bind(checked.origin, whole, dict(checked.consts))
    scalars = {s: whole[s] for s in cuda.scalars}
    count = count_tiles(checked, bound.dims, scalars)  # type: ignore[arg-type]
    grid = count_ctas(cuda, count, resident)
    values: list[PtxArgument] = [_make_map(m, whole[m.tensor]) for m in cuda.maps]  # type: ignore[arg-type]
    scratch = {t.name for t in checked.tensors if t.scratch}
    for name in cuda.tensors:
        tensor = whole[name]
        assert isinstance(tensor, torch.Tensor)
        values += [tensor, *(() if name in scratch else tensor.stride()[:-1])]
    if cuda.counter:
        values.append(torch.zeros(1, dtype=torch.int32))
    values += [round_parameter(p.dtype.name, whole[p.name]) for p in checked.scalars]  # type: ignore[arg-type]
    values += [bound.dims[d] for d in cuda.dims]
    return KernelCall(max(grid, 1), cuda.threads, *values, shared=cuda.shared_bytes)


def _make_map(m: LoweredMap, tensor: torch.Tensor) -> TensorMap:
    """Return a tensor map; dims of one element, whose strides may be anything, get the strides that they would have."""
    sizes = tuple(max(n, 1) for n in tensor.shape)
    strides = list(tensor.stride())
    for i in range(len(sizes) - 2, -1, -1):
        if sizes[i] == 1:
            strides[i] = -(-strides[i + 1] * sizes[i + 1] * tensor.element_size() // 16) * 16 // tensor.element_size()
    if tensor.numel():
        tensor = tensor.as_strided(sizes, strides)
    return TensorMap(tensor, m.sizes, SWIZZLE if m.swizzled else 0, (1,) * len(m.sizes))
