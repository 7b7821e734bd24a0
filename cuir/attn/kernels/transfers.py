"""Transfers to the shipped expert kernels, from the cache folder where an equal one was made before.

A transfer follows from the expert's text, the trace's expressions, the kinds of its parameters, and a few fields of the
specification. It is made from these alone, so that the key cannot lack anything; the call's values are put in after.

Verification verdicts of programs, cached in the cache folder with the kernels.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from ...caching.disk import VERDICTS, mark_used, write_whole
from ...checking.checked import Const
from ...performance.search.space import from_plain
from ...runtime.content_digests import describe_package, digest
from ...runtime.result_cache import remember
from ...spec.dropout_hash import Dropout
from ...spec.function_specification import AnySpecification
from ...spec.specification import Specification
from ...syntax.nodes import Expr, Program
from ...syntax.printer import show
from ...text.diagnostics import CuirError
from ...text.jsontext import to_json
from ...verification.report import Stage, VerifyReport
from ..capture.capture_keys import CaptureKey
from ..capture.first_call_progress import Progress
from ..masks.block_lists import ColumnLists, Lists
from ..masks.distance_tables import Table
from ..splicing.backward import read_by_gradients, transfer_backward, transfer_query_gradients, transfer_selected_keys
from ..splicing.splice import TransferResult, transfer
from ..tracing.traced_result import Parameter, Traced
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


def transfer_to_expert(name: str, spec: Specification, traced: Traced, bits: bool, tables: bool, by_key: bool = False) -> TransferResult:
    """Return the transfer of a traced specification to a shipped kernel; see `transfer`."""

    def make(spec: Specification, traced: Traced) -> TransferResult:
        return transfer(origin_of(name), spec, traced=traced, bits=bits, tables=tables, by_key=by_key)

    return _remember_transfer(f"{name} forward {bits} {tables} {by_key}", name, spec, traced, make, range(len(traced.parameters)))


def transfer_backward_to_expert(name: str, spec: Specification, traced: Traced, learned: Sequence[int]) -> TransferResult:
    """Return the transfer to a shipped kernel of dK, dV and gradients of captured tensors.

    See `transfer_backward`.
    """

    def make(spec: Specification, traced: Traced) -> TransferResult:
        return transfer_backward(origin_of(name), spec, traced=traced, learned=learned)

    return _remember_transfer(f"{name} backward {list(learned)}", name, spec, traced, make, places_read_by_gradients(traced))


def transfer_queries_to_expert(name: str, spec: Specification, traced: Traced) -> TransferResult:
    """Return the transfer to a shipped kernel of dQ alone; see `transfer_query_gradients`."""

    def make(spec: Specification, traced: Traced) -> TransferResult:
        return transfer_query_gradients(origin_of(name), spec, traced=traced)

    return _remember_transfer(f"{name} queries", name, spec, traced, make, places_read_by_gradients(traced))


def transfer_selected_keys_to_expert(name: str, spec: Specification, traced: Traced) -> TransferResult:
    """Return the transfer to a shipped kernel of dK and dV over selected blocks; see `transfer_selected_keys`."""

    def make(spec: Specification, traced: Traced) -> TransferResult:
        return transfer_selected_keys(origin_of(name), spec, traced=traced)

    return _remember_transfer(f"{name} selected keys", name, spec, traced, make, places_read_by_gradients(traced))


def places_read_by_gradients(traced: Traced) -> list[int]:
    """Return the indices of the captured parameters that kernels of gradients take."""
    names = read_by_gradients(traced)
    return [i for i, p in enumerate(traced.parameters) if p.name in names]


def _remember_transfer(
    kind: str,
    name: str,
    spec: Specification,
    traced: Traced,
    transfer: Callable[[Specification, Traced], TransferResult],
    places: Sequence[int],
) -> TransferResult:
    """Return a transfer from the cache folder, or make it.

    Args:
        kind: all that `transfer` depends on besides its arguments and the text of the kernel `name`.
        places: indices, among the captured parameters, of those that the transfer takes.
    """
    reduced_spec, reduced_trace = _without_mods(spec), replace(traced, parameters=tuple(map(_without_value, traced.parameters)))

    def make() -> _Stored:
        try:
            result = transfer(reduced_spec, reduced_trace)
        except CuirError:
            transfer(spec, traced)  # whose error can show the user's mods
            raise
        return _Stored(
            result.program,
            result.text,
            result.diff,
            result.kernel,
            tuple(replace(p, value=None) for p in result.captured),
            result.replaced,
            result.notes,
            result.lists,
            result.tables,
            dict(result.gradients),
        )

    key = [kind, origin_text(name), *_describe_spec(reduced_spec), *_describe_trace(reduced_trace)]
    stored = remember("transfers", key, _Stored, make)
    captured = tuple(replace(p, value=traced.parameters[i].value) for p, i in zip(stored.captured, places, strict=True))
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
    """Return a specification reduced to the fields that a transfer depends on, which its key contains.

    Mods are removed; a sink and dropout stay as markers without the user's values.
    """
    return Specification(
        spec.name,
        normalize=spec.normalize,
        sink=None if spec.sink is None else 0.0,
        dropout=None if spec.dropout is None else Dropout(),
        outputs=spec.output_names,
    )


def _without_value(parameter: Parameter) -> Parameter:
    """Return a parameter reduced to the properties of its captured value that a transfer depends on.

    These are its presence, its kind (number or tensor), and whether it requires a gradient.
    """
    value = parameter.value
    if isinstance(value, torch.Tensor):
        return replace(parameter, value=torch.empty(0, requires_grad=value.requires_grad))
    return replace(parameter, value=value if value is None else type(value)(0))


def _describe_spec(spec: Specification) -> list[str]:
    return [spec.name, repr((spec.normalize, spec.sink is not None, spec.output_names, spec.dropout is not None))]


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


def verify_or_recall(
    program: Program,
    spec: AnySpecification,
    capture_key: CaptureKey,
    consts: Mapping[str, Const],
    level: Literal["quick", "full"],
    progress: Progress,
    kernel: str | None = None,
) -> VerifyReport:
    """Return the report of a right program: of a run on the CPU now, or of an earlier one.

    An earlier verdict counts for the same program, consts and level, and for mods of the same structure: other
    documents, or another window, are the same program on other data. Raises CuirError with the findings of
    verification.
    """
    entry = _entry(program, capture_key, consts, level)
    report = _read(entry)
    if report is not None:
        return report
    from ...verification import verify
    from ...verification.side_processes import count_usable_processes

    with progress.step(f"verifying ({level})") as step:
        report = verify(program, spec, kernel=kernel, consts=consts, level=level, progress=step.tell, processes=count_usable_processes())
    if not report.ok:
        raise CuirError(report.diagnostics)
    write_whole({entry: to_json(report.as_json()).encode()})
    return report


def _entry(program: Program, capture_key: CaptureKey, consts: Mapping[str, Const], level: str) -> Path:
    values = sorted((name, str(value)) for name, value in consts.items())
    parts = [describe_package(), show(program), capture_key.digest(), repr(values), level]
    return VERDICTS.path(digest(parts))


def _read(entry: Path) -> VerifyReport | None:
    """Return the report of a file; None if it is missing, damaged, or has a failure."""
    try:
        data = json.loads(entry.read_text(encoding="utf-8"))
        stages = [Stage(s["name"], s["question"], s["verdict"], s["reason"], (), s["seconds"], s["rows"]) for s in data["stages"]]
        mark_used(entry)
        report = VerifyReport(data["variant"], data["kernel"], data["level"], from_plain(data["consts"]), stages)
        return report if data["ok"] and report.ok else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


__all__ = [
    "places_read_by_gradients",
    "transfer_backward_to_expert",
    "transfer_queries_to_expert",
    "transfer_selected_keys_to_expert",
    "transfer_to_expert",
    "verify_or_recall",
]
