"""The base class of the tile IR's operations, whose `isinstance` is that of plain classes, as that of its types is.

xDSL's classes are abstract base classes, for which `isinstance` asks a registry of virtual subclasses before it returns
False. Passes and analyses ask for the kinds of operations, and of types, more often than anything else.
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Self

from xdsl.dialects.builtin import UNKNOWN_LOC, LocationAttr
from xdsl.ir import Attribute, Block, OpResult, Region, SSAValue, SSAValues, Use
from xdsl.irdl import IRDLOperation

_NONE: Mapping[str, Attribute] = MappingProxyType({})


class WithoutVirtualSubclasses(ABCMeta):
    """Metaclass of abstract base classes that have no virtual subclasses."""

    __instancecheck__ = type.__instancecheck__


class TileOperation(IRDLOperation, metaclass=WithoutVirtualSubclasses):
    """An operation of the tile IR."""

    def verify_(self) -> None:
        self.check()

    def check(self) -> None:
        """Check what the declaration of operands, results and properties leaves open. Raises VerifyException."""

    @classmethod
    def create(
        cls,
        *,
        operands: Sequence[SSAValue] = (),
        result_types: Sequence[Attribute] = (),
        properties: Mapping[str, Attribute] = _NONE,
        attributes: Mapping[str, Attribute] = _NONE,
        location: LocationAttr | None = None,
        successors: Sequence[Block] = (),
        regions: Sequence[Region] = (),
    ) -> Self:
        """Make an operation as xDSL does, in half the time: it sets each part by a property that replaces an old one."""
        assert not successors
        op = cls.__new__(cls)
        op._operands = SSAValues(operands)
        op._operand_uses = tuple([Use(op, i) for i in range(len(operands))])
        for value, use in zip(op._operands, op._operand_uses):
            value.add_use(use)
        op.results = SSAValues([OpResult(t, op, i) for i, t in enumerate(result_types)])
        op.properties, op.attributes = dict(properties), dict(attributes)
        op.location = UNKNOWN_LOC if location is None else location
        op._successors, op._successor_uses, op.regions = (), (), ()
        for region in regions:
            op.add_region(region)
        return op


__all__ = ["TileOperation", "WithoutVirtualSubclasses"]
