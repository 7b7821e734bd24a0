"""Scopes of expressions: a role or the kernel's frame, with names of values and spans of operations."""

from __future__ import annotations

from abc import ABC, abstractmethod

from xdsl.ir import SSAValue

from ...text.source import Span
from ..ir.ir_types import TileT
from ..layouts.tile_layouts import Fragment
from .context import KernelContext
from .variable_storage import Storage


class Scope(ABC):
    """A scope in which expressions are emitted.

    `threads` is the number of threads of a worker, over which tiles are spread.
    """

    def __init__(self, kernel: KernelContext, threads: int = 32):
        self.kernel, self.target, self.out, self.threads = kernel, kernel.target, kernel.out, threads

    @abstractmethod
    def name(self, value: SSAValue) -> str:
        """Return the name of a scalar that is stored in a variable."""

    def storage(self, value: SSAValue) -> Storage:
        """Return the variable of a stored value; the frame has none, as it declares scalars."""
        raise LookupError(value)

    def span(self, op: object) -> Span:
        """Return the place in the program that an operation comes from."""
        return self.kernel.span(op)

    def fragment(self, t: TileT) -> Fragment:
        """Return the fragment layout of a tile over the worker's threads."""
        return Fragment(*t.shape, self.threads)
