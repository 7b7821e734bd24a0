"""Parameter space of a kernel in bytes: tensor maps first, then the other parameters, aligned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...checking.checked import Checked
from ...ops.limits import TARGETS
from ...syntax.types import BOOL
from ...text.diagnostics import CuirError
from ...text.source import Span

MAP_BYTES = 128  # of a tensor map
_WORD, _LONG = 4, 8  # of a scalar or a dim; of a pointer or a stride


def require_parameter_space(checked: Checked, maps: Sequence[str], pointers: Sequence[str], counter: bool) -> None:
    """Check that the parameters fit into what a launch can pass.

    Args:
        checked: The kernel.
        maps: Tensors with a tensor map, one entry for each map.
        pointers: Tensors with a pointer.
        counter: True if a counter of work items is passed.

    Raises: CuirError L006 where they do not fit.
    """
    limit = TARGETS[checked.arch].parameter_bytes
    ends = compute_parameter_ends(checked, maps, pointers, counter)
    end = ends[-1][0] if ends else 0
    if end > limit:
        takes = f"{len(maps)} tensor maps of {MAP_BYTES} bytes, " if maps else ""
        message = f"the parameters of `{checked.name}` take {end:,} bytes, and a launch passes at most {limit:,}: {takes}{len(pointers)} tensors with a pointer and their strides, {len(checked.scalars) + len(checked.dims)} numbers"
        raise CuirError.of(
            "L006",
            message,
            next(span for n, span in ends if n > limit),
            "the parameter at the mark is the first that does not fit: merge tensors of one shape into one with a further dim, or split the kernel",
        )


def compute_parameter_ends(checked: Checked, maps: Sequence[str], pointers: Sequence[str], counter: bool) -> list[tuple[int, Span]]:
    """Compute the end of each parameter in bytes, with its place in the text."""
    ends: list[tuple[int, Span]] = []
    end = 0
    for size, span in _list_parameters(checked, maps, pointers, counter):
        unit = min(size, _LONG)
        end = -(-end // unit) * unit + size
        ends.append((end, span))
    return ends


def _list_parameters(checked: Checked, maps: Sequence[str], pointers: Sequence[str], counter: bool) -> Iterator[tuple[int, Span]]:
    """Yield the size of each parameter, with its place in the text."""
    tensors = {t.name: t for t in checked.tensors}
    for name in maps:
        yield MAP_BYTES, tensors[name].span
    for name in pointers:
        t = tensors[name]
        yield _LONG, t.span
        if not t.scratch:
            yield from [(_LONG, t.span)] * (len(t.dims) - 1)
    if counter:
        yield _LONG, checked.origin.span
    for s in checked.scalars:
        yield 1 if s.dtype == BOOL else _WORD, s.span
    for d in checked.dims:
        yield _WORD, next((t.span for t in checked.tensors if d in t.dims), checked.origin.span)
