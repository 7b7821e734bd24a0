"""Transfers to the shipped expert kernels, from the cache folder where an equal one was made before.

A transfer follows from the expert's text, the trace's expressions, the kinds of its parameters, and a few fields of the
specification. It is made from these alone, so that the key cannot lack anything; the call's values are put in after.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch

from ..runtime.result_cache import remember
from ..spec.dropout_hash import Dropout
from ..spec.specification import Specification
from ..syntax.nodes import Expr, Program
from ..syntax.printer import show
from ..variants import Lists, Parameter, Traced, TransferResult, transfer
from ..variants.distances import Table
from ..variants.lists import ColumnLists
from .experts import origin_of, origin_text


@dataclass(frozen=True)
class _Stored:
    """A transfer without captured values and mods."""

    program: Program
    text: str
    diff: str
    kernel: str
    captured: tuple[Parameter, ...]
    replaced: tuple[str, ...]
    notes: tuple[str, ...]
    lists: Lists | ColumnLists | None
    tables: tuple[Table, ...]
    gradients: Mapping[str, str]


def transfer_to_expert(name: str, spec: Specification, traced: Traced, bits: bool, tables: bool) -> TransferResult:
    """Return the transfer of a traced specification to a shipped kernel; see `transfer`."""
    reduced_spec, reduced_trace = _without_mods(spec), replace(traced, parameters=tuple(map(_without_value, traced.parameters)))
    key = [name, origin_text(name), *_describe_spec(reduced_spec), *_describe_trace(reduced_trace), repr((bits, tables))]

    def make() -> _Stored:
        made = transfer(origin_of(name), reduced_spec, traced=reduced_trace, bits=bits, tables=tables)
        return _Stored(
            made.program,
            made.text,
            made.diff,
            made.kernel,
            tuple(replace(p, value=None) for p in made.captured),
            made.replaced,
            made.notes,
            made.lists,
            made.tables,
            dict(made.gradients),
        )

    stored = remember("transfers", key, _Stored, make)
    captured = tuple(replace(p, value=own.value) for p, own in zip(stored.captured, traced.parameters, strict=True))
    return TransferResult(
        stored.program,
        stored.text,
        stored.diff,
        stored.kernel,
        captured,
        stored.replaced,
        stored.notes,
        spec,
        stored.lists,
        stored.tables,
        stored.gradients,
    )


def _without_mods(spec: Specification) -> Specification:
    """Return what a transfer may know of a specification."""
    return Specification(
        spec.name,
        normalize=spec.normalize,
        sink=None if spec.sink is None else 0.0,
        max_scores=spec.max_scores,
        dropout=None if spec.dropout is None else Dropout(),
    )


def _without_value(parameter: Parameter) -> Parameter:
    """Return what a transfer may know of a captured value: whether it is there, a number or a tensor, and learns."""
    value = parameter.value
    if isinstance(value, torch.Tensor):
        return replace(parameter, value=torch.empty(0, requires_grad=value.requires_grad))
    return replace(parameter, value=value if value is None else type(value)(0))


def _describe_spec(spec: Specification) -> list[str]:
    return [spec.name, repr((spec.normalize, spec.sink is not None, spec.max_scores, spec.dropout is not None))]


def _describe_trace(traced: Traced) -> list[str]:
    parameters = [
        (
            p.name,
            p.dtype.name,
            p.rank,
            type(p.value).__name__,
            isinstance(p.value, torch.Tensor) and p.value.requires_grad,
            p.key,
            p.constant,
        )
        for p in traced.parameters
    ]
    expressions = (traced.keep, traced.score, traced.factor, traced.sink, traced.mask)
    described = [*_describe(expressions), "none" if traced.marked is None else "marked", *_describe(traced.marked or ())]
    return [*described, repr((parameters, traced.decided, traced.user_names, traced.rows))]


def _describe(expressions: Iterable[Expr | None]) -> list[str]:
    return ["none" if e is None else show(e) for e in expressions]


__all__ = ["transfer_to_expert"]
