"""The choices of a lowered kernel for people: for each line of the program, what was chosen and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from xdsl.ir import Operation

from ...text.source import Span
from ..ir import machine_ops as machine
from ..ir import machine_tiles, ops, row_parts
from ..ir.exchanges import GiveColumns
from ..ir.ir_types import is_tile
from ..ir.ir_walk import every
from .runs import count_run
from .ways import PARTS, Selection, find_selection


@dataclass(frozen=True)
class Choice:
    """A choice for a place in the program: the operation, its way, the property that decides, ways that do not fit.

    A note of a pass has neither an operation nor a way, an operation of the machine that a pass made no way. `roles` in which the choice is made; none for the kernel's frame.
    """

    span: Span
    roles: tuple[str, ...]
    operation: str
    selection: Selection

    def as_json(self) -> dict[str, object]:
        """Return the choice as JSON data."""
        return {
            "file": self.span.source.name,
            "line": self.span.line,
            "column": self.span.column,
            "roles": list(self.roles),
            "operation": self.operation or None,
            "way": self.selection.way or None,
            "because": self.selection.because,
            "rejected": list(self.selection.rejected),
        }


def explain_kernel(kernel: ops.Kernel, find_span: Callable[[Operation], Span]) -> list[Choice]:
    """Return the choices of IR that has been through the passes, in the order of the program's lines.

    Args:
        kernel: The kernel.
        find_span: Returns the place in the program that an operation comes from.
    """
    roles = dict[tuple[Span, str, Selection], dict[str, None]]()
    for role, op in _walk(kernel):
        for selection in _list_selections(op):
            if (count := count_run(op)) > 1:
                selection = replace(selection, because=f"{selection.because}; {count} in a row are issued together")
            roles.setdefault((find_span(op), name_operation(op), selection), {}).update({role: None} if role else {})
    choices = [Choice(span, tuple(names), operation, selection) for (span, operation, selection), names in roles.items()]
    return sorted(choices, key=lambda c: (c.span.source.name, c.span.line, c.span.column))


def _list_selections(op: Operation) -> list[Selection]:
    if isinstance(op, machine.Note):
        return [Selection("", op.text.data)]
    selections = [s for part in PARTS if (s := find_selection(op, part)) is not None]
    if not selections and isinstance(op, _MACHINE) and is_tile(op.results[0]):
        return [Selection("", _describe(type(op)))]
    return selections


_MACHINE: tuple[type[Operation], ...] = (*row_parts.OPERATIONS, *machine_tiles.OPERATIONS)


def _describe(kind: type[Operation]) -> str:
    """Return the meaning of an operation of the machine, by the first line of its docstring."""
    text = (kind.__doc__ or "").partition("\n")[0].removesuffix(".")
    return text[:1].lower() + text[1:]


def _walk(kernel: ops.Kernel) -> Iterator[tuple[str, Operation]]:
    """Yield the operations of a kernel, each with the name of its role."""
    for op in kernel.body.block.ops:
        yield "", op
        for inner in every(op):
            yield (op.symbol.data if isinstance(op, ops.Role) else ""), inner


def name_operation(op: Operation) -> str:
    """Return the name of an operation as a program has it."""
    if isinstance(op, machine.Note):
        return ""
    if isinstance(op, ops.Perform):
        return "X[i]" if op.kind.indexed else op.entry.written
    return op.entry.written if isinstance(op, (ops.Apply, GiveColumns)) else op.name.removeprefix("tile.")
