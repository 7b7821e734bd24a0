"""State shared by the printers of a kernel: tensors, names, the target, and needs of the head."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Operation, SSAValue

from ...text.source import Span
from ..ir import machine_ops as machine
from ..ir import ops
from ..lowered import TensorMap
from ..select.hardware_barriers import get_number
from ..select.parameter_space import MapKey
from ..targets import target_of
from .operator_text import from_memory, strip, summand
from .writer import Writer, identifier

WARPS = 4  # of a warpgroup
PreparedScalars = tuple[list[str], list[tuple[str, Span | None]]]  # variables with their types, and the lines that set them


class KernelContext:
    """A kernel while it is printed.

    `out` is the part of the file that is being written.
    """

    def __init__(self, kernel: ops.Kernel):
        self.kernel = kernel
        self.target = target_of(kernel.arch.data)
        self.threads, self.cluster = kernel.threads.data, kernel.cluster.data
        self.out = Writer()
        self.tensors, self.barriers = kernel.collect(ops.Tensor), kernel.collect(ops.Barrier)
        self.shared = {name: array.layout for name, array in kernel.collect(ops.Shared).items()}
        self.parameters = list(kernel.collect(ops.Parameter).values())
        self.maps: dict[MapKey, TensorMap] = {}
        self.pointers: dict[str, None] = {}
        self.functions: dict[str, str] = {}  # for this kernel only: wgmma shapes
        self.choices: dict[str, None] = {}
        self.aligned: dict[str, None] = {}  # addressed by cp.async
        self.exchanged_tensors = frozenset(name for name, t in self.tensors.items() if t.exchanged is not None)
        self.prepared: PreparedScalars = [], []  # numbers for handing out work items, computed before the CTA's first wait
        self.frame: dict[SSAValue, str] = {op.result: identifier(op.symbol.data) for op in self.parameters}
        self.queue = next((op for op in kernel.body.block.ops if isinstance(op, machine.Queue)), None)
        self.names = {*self.frame.values(), *(identifier(n) for n in (*self.tensors, *self.barriers)), "tile_count"}

    @property
    def draws(self) -> bool:
        """True if work items are drawn from a counter in global memory."""
        return self.queue is not None and self.queue.dynamic is not None

    @property
    def starts_cta_per_unit(self) -> bool:
        """True if the launch starts a CTA for each work item, so that the hardware hands them out."""
        units = next((op for op in self.kernel.body.block.ops if isinstance(op, ops.Units)), None)
        return self.queue is None and units is not None and units.dynamic is not None

    # ---- services of the printers
    def span(self, op: object) -> Span | None:
        """Return the place in the program that an operation comes from, else that of the kernel, if it is known."""
        return self.kernel.find_span(op if isinstance(op, Operation) else self.kernel)

    def record_choice(self, text: str, span: Span | None) -> None:
        """Record a choice of the compiler for its report, once for each text and line."""
        self.choices[f"line {span.line}: {text}" if span else text] = None

    def make_offset(self, tensor: str, indices: Sequence[str], uniform: Sequence[bool] = ()) -> str:
        """Return the offset of an element inside the tensor, in elements.

        Args:
            tensor: Name of the tensor.
            indices: Texts of the indices, outermost first.
            uniform: Which indices are scalars, whose sign need not be extended.
        """
        self.pointers[tensor] = None
        ident = identifier(tensor)
        parts = []
        for i, x in enumerate(indices[:-1]):
            text = f"uint32_t({strip(x)})" if any(uniform[i : i + 1]) else strip(x) if " " not in strip(x) else f"({strip(x)})"
            parts.append(f"{text} * {ident}_stride{i}")
        return " + ".join([*parts, summand(indices[-1])])

    def make_bounds_tests(self, tensor: str, indices: Sequence[str]) -> list[str]:
        """Return the conditions that indices lie in the tensor, one for each dim."""
        dims = self.tensors[tensor].dims
        return [
            f"unsigned({strip(x)}) < unsigned({d if isinstance(d, int) else identifier(d)})" for x, d in zip(indices, dims, strict=True)
        ]

    def make_bounds_test(self, tensor: str, indices: Sequence[str]) -> str:
        """Return the condition that indices lie in the tensor."""
        return " && ".join(self.make_bounds_tests(tensor, indices))

    def make_tensor_read(self, tensor: str, offset: str) -> str:
        """Return the element at an offset, as registers hold it."""
        return from_memory(self.tensors[tensor].dtype, f"{identifier(tensor)}[{offset}]")

    def make_guarded_read(self, tensor: str, indices: Sequence[str], uniform: Sequence[bool]) -> str:
        """Return an element of 32 bits, or 0 outside of the tensor.

        The read has no branch, so that many are in flight at once.
        """
        self.pointers[tensor] = None
        ident, dims = identifier(tensor), self.tensors[tensor].dims
        parts = []
        for i, (x, d) in enumerate(zip(indices, dims, strict=True)):
            dim = str(d) if isinstance(d, int) else identifier(d)
            index = f"uint32_t({strip(x)})" if uniform[i] else strip(x)
            parts += [index, dim, *([f"{ident}_stride{i}"] if i < len(dims) - 1 else [])]
        function = "gather_written" if self.tensors[tensor].written else "gather"
        return f"cuir::{function}({ident}, true, {', '.join(parts)})"

    # ---- hardware barriers
    def worker_barrier(self, role: ops.Role) -> str:
        """Return the hardware barrier that joins a warpgroup's four warps."""
        first = get_number(role)
        return str(first) if role.workers.data == 1 else f"{first} + {self.worker_index(role)}"

    def worker_index(self, role: ops.Role) -> str:
        """Return the number of a worker within its role."""
        warpgroup, warp = role.warpgroup.data, role.warp.data
        if role.threads.data == 128:
            return f"(warpgroup - {warpgroup})" if warpgroup else "warpgroup"
        if role.workers.data <= WARPS - warp:
            return f"(warp - {warp})" if warp else "warp"
        return f"(4 * (warpgroup - {warpgroup}) + warp - {warp})"
