"""What the printers of a kernel share: its tensors, names, facts and target, and what they find out for its head as they print."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from xdsl.dialects.builtin import FileLineColLoc
from xdsl.ir import Operation, SSAValue

from ...checking.checked import Barrier, Checked, TensorParam
from ...checking.tensor_modes import exchanged
from ...checking.views import root_name
from ...syntax.nodes import Literal, Str
from ...text.diagnostics import CuirError
from ...text.source import Span
from ..facts import Facts
from ..ir import machine, ops
from ..lowered import TensorMap
from ..targets import target_of
from .dtypes import from_memory
from .operators import strip, summand
from .writer import Writer, identifier

WARPS = 4  # of a warpgroup
Prepared = tuple[list[str], list[tuple[str, Span | None]]]  # variables with their types, and the lines that set them


class KernelContext:
    """A kernel as it is printed. `out` is the part of the file that is being written."""

    def __init__(self, kernel: ops.Kernel, checked: Checked, facts: Facts, spans: Mapping[tuple[str, int, int], Span]):
        self.kernel, self.checked, self.facts, self.spans = kernel, checked, facts, spans
        self.target = target_of(checked.arch)
        self.out = Writer()
        self.tensors: dict[str, TensorParam] = {t.name: t for t in checked.tensors}
        self.maps: dict[tuple[str, tuple[int, ...], bool], TensorMap] = {}
        self.pointers: dict[str, None] = {}
        self.functions: dict[str, str] = {}  # of this kernel alone: wgmma shapes
        self.choices: dict[str, None] = {}
        self.aligned: dict[str, None] = {}  # addressed by cp.async
        self.handed = exchanged(checked)
        self.prepared: Prepared = [], []  # numbers for handing out units, before the CTA's first wait
        self.frame: dict[SSAValue, str] = {
            op.result: identifier(op.symbol.data) for op in kernel.body.block.ops if isinstance(op, ops.Parameter)
        }
        self.queue = next((op for op in kernel.body.block.ops if isinstance(op, machine.Queue)), None)
        self.names = {*self.frame.values(), *(identifier(n) for n in (*self.tensors, *checked.barriers)), "tile_count"}
        self._next_barrier = 1  # hardware barrier 0 is the whole CTA's
        self._named: dict[str, int] = {}
        self._worker_barriers: dict[str, int] = {}

    @functools.cached_property
    def between_ctas(self) -> frozenset[str]:
        """Barriers that are arrived at across the cluster in a kernel whose CTAs may hand over data in tensors: they order these, too."""
        if self.checked.cluster == 1 or not self.handed:
            return frozenset()
        barriers = set()
        for bound in self.checked.calls():
            across = bound.args.get("cluster")
            if bound.op.effects.arrives and isinstance(across, (Literal, Str)) and across.value:
                barriers.add(root_name(bound.args[bound.op.effects.arrives]) or "")
        return frozenset(barriers)

    @property
    def draws(self) -> bool:
        """Whether units of work are drawn from a counter in global memory."""
        return self.queue is not None and self.queue.dynamic is not None

    # ---- services of the printers
    def span(self, op: object) -> Span:
        """Where in the program an operation comes from."""
        location = op.location if isinstance(op, Operation) else None
        if not isinstance(location, FileLineColLoc):
            return self.checked.origin.span
        key = location.filename.data, location.line.data, location.column.data
        return self.spans.get(key, self.checked.origin.span)

    def choice(self, text: str, span: Span | None) -> None:
        self.choices[f"line {span.line}: {text}" if span else text] = None

    def index(self, tensor: str, indices: Sequence[str], uniform: Sequence[bool] = ()) -> str:
        """Offset of an element inside the tensor, in elements; `uniform`: which indices are scalars, whose sign then need not be extended."""
        self.pointers[tensor] = None
        ident = identifier(tensor)
        parts = []
        for i, x in enumerate(indices[:-1]):
            text = f"uint32_t({strip(x)})" if any(uniform[i : i + 1]) else strip(x) if " " not in strip(x) else f"({strip(x)})"
            parts.append(f"{text} * {ident}_stride{i}")
        return " + ".join([*parts, summand(indices[-1])])

    def tests_inside(self, tensor: str, indices: Sequence[str]) -> list[str]:
        """Conditions that indices lie in the tensor, one a dim."""
        dims = self.tensors[tensor].dims
        return [
            f"unsigned({strip(x)}) < unsigned({d if isinstance(d, int) else identifier(d)})" for x, d in zip(indices, dims, strict=True)
        ]

    def inside(self, tensor: str, indices: Sequence[str]) -> str:
        return " && ".join(self.tests_inside(tensor, indices))

    def tensor_read(self, tensor: str, offset: str) -> str:
        return from_memory(self.tensors[tensor].dtype, f"{identifier(tensor)}[{offset}]")

    def guarded_read(self, tensor: str, indices: Sequence[str], uniform: Sequence[bool]) -> str:
        """An element of 32 bits, 0 outside of the tensor: without a branch, so that many are on their way at once."""
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
    def _take(self, n: int, span: Span) -> int:
        first, self._next_barrier = self._next_barrier, self._next_barrier + n
        limit = self.target.limits.named_barriers
        if self._next_barrier > limit:
            what = f"the kernel needs more than the {limit - 1} hardware barriers that a CTA has for named barriers and joins of workers"
            raise CuirError.of("L004", what, span, "use fewer named barriers or stages")
        return first

    def named_barrier(self, name: str) -> int:
        barrier = self.checked.barriers[name]
        if name not in self._named:
            self._named[name] = self._take(barrier.stages or 1, barrier.span)
        return self._named[name]

    def worker_barrier(self, role: ops.Role) -> str:
        """Hardware barrier that joins a warpgroup's four warps."""
        name = role.symbol.data
        if name not in self._worker_barriers:
            span = next(r.span for r in self.checked.roles if r.name == name)
            self._worker_barriers[name] = self._take(role.workers.data, span)
        first = self._worker_barriers[name]
        return str(first) if role.workers.data == 1 else f"{first} + {self.worker_index(role)}"

    def worker_index(self, role: ops.Role) -> str:
        warpgroup, warp = role.warpgroup.data, role.warp.data
        if role.threads.data == 128:
            return f"(warpgroup - {warpgroup})" if warpgroup else "warpgroup"
        if role.workers.data <= WARPS - warp:
            return f"(warp - {warp})" if warp else "warp"
        return f"(4 * (warpgroup - {warpgroup}) + warp - {warp})"

    def arrivals(self, barrier: Barrier) -> int:
        """Arrivals of hardware that end a phase: one a warp."""
        threads = next((r.threads for r in self.checked.roles if r.name == barrier.arrivers), 32)
        return barrier.count * (WARPS if threads == 128 else 1)
