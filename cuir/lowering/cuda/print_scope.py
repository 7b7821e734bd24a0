"""Scopes of expressions: a role or the kernel's frame, with names of values and spans of operations.

Names of positions in loops over a thread's values of a tile.

State of a role while it is printed: its variables, and conditions of single lanes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from xdsl.ir import SSAValue

from ...text.source import Span
from ..ir import machine_ops as machine
from ..ir import ops
from ..ir.ir_types import TileT
from ..layouts.tile_layouts import Fragment
from .context import KernelContext
from .variable_storage import Storage, Storages


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

    def span(self, op: object) -> Span | None:
        """Return the place in the program that an operation comes from, if it is known."""
        return self.kernel.span(op)

    def fragment(self, t: TileT) -> Fragment:
        """Return the fragment layout of a tile over the worker's threads."""
        return Fragment(*t.shape, self.threads)


@dataclass(frozen=True)
class Position:
    """A position in a loop over a tile, as texts.

    `i` is the element of a full tile, `r` the row value, `c` the column value, and `k` the column less the thread's first.
    """

    i: str
    r: str
    c: str
    k: str


LOOP = Position("i_", "r_", "c_", "k_")


def index_of(t: TileT, at: Position) -> str:
    """Return the index of a position in the array of a tile, by its layout."""
    if t.layout.varies_by_row:
        return at.i if t.layout.varies_by_column else at.r
    return at.c if t.layout.varies_by_column else "0"


def positions(frag: Fragment) -> list[tuple[str, str]]:
    """Return the declarations of row value, column value and column of element i_ of a full tile."""
    group = f"i_ / 4 % {frag.groups}" if frag.slabs > 1 else "i_ / 4"
    row = f"2 * (i_ / {4 * frag.groups}) + i_ / 2 % 2" if frag.slabs > 1 else "i_ / 2 % 2"
    return [
        ("r_", f"const int r_ = {row};"),
        ("c_", f"const int c_ = 2 * ({group}) + i_ % 2;"),
        ("k_", f"const int k_ = 8 * ({group}) + i_ % 2;"),
    ]


class RoleScope(Scope):
    """A role, or the warp that hands out work items.

    `single` says that it runs on one lane of its warp.
    """

    def __init__(self, kernel: KernelContext, role: ops.Role | machine.Queue, single: bool):
        super().__init__(kernel, role.threads.data if isinstance(role, ops.Role) else 32)
        self.role, self.single = role, single
        self.storages = Storages(role, self.threads, set(kernel.names))
        self._once: dict[str, str] = {}  # text -> name of the value that is computed once, at the start of the role
        self.start: list[str] = []  # lines that compute these values

    # ---- values
    @property
    def worker(self) -> SSAValue:
        """The number of the worker within its role."""
        return self.role.body.block.args[0]

    def storage(self, value: SSAValue) -> Storage:
        """Return the variable of a stored value."""
        return self.storages[value]

    def storage_or_none(self, value: SSAValue) -> Storage | None:
        """Return the variable of a value, or None if it is not stored."""
        return self.storages.get(value)

    def name(self, value: SSAValue) -> str:
        """Return the name of a stored scalar, or of one of the kernel's frame."""
        in_frame = self.kernel.frame.get(value)
        return in_frame if in_frame is not None else self.storage(value).name

    def hoist_to_start(self, ctype: str, stem: str, text: str) -> str:
        """Return the name of a value that never changes, computed at the start of the role."""
        if text not in self._once:
            self._once[text] = self.out.temp(stem)
            self.start.append(f"{ctype} {self._once[text]} = {text};")
        return self._once[text]

    def live_after(self, op: ops.Perform) -> frozenset[SSAValue]:
        """Return the values that are live after an operation."""
        return self.storages.variables.liveness.after[op]

    # ---- lanes of a worker
    @property
    def exchange_area(self) -> str:
        """Address of the worker's shared memory for exchanges between its warps."""
        role = self.role
        assert isinstance(role, ops.Role) and role.exchange is not None and role.exchanged is not None, role
        worker = "" if role.workers.data == 1 else f" + {self.kernel.worker_index(role)} * {role.exchanged.data}"
        return f"smem_address + {role.exchange.data}{worker}"

    @property
    def first_lane(self) -> str:
        """Condition of one thread of the worker; empty on a single lane."""
        if self.single:
            return ""
        return "if (lane == 0) " if self.threads == 32 else "if (threadIdx.x % 128 == 0) "
