"""The result of lowering: the CUDA text of a kernel and the facts that a launch needs.

In parameter space tensor maps come first, then the other parameters, aligned.
"""

from __future__ import annotations

import hashlib
import importlib
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from ..checking.checked import Checked
from ..checking.const_defaults import describe_consts
from ..text.notebook import ShownInNotebooks
from ..text.source import Span

KERNEL = 'extern "C" __global__ void'  # how the text of a kernel's function begins


@dataclass(frozen=True)
class TensorMap:
    """A tensor map parameter of a kernel: a box of `sizes` elements of a tensor.

    `sizes` has the outermost dim first; the innermost one is a panel, swizzled, or a whole row that is not.
    """

    name: str
    tensor: str
    sizes: tuple[int, ...]
    swizzled: bool = True


@dataclass(frozen=True)
class TileRegisters:
    """An estimate of the registers of a thread that tiles of a role take at once, and where.

    limit: the registers that a thread has.
    """

    role: str
    count: int
    limit: int
    span: Span | None


@dataclass(frozen=True)
class CudaText:
    """A printed kernel: the source text, the origin of its lines, and the facts that only the text decides."""

    name: str
    arch: str
    source: str
    spans: tuple[Span | None, ...]  # of each line of source
    threads: int
    cluster: int
    shared_bytes: int  # dynamic shared memory, barriers included
    maps: tuple[TensorMap, ...]
    tensors: tuple[str, ...]  # passed as pointers, in order; each is followed by its outer strides, in elements
    counter: bool  # a pointer to an unsigned, zero before the first launch; the kernel leaves it zero
    cta_per_unit: bool  # the grid is the units of work, else at most the CTAs that fit on the device
    scalars: tuple[str, ...]
    dims: tuple[str, ...]
    aligned: tuple[str, ...] = ()  # tensors that asynchronous copies address: multiples of 16 bytes
    choices: tuple[str, ...] = ()  # decisions that the program's text leaves open
    tile_registers: tuple[TileRegisters, ...] = field(default=(), repr=False)  # of each role
    span: Span | None = field(default=None, repr=False)  # of the kernel, if it is known

    @property
    def line_map(self) -> dict[int, Span]:
        """CUDA line number (from 1) -> CuIR span."""
        return {i: s for i, s in enumerate(self.spans, 1) if s is not None}

    def with_cluster_dims(self) -> Self:
        """Return the kernel with its cluster size in the text, for launches that cannot state it.

        A kernel without clusters is returned as it is.
        """
        if self.cluster == 1:
            return self
        return replace(self, source=self.source.replace(KERNEL, f"{KERNEL} __cluster_dims__({self.cluster}, 1, 1)", 1))

    @property
    def digest(self) -> str:
        """First 16 hex digits of the SHA-256 of the source."""
        return hashlib.sha256(self.source.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Cuda(CudaText, ShownInNotebooks):
    """A lowered kernel: its text, and the program that it is of, which a launch needs."""

    html_renderer = "pages.notebook_forms:render_lowered"

    checked: Checked = field(repr=False, kw_only=True)

    @classmethod
    def of(cls, text: CudaText, checked: Checked) -> Cuda:
        """Return a printed kernel as one that can be launched."""
        return cls(**{f.name: getattr(text, f.name) for f in fields(text)}, checked=checked)

    def __repr__(self) -> str:
        consts = describe_consts(self.checked.consts)
        return f"Cuda({self.name}, {self.arch}, {consts}; {self.source.count(chr(10)):,} lines, {self.threads} threads, {self.shared_bytes:,} bytes of shared memory)"

    def pycuda(self) -> Any:
        """Compile and load this kernel by PyCUDA, as `cuir.compile(lowered, loader="pycuda")` does."""
        return importlib.import_module("cuir").compile(self, loader="pycuda")


MAP_BYTES = 128  # of a tensor map
