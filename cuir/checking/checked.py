"""The checked kernel: flat, with types on its expressions; read by the interpreter and the lowering.

The flat kernel is AST with every `@func` inlined, consts and constants folded to literals, and tuples taken apart:
* statements are `Assign` with one target, `ExprStmt` of a primitive's call, `For` and `If`;
* expressions hold no `Tuple` and no call but of primitives; a dtype is a `Name` such as `f16`;
  `-inf` is `Unary('-', Name('inf'))`;
* `IfExp`, `and`, `or`, `not` are on scalars, lazy, and may hold element reads;
* every node stands in one place and carries its type; a call carries its entry of the table and its arguments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from ..ops import TABLE
from ..syntax.nodes import Attribute, Call, Expr, Kernel, Node, Program, Stmt, Typed
from ..syntax.types import BarrierType, DType, SharedLayout, Type
from ..syntax.walk import walk
from ..text.notebook import ShownInNotebooks
from ..text.source import Span
from .kernel_results import KernelResults

if TYPE_CHECKING:
    from ..ops.base import Op

Const = int | float | bool | DType


@dataclass(frozen=True)
class TensorParam:
    name: str
    dtype: DType
    dims: tuple[str | int, ...]  # a name is a runtime dim (i32 in the kernel), an int is known
    written: bool  # the kernel stores to it somewhere
    span: Span = field(compare=False, repr=False)
    scratch: bool = False  # memory of the launch, undefined when it begins and not returned when it ends


@dataclass(frozen=True)
class ScalarParam:
    name: str
    dtype: DType
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True)
class SharedAlloc(SharedLayout):
    """An array in shared memory, as the program declares it; `over`: the array in whose memory it lies."""

    over: str | None
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True)
class Barrier:
    """A barrier, or a ring of them.

    `count` is in workers (mbarrier: arrivals that end a phase; named_barrier: participants). `arrivers` is the role
    that arrives; of a named barrier the first of those that use it.
    """

    name: str
    kind: str  # the name of its entry in the table
    count: int
    stages: int | None
    arrivers: str | None
    warps: int  # of a named barrier: total warps of the workers that end a phase
    span: Span = field(compare=False, repr=False)

    @property
    def type(self) -> BarrierType:
        return BarrierType(self.kind, self.stages)

    @property
    def hardware(self) -> bool:
        """True for a hardware barrier, which counts arrivals alone.

        Other barriers lie in shared memory and count bytes too.
        """
        return TABLE[self.kind].traits.hardware


@dataclass(frozen=True)
class TileScheduler:
    name: str
    count: Expr  # of runtime dims and scalars
    dynamic: bool
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True)
class Role:
    """A role's text, run by `workers` workers of `threads` threads.

    `index` is the name of the worker's number, if any.
    """

    name: str
    workers: int
    threads: int  # 32 or 128
    registers: int | None
    index: str | None
    body: tuple[Stmt, ...]
    locals: Mapping[str, Type]  # every name assigned in the body (loop variables and `index` too), with its one type
    warpgroup: int  # index of the first warpgroup it occupies
    warp: int  # of its first warp within that warpgroup (several `warps=` roles may share a warpgroup)
    span: Span = field(compare=False, repr=False)
    exchange: int = 0  # offset in shared memory of the buffer its warps exchange values in, `exchanged` bytes a worker
    exchanged: int = 0


@dataclass(frozen=True)
class BoundCall:
    """The called primitive, and the arguments by their parameters' names (absent optional ones missing)."""

    op: Op
    args: Mapping[str, Expr]

    def onto(self, old: Call, new: Call) -> BoundCall | None:
        """Return the same binding for a call with other operands; None if it does not have as many."""
        before, after = operands(old), operands(new)
        if len(before) != len(after):
            return None
        return BoundCall(self.op, {name: next(b for a, b in zip(before, after) if a is e) for name, e in self.args.items()})


def call_of(node: Node) -> BoundCall | None:
    """Return the call of a primitive that a node of a flat tree is.

    None for anything else, and for a call that was reported as wrong.
    """
    return node.bound if isinstance(node, Call) and isinstance(node.bound, BoundCall) else None


E = TypeVar("E", bound=Typed)


def set_type(expr: E, t: Type) -> E:
    """Set the type of an expression of a flat tree; only for its creator, before it is shared."""
    object.__setattr__(expr, "type", t)
    return expr


def bind(call: Call, op: Op, args: Mapping[str, Expr]) -> BoundCall:
    """Set the primitive and arguments of a call, and mark the arguments that are places.

    Only for the call's creator, before it is shared.
    """
    bound = BoundCall(op, args)
    object.__setattr__(call, "bound", bound)
    for access in op.effects.accesses:
        if access.arg in args:
            object.__setattr__(args[access.arg], "place", True)
    return bound


def operands(call: Call) -> list[Expr]:
    """Return the operands of a call: the barrier whose method it is, then the arguments as written."""
    return [*([call.func.value] if isinstance(call.func, Attribute) else []), *call.args, *(k.value for k in call.keywords)]


def ctas_along(cluster: int, cluster_x: int, rank: int, along: bool | str) -> list[int]:
    """Return `Checked.ctas` of a cluster of `cluster` CTAs, cluster_x of them along x.

    CTA x + cluster_x * y stands at (x, y).
    """
    if along == "x":
        return list(range(rank // cluster_x * cluster_x, (rank // cluster_x + 1) * cluster_x))
    if along == "y":
        return list(range(rank % cluster_x, cluster, cluster_x))
    return list(range(cluster)) if along else [rank]


@dataclass(frozen=True, repr=False)
class Checked(ShownInNotebooks):
    html_renderer = "pages.notebook_forms:render_checked"

    program: Program
    origin: Kernel  # as written
    cluster: int  # CTAs of a cluster
    cluster_x: int  # CTAs of a cluster along x: all in a cluster of one dim
    consts: Mapping[str, Const]  # every const parameter's value, derived ones too
    tensors: tuple[TensorParam, ...]
    scalars: tuple[ScalarParam, ...]
    dims: tuple[str, ...]  # runtime dims, in order of appearance
    shared: Mapping[str, SharedAlloc]
    shared_bytes: int  # of all arrays and exchange buffers, without barriers
    barriers: Mapping[str, Barrier]
    tiles: TileScheduler | None
    declarations: tuple[Stmt, ...]  # other scalar assignments before the roles, of runtime values
    declared: Mapping[str, Type]  # their types
    roles: tuple[Role, ...]
    warpgroups: int  # in a CTA
    results: KernelResults = field(init=False, default_factory=KernelResults, compare=False)  # of other modules

    @property
    def name(self) -> str:
        return self.origin.name

    @property
    def arch(self) -> str:
        return self.origin.arch

    def ctas(self, rank: int, along: bool | str) -> list[int]:
        """Return the CTAs of a cluster that `cluster=` of a call of CTA `rank` names.

        "x" and "y": those in line with it; True: all; False: itself.
        """
        return ctas_along(self.cluster, self.cluster_x, rank, along)

    @property
    def outputs(self) -> tuple[TensorParam, ...]:
        """The tensors that the kernel writes for its caller."""
        return tuple(t for t in self.tensors if t.written and not t.scratch)

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return 128 * self.warpgroups

    @property
    def longest_ring(self) -> int:
        """Stages of the longest ring of barriers.

        A CTA that does less than twice as much work and one more never comes to its third round, where parities are
        those of the first.
        """
        return max((b.stages or 1 for b in self.barriers.values()), default=1)

    def __repr__(self) -> str:
        consts = ", ".join(f"{name}={value}" for name, value in self.consts.items())
        roles = ", ".join(f"{r.name} ({r.workers} of {r.threads} threads)" for r in self.roles)
        return f"Checked({self.name}, {self.arch}, {consts}; {roles}; {self.shared_bytes:,} bytes of shared memory)"

    def type_of(self, expr: Expr) -> Type:
        assert expr.type is not None, expr
        return expr.type

    def find_type(self, node: Node) -> Type | None:
        """Return the type, or None for nodes without one: statements, slices, the name of what is called."""
        return node.type if isinstance(node, Typed) else None

    def call(self, node: Call) -> BoundCall:
        assert isinstance(node.bound, BoundCall), node
        return node.bound

    def find_call(self, node: Node) -> BoundCall | None:
        """Return the call of a primitive that a node is, else None."""
        return call_of(node)

    def calls(self) -> Iterator[BoundCall]:
        """Yield every call of a primitive in the declarations and the roles."""
        for stmt in (*self.declarations, *(s for role in self.roles for s in role.body)):
            for node in walk(stmt):
                if (bound := call_of(node)) is not None:
                    yield bound
