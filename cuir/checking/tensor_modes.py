"""Access modes of tensors, by name: reads, writes and additions in the text of a kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..syntax.nodes import Literal, Node, Subscript
from ..syntax.walk import walk
from ..text.source import Span
from .checked import BoundCall, Checked
from .kernel_results import keep_with_kernel
from .views import root_name


@keep_with_kernel
def find_tensor_modes(checked: Checked) -> Mapping[str, frozenset[str]]:
    """Return for each tensor which of "read", "write" and "add" the kernel's text does to it."""
    modes: dict[str, set[str]] = {t.name: set() for t in checked.tensors}
    for name, mode, _ in _walk_accesses(checked):
        if name in modes:
            modes[name].add(mode)
    return {name: frozenset(m) for name, m in modes.items()}


def write_spans(checked: Checked, tensor: str) -> list[Span]:
    """Return places in the text at which the kernel writes a tensor without adding to it."""
    return [span for name, mode, span in _walk_accesses(checked) if name == tensor and mode == "write"]


def find_exchanged(checked: Checked) -> frozenset[str]:
    """Return the tensors through which workers may exchange data.

    These have accesses of more than one kind, one of which changes elements.
    """
    return frozenset(name for name, modes in find_tensor_modes(checked).items() if len(modes) > 1)


def _walk_accesses(checked: Checked) -> Iterator[tuple[str, str, Span]]:
    """Yield the tensor's name, the mode and the place of each access in the text."""
    count: tuple[Node, ...] = () if checked.tiles is None else (checked.tiles.count,)
    for node in (n for top in (*checked.declarations, *count, *(s for r in checked.roles for s in r.body)) for n in walk(top)):
        if (bound := checked.find_call(node)) is not None:
            for access in bound.op.effects.accesses:
                place = bound.args.get(access.arg)
                if place is not None:
                    mode = "add" if access.mode == "write" and has_addition(bound) else access.mode
                    yield root_name(place) or "", mode, node.span
        elif isinstance(node, Subscript) and not node.place:
            yield root_name(node) or "", "read", node.span


def has_addition(call: BoundCall) -> bool:
    """Return whether a store adds to memory: its `add` is there and not constantly false."""
    add = call.args.get("add")
    return isinstance(add, Literal) and bool(add.value)
