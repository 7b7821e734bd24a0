"""Synchronisation that lanes need: joins, proxy fences, syncs of a CTA around its roles, the last sync of a cluster.

The pass `insert_synchronisation` adds these operations. A join says which lanes meet, and if fewer meet than all of the
worker, because of what that suffices. For the sequential evaluator they do nothing; the evaluator of lanes
(lane_order.py) runs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Self

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Attribute, Operation
from xdsl.irdl import irdl_op_definition, opt_prop_def, prop_def, var_operand_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from ...ops.meaning import Value
from .ir_types import TileT
from .operand_access import parse_operands, print_operands
from .tile_operation import TileOperation

if TYPE_CHECKING:
    from .evaluator_state import Lanes, Worker

Meeting = Literal["worker", "warps", "none"]
# arguments for joins of fewer lanes
ONE_LANE = "one lane runs the role"
OWN_ROWS = "each warp accesses its own rows alone"
SAME_LANES = "the same lanes write the same elements"
UNTOUCHED = "no lane has accessed the memory since the lanes met"
LATER = "the lanes meet before they read what was copied"
ARRIVAL_OF_WARPS = "each warp arrives for itself"
ALL_AWAITED = "each signal is awaited before its CTA exits"
APART = "the lanes of a warp leave their role one by one"
# what stands before a CTA's sync
BARRIERS, COLUMNS, ROLES = "barriers", "columns", "roles"


class Synchronisation(TileOperation):
    """An operation that orders accesses, and has neither operands nor results."""

    def evaluate(self, context: Worker, operands: Sequence[Value]) -> list[Value]:
        if context.lanes is not None:
            self.order(context.lanes)
        return []

    def order(self, lanes: Lanes) -> None:
        """Order the accesses of a worker's lanes."""


def _print_argument(printer: Printer, argument: StringAttr | None) -> None:
    if argument is not None:
        printer.print_string(" because ")
        printer.print_attribute(argument)


def _parse_argument(parser: Parser) -> dict[str, Attribute]:
    if parser.parse_optional_keyword("because") is None:
        return {}
    return {"argument": StringAttr(parser.parse_str_literal("an argument"))}


@irdl_op_definition
class Join(Synchronisation):
    """A point at which lanes of a worker meet: their accesses before it happen before those after it.

    lanes: "worker": all lanes; "warps": those of each warp; "none": the join is elided. The last two have an argument.
    """

    name = "tile.join"
    lanes = prop_def(StringAttr)
    argument = opt_prop_def(StringAttr)

    def order(self, lanes: Lanes) -> None:
        """Let lanes meet."""
        if self.lanes.data != "none":
            lanes.join(warps=self.lanes.data == "warps")

    def check(self) -> None:
        if self.lanes.data not in ("worker", "warps", "none"):
            raise VerifyException(f"lanes of the worker, of warps or none meet, not `{self.lanes.data}`")
        if (self.argument is None) != (self.lanes.data == "worker"):
            raise VerifyException("a join of fewer lanes than the worker's has an argument, and no other")

    def print(self, printer: Printer) -> None:
        printer.print_string(f" {self.lanes.data}")
        _print_argument(printer, self.argument)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        lanes = StringAttr(parser.parse_identifier("which lanes"))
        return cls(properties={"lanes": lanes, **_parse_argument(parser)})


def join(lanes: Meeting, argument: str = "") -> Join:
    """Make a join; one of fewer lanes than the worker's has an argument."""
    properties: dict[str, Attribute] = {"lanes": StringAttr(lanes)}
    if argument:
        properties["argument"] = StringAttr(argument)
    return Join(properties=properties)


@irdl_op_definition
class ProxyFence(Synchronisation):
    """A fence between ordinary reads of shared memory and later writes by the copy engine."""

    name = "tile.proxy_fence"

    def order(self, lanes: Lanes) -> None:
        """Order reads before writes by engines."""
        lanes.fence()

    def print(self, printer: Printer) -> None: ...

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        return cls()


@irdl_op_definition
class CtaSync(Synchronisation):
    """A point outside of the roles at which all threads of a CTA meet.

    behind: "barriers": one thread has initialised the mbarriers, and those of a queue, which other CTAs of a cluster
    may use, so that all its CTAs meet; "columns": tensor memory is allocated; "roles": nobody needs it any more.
    """

    name = "tile.cta_sync"
    behind = prop_def(StringAttr)

    def check(self) -> None:
        if self.behind.data not in (BARRIERS, COLUMNS, ROLES):
            raise VerifyException(f"a CTA meets behind its {BARRIERS}, {COLUMNS} or {ROLES}, not `{self.behind.data}`")

    def print(self, printer: Printer) -> None:
        printer.print_string(f" behind {self.behind.data}")

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        parser.parse_keyword("behind")
        return cls(properties={"behind": StringAttr(parser.parse_identifier("what comes before"))})


def cta_sync(behind: str) -> CtaSync:
    """Make a sync of a CTA behind its barriers, columns or roles."""
    return CtaSync(properties={"behind": StringAttr(behind)})


@irdl_op_definition
class ClusterSync(Synchronisation):
    """The end of a kernel of clusters, behind its roles: no CTA exits while another may signal it.

    With an argument it is elided.
    """

    name = "tile.cluster_sync"
    argument = opt_prop_def(StringAttr)

    def print(self, printer: Printer) -> None:
        _print_argument(printer, self.argument)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        return cls(properties=_parse_argument(parser))


def cluster_sync(argument: str = "") -> ClusterSync:
    """Make the last sync of a cluster; one with an argument is elided."""
    return ClusterSync(properties={"argument": StringAttr(argument)} if argument else {})


@irdl_op_definition
class RegisterFence(TileOperation):
    """A point at which nvcc takes the registers of tiles as read and written.

    It does not know that products write them until a wait, and would move other accesses across it.
    """

    name = "tile.register_fence"
    tiles = var_operand_def(TileT)

    def evaluate(self, context: Worker, operands: Sequence[Value]) -> list[Value]:
        return []

    def print(self, printer: Printer) -> None:
        print_operands(printer, self.tiles)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        return cls(operands=[parse_operands(parser)])


OPERATIONS: list[type[Operation]] = [Join, ProxyFence, CtaSync, ClusterSync, RegisterFence]

__all__ = [
    "ALL_AWAITED",
    "APART",
    "ARRIVAL_OF_WARPS",
    "BARRIERS",
    "COLUMNS",
    "LATER",
    "ONE_LANE",
    "OPERATIONS",
    "OWN_ROWS",
    "ROLES",
    "SAME_LANES",
    "UNTOUCHED",
    "ClusterSync",
    "CtaSync",
    "Join",
    "Meeting",
    "ProxyFence",
    "RegisterFence",
    "Synchronisation",
    "cluster_sync",
    "cta_sync",
    "join",
]
