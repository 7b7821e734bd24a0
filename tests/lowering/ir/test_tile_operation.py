"""The kinds of operations are those of plain classes, for every class of the IR."""

from __future__ import annotations

from abc import ABCMeta

from xdsl.ir import Operation

from cuir.lowering.ir import exchanges, machine_ops, machine_tiles, ops, row_parts, synchronisation
from cuir.lowering.ir.ir_types import ElementT, ScalarT, SharedT, TensorT, TileT
from cuir.lowering.ir.tile_operation import TileOperation
from cuir.syntax.types import I32

MODULES = (ops, exchanges, machine_ops, machine_tiles, row_parts, synchronisation)


def test_operations_ask_no_registry_of_virtual_subclasses() -> None:
    operations = [c for module in MODULES for c in module.OPERATIONS]
    assert len(operations) > 30 and all(issubclass(c, TileOperation) for c in operations)
    classes = [*operations, ScalarT, TileT, SharedT, TensorT, ElementT]
    assert all(type(c).__instancecheck__ is not ABCMeta.__instancecheck__ for c in classes)


def test_an_operation_is_of_its_class_and_those_above_alone() -> None:
    op = ops.constant(1, I32)
    assert isinstance(op, ops.Constant) and isinstance(op, TileOperation) and isinstance(op, Operation)
    assert not isinstance(op, ops.Apply) and not isinstance(op, ops.Loop) and not isinstance(op.result, TileOperation)
