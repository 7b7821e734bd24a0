"""Captured tensors at corners of a score: zeros, and numbers that the mod compares with.

A derivative that is wrong there alone passes with any drawn numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch

from ..attn.splicing.specification_copies import rebuild_mods
from ..attn.tracing.read_ranges import trace_without_clashes
from ..attn.tracing.traced_result import Traced
from ..checking.checked import Checked
from ..ops.expressions import operation, traits
from ..spec.function_specification import FunctionSpecification
from ..spec.specification import Specification
from ..syntax.nodes import Expr, Literal, Name, Unary
from ..syntax.walk import walk
from .function_problems import says_something
from .values.cases import Draw

MOST = 4  # tensors that are replaced one at a time, if replacing all leaves no finite numbers
Replaced = Callable[[torch.Tensor], torch.Tensor]


def make_corner_specifications(spec: Specification) -> Iterator[tuple[str, list[Specification]]]:
    """Make variants with other captured tensors, with a description of each.

    Of each list the first variant that gives numbers is to be tried: all tensors replaced, then one at a time.
    """
    tensors = [
        p.value
        for p in trace_without_clashes(spec).parameters
        if isinstance(p.value, torch.Tensor) and p.value.is_floating_point() and not p.value.is_meta
    ]
    if not tensors:
        return
    bounds = [*sorted(collect_compared_numbers(trace_without_clashes(spec)) - {0.0}), 0.0]
    for words, value in (("captured tensors of zeros", torch.zeros_like), ("captured tensors at bounds", _cycle_through(bounds))):
        if value is torch.zeros_like or len(bounds) > 1:
            yield (
                words,
                [
                    rebuild_mods(spec, _restrict_to(tensors, value)),
                    *(rebuild_mods(spec, _restrict_to([t], value)) for t in tensors[:MOST] if len(tensors) > 1),
                ],
            )


def pick_corner_problem(cases: Iterable[object]) -> Draw | None:
    """Return the first problem with normal inputs and more than one of everything but batches and heads."""
    candidates = (c for c in cases if isinstance(c, Draw) and c.kind == "normal")
    return next((c for c in candidates if all(n > 1 for d, n in c.sizes.items() if d not in ("B", "H", "HK"))), None)


def find_first_defined(checked: Checked, specs: Iterable[FunctionSpecification], problem: Draw) -> FunctionSpecification | None:
    """Return the first specification that gives numbers for the problem; a divisor of zeros gives none."""
    return next((s for s in specs if says_something(checked, s, problem)), None)


def collect_compared_numbers(traced: Traced) -> set[float]:
    """Collect numbers that a score compares floats with, if float32 represents them exactly.

    At others float32 and float64 may decide differently.
    """
    parameters = {p.name: p.value for p in traced.parameters}
    numbers: set[float] = set()
    for node in walk(traced.differentiated[0]):
        match = operation(node)
        if match is not None and (match[0].traits.compares or match[0].traits.extremum):
            numbers |= {v for v in (_read_number(x, parameters) for x in match[1]) if v is not None}
    return numbers


def _read_number(e: Expr, parameters: Mapping[str, object]) -> float | None:
    if isinstance(e, Unary) and traits(e).linear:
        positive = _read_number(e.operand, parameters)
        return None if positive is None else -positive
    value: object = e.value if isinstance(e, Literal) else parameters.get(e.id) if isinstance(e, Name) else None
    return value if isinstance(value, float) and abs(value) < 1e30 and struct.unpack("f", struct.pack("f", value))[0] == value else None


def _cycle_through(numbers: Sequence[float]) -> Replaced:
    def make(x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.numel()).view(x.shape) % len(numbers)
        return torch.tensor(numbers)[places].to(x)

    return make


def _restrict_to(tensors: Sequence[torch.Tensor], value: Replaced) -> Replaced:
    """Return a function that replaces `tensors` by `value`, and returns other tensors unchanged."""
    chosen = {id(t) for t in tensors}
    return lambda x: value(x.detach()) if id(x) in chosen else x


__all__ = ["collect_compared_numbers", "find_first_defined", "make_corner_specifications", "pick_corner_problem"]
