"""The base class of the tile IR's operations, whose `isinstance` is that of plain classes, as that of its types is.

xDSL's classes are abstract base classes, for which `isinstance` asks a registry of virtual subclasses before it returns
False. Passes and analyses ask for the kinds of operations, and of types, more often than anything else.
"""

from __future__ import annotations

from abc import ABCMeta

from xdsl.irdl import IRDLOperation


class WithoutVirtualSubclasses(ABCMeta):
    """Metaclass of abstract base classes that have no virtual subclasses."""

    __instancecheck__ = type.__instancecheck__


class TileOperation(IRDLOperation, metaclass=WithoutVirtualSubclasses):
    """An operation of the tile IR."""


__all__ = ["TileOperation", "WithoutVirtualSubclasses"]
