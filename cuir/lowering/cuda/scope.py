"""Where expressions are printed, a role or the kernel's frame: what its values are called, and where its operations come from."""

from __future__ import annotations

from abc import ABC, abstractmethod

from xdsl.ir import SSAValue

from ...text.source import Span
from ..ir.layouts import Fragment, fragment
from ..ir.types import TileT
from .context import KernelContext
from .storage import Storage


class Scope(ABC):
    """`threads`: of a worker, over which tiles are spread."""

    def __init__(self, kernel: KernelContext, threads: int = 32):
        self.kernel, self.target, self.out, self.threads = kernel, kernel.target, kernel.out, threads

    @abstractmethod
    def name(self, value: SSAValue) -> str:
        """The name of a scalar that is written somewhere."""

    def storage(self, value: SSAValue) -> Storage:
        """The variable of a value that is written somewhere. The frame has none: it declares scalars."""
        raise LookupError(value)

    def span(self, op: object) -> Span:
        """Where in the program an operation comes from."""
        return self.kernel.span(op)

    def fragment(self, t: TileT) -> Fragment:
        return fragment(t, self.threads)
