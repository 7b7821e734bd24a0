"""Runs of the synchronisation of a problem alone, for launches that would be slow with data.

Problems that are too large for the time of a run; they do not count in the verdict.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from ..arguments.binding import TORCH
from ..arguments.requirements import COPY_ALIGNMENT, find_copied_tensors
from ..attn.splicing.captured_arguments import compute_captured_arguments
from ..attn.verification.numeric import add_note
from ..attn.verification.problems import Case
from ..checking.checked import Checked, ScalarParam, TensorParam
from ..interp import RunReport, Schedule, run
from ..interp.control_slice import control_slice
from ..interp.interpreted_launch import Grid
from ..interp.without_data import run_without_data
from ..spec.function_specification import AnySpecification, FunctionSpecification, Value
from ..spec.specification import LENGTHS, Lengths, Specification
from ..syntax.types import I32
from ..text.diagnostics import CuirError
from .inputs import _draw_scalar, convert_value
from .lengths import convert_case
from .resource_limits import convert_memory_error, require_memory
from .spec_dispatch import AnyCase, prepare_launch
from .values.cases import MOST_ELEMENTS, compute_shape, count_elements, get_integer_consts
from .values.input_kinds import draw_tensor


@dataclass(frozen=True)
class SynchronisationRun:
    """A launch that ran without a fault.

    alone: without data; otherwise `reason` explains why control flow needed data.
    """

    report: RunReport
    alone: bool
    reason: str = ""


def needs_data(checked: Checked) -> str:
    """Explain why a kernel's synchronisation cannot be run without data; "" if it can."""
    refusal = control_slice(checked).refusal
    return f"line {refusal.span.line}: {refusal.message}" if refusal is not None and refusal.span is not None else ""


def run_synchronisation(
    checked: Checked,
    spec: AnySpecification,
    draw: AnyCase,
    grid: Grid | None = None,
    schedule: Schedule | None = None,
    budget: float | None = None,
    choose: Callable[[int], Sequence[int]] | None = None,
) -> SynchronisationRun:
    """Run a problem's synchronisation alone.

    It finds deadlocks, overruns, phases, byte counts, values in flight, missing fences and races.

    draw: lengths of the kernel's dims, or of an attention; they may far exceed those of problems with data. Elements of
    tensors are made only where control flow reads them. A kernel whose control flow depends on what it computes is run
    with data if the problem is small enough, in all CTAs.
    choose: as of `run_without_data`.
    Raises CuirError: the fault, as `run` reports it; V202 where data are needed and the problem is too large for them;
    U125 for more memory than there is.
    """
    control = control_slice(checked)
    try:
        if isinstance(draw, Case) and isinstance(spec, FunctionSpecification):
            draw = convert_case(checked, spec, draw)
        if control.refusal is None:
            arguments = make_arguments(checked, spec, draw)
            return SynchronisationRun(
                run_without_data(checked, arguments, grid=grid, schedule=schedule, budget=budget, choose=choose), True
            )
        if max((count_elements(t, collect_sizes(checked, draw)) for t in checked.tensors), default=0) > MOST_ELEMENTS:
            raise CuirError([control.refusal])
        launch = prepare_launch(checked.program, checked, spec, draw)
        report = run(checked, launch.arguments(), grid=grid, schedule=schedule, budget=budget)
        return SynchronisationRun(report, False, needs_data(checked))
    except CuirError as error:
        raise add_note(error, f"in the case {draw}, run for its synchronisation") from error
    except (MemoryError, RuntimeError) as error:
        if (converted := convert_memory_error(error)) is not None:
            raise converted from error
        raise


def collect_sizes(checked: Checked, draw: AnyCase) -> dict[str, int]:
    """Return lengths of the kernel's run-time dims and its integer consts for a problem.

    Dims that an attention problem does not name are 1.
    """
    lengths = {n: getattr(draw.lengths, n) for n in LENGTHS} if isinstance(draw, Case) else dict(draw.sizes)
    return {**get_integer_consts(checked), **{d: lengths.get(d, 1) for d in checked.dims}}


def make_arguments(checked: Checked, spec: AnySpecification, draw: AnyCase) -> dict[str, Value]:
    """Return arguments whose elements have values only where control flow reads them.

    Raises CuirError X108, U125, and as the specification.
    """
    sizes = collect_sizes(checked, draw)
    require_memory(checked, sizes)
    generator = torch.Generator().manual_seed(draw.seed)
    values: dict[str, Value] = {s.name: _draw_scalar(s.name, s.dtype, sizes, generator) for s in checked.scalars}
    needed = control_slice(checked).inputs
    if isinstance(spec, Specification):
        values |= _collect_captured(checked, spec, draw)
    elif spec.inputs is not None and (needed or any(s.dtype == I32 for s in checked.scalars)):
        values |= _call_inputs(checked, spec, sizes, generator, values)
    shapes = [(t, x) for t in checked.tensors if isinstance(x := values.get(t.name), torch.Tensor)]
    sizes |= {d: int(x.shape[i]) for t, x in shapes for i, d in enumerate(t.dims) if isinstance(d, str)}
    for t in checked.tensors:
        if t.scratch or t.name in values:
            continue
        if t.name in needed and t.dtype == I32:
            raise CuirError.of(
                "X108",
                f"`{checked.name}` reads `{t.name}`, integers whose meaning its signature does not say",
                checked.origin.span,
                f"give them: FunctionSpecification(..., inputs=lambda sizes, generator: {{{t.name!r}: ...}})",
            )
        values[t.name] = (
            draw_tensor(t.dtype, compute_shape(t, sizes), "normal", generator, False, [])
            if t.name in needed
            else _make_empty(checked, t, sizes)
        )
    return values


def _collect_captured(checked: Checked, spec: Specification, draw: AnyCase) -> Mapping[str, Value]:
    """Return the tensors that mods capture, as kernel arguments."""
    lengths = draw.lengths if isinstance(draw, Case) else Lengths(*(draw.sizes.get(n, 1) for n in LENGTHS))
    return compute_captured_arguments(checked.program, checked.origin, spec, lengths, consts=checked.consts)


def _call_inputs(
    checked: Checked, spec: FunctionSpecification, sizes: Mapping[str, int], generator: torch.Generator, scalars: Mapping[str, Value]
) -> dict[str, Value]:
    """Call the specification's `inputs`; return values by the kernel's names. Tensor parameters get zeros."""
    assert spec.inputs is not None
    names: dict[str, TensorParam | ScalarParam] = {t.name.lower(): t for t in checked.tensors} | {
        s.name.lower(): s for s in checked.scalars
    }
    requested = {p.lower() for p in inspect.signature(spec.inputs).parameters}
    drawn: dict[str, Value] = dict(scalars)
    for t in checked.tensors:
        if t.name.lower() in requested:
            if count_elements(t, sizes) > MOST_ELEMENTS:
                raise CuirError.of(
                    "V202",
                    f"`inputs` of `{spec.name}` asks for `{t.name}`, which has {count_elements(t, sizes):,} elements in this problem",
                    checked.origin.span,
                    "such a launch is run with data",
                )
            drawn[t.name] = torch.zeros(compute_shape(t, sizes), dtype=TORCH[t.dtype])
    values: dict[str, Value] = {}
    for name, value in spec.make_inputs(sizes, generator, drawn).items():
        p = names.get(name.lower())
        if p is not None:
            values[p.name] = convert_value(p, value)
    return values


def _make_empty(checked: Checked, t: TensorParam, sizes: Mapping[str, int]) -> torch.Tensor:
    """Return a tensor without values, for which no memory is committed before it is written.

    Rows are aligned as copy engines need them.
    """
    shape = compute_shape(t, sizes)
    if t.name not in find_copied_tensors(checked) or len(shape) < 2:
        return torch.empty(shape, dtype=TORCH[t.dtype])
    multiple = COPY_ALIGNMENT // math.gcd(COPY_ALIGNMENT, t.dtype.itemsize)
    return torch.empty([*shape[:-1], -(-shape[-1] // multiple) * multiple], dtype=TORCH[t.dtype])[..., : shape[-1]]


SMALL = 50_000  # elements of all tensors: a slow run of a smaller problem is a fault


def is_too_large(checked: Checked, case: AnyCase, error: CuirError) -> bool:
    """Return whether a run took too long on a problem that is not small."""
    if any(d.code != "D402" for d in error.diagnostics):
        return False
    sizes = collect_sizes(checked, case)
    return sum(count_elements(t, sizes) for t in checked.tensors) > SMALL


def describe_left(skipped: list[AnyCase]) -> str:
    """Describe the problems that were not run; "" if there are none."""
    return f"{len(skipped)} not asked, where the function fails or the run takes too long, the first {skipped[0]}" if skipped else ""


__all__ = [
    "SMALL",
    "SynchronisationRun",
    "collect_sizes",
    "describe_left",
    "is_too_large",
    "make_arguments",
    "needs_data",
    "run_synchronisation",
]
