"""Comparison of a solution's outputs with the reference in float64, within the errors that float arithmetic may have."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch

from ..spec.function_specification import FunctionSpecification, Value
from ..text.diagnostics import CuirError
from ..verification.cuda_numbers import ComparedOutput, OutputJudge
from ..verification.error_bounds import SingleError
from .references import SizedProblem, call_reference

MARGIN = 2.0  # of the errors of evaluations with errors in each operation


def compare_outputs(problem: SizedProblem, inputs: Sequence[object], outputs: Sequence[torch.Tensor]) -> tuple[list[ComparedOutput], str]:
    """Return the errors of outputs beside float64, and what is wrong in words, "" if nothing is.

    Outputs have the shapes and dtypes of the reference's.
    """
    count = len(inputs)
    placeholders = [torch.zeros(x.shape, dtype=x.dtype) for x in outputs]
    names = [*(f"input {i}" for i in range(count)), *describe_outputs(len(outputs))]

    def reference(*values: object) -> tuple[torch.Tensor, ...]:
        return tuple(problem.evaluate_in_place(list(values[:count])))

    judge = OutputJudge(reference)
    judge.name = "the reference"
    written = range(count, count + len(outputs))
    rows, wrong = judge.judge([*inputs, *placeholders], [*inputs, *outputs], written, names)
    if not wrong or _is_within_errors(problem, inputs, outputs, judge, rows):
        return rows, ""
    return rows, f"{wrong[0].message}; {wrong[0].notes[0].message}"


def describe_outputs(count: int) -> list[str]:
    """Return names of outputs."""
    return ["the output"] if count == 1 else [f"output {i}" for i in range(count)]


def _is_within_errors(
    problem: SizedProblem, inputs: Sequence[object], outputs: Sequence[torch.Tensor], judge: OutputJudge, rows: Sequence[ComparedOutput]
) -> bool:
    """Return whether errors of a few units in each operation of the reference explain those of the outputs."""
    spec, values = make_specification(problem, inputs)
    names = [f"output{i}" for i in range(len(outputs))]
    try:
        exact = spec.exact(values, names)
        others = [*SingleError(spec, values, names).off()]
    except CuirError:
        return False
    for name, actual, row in zip(names, outputs, rows):
        e, x = exact[name].double(), actual.double()
        if not actual.is_floating_point():
            return False
        finite = e.isfinite()
        scale = torch.where(finite, e.abs(), 0.0).amax(-1, keepdim=True) if e.dim() else e.abs()
        far = torch.stack([torch.where(finite, (o[name].double() - e).abs(), 0.0).nan_to_num(torch.inf) for o in others]).amax(0)
        room = MARGIN * (far.amax(-1, keepdim=True) if e.dim() else far) + row.allowed * scale
        if bool((finite & ~((x - e).abs() <= room)).any()) or bool((e.isinf() & (x != e)).any()):
            return False
    return True


def make_specification(problem: SizedProblem, inputs: Sequence[object]) -> tuple[FunctionSpecification, dict[str, Value]]:
    """Return the reference as a function of its inputs and parameters by name, and their values."""
    model, state = problem.model, problem.state
    parts = {f"p{i}": name for i, name in enumerate(state)}
    given = {f"x{i}": x for i, x in enumerate(inputs) if isinstance(x, (torch.Tensor, int, float, bool))}
    values: dict[str, Value] = given | {p: state[name].detach() for p, name in parts.items()}

    def reference(**named: object) -> dict[str, torch.Tensor]:
        arguments = [named.get(f"x{i}", x) for i, x in enumerate(inputs)]
        if isinstance(model, torch.nn.Module):
            own = {name: named[p] for p, name in parts.items()}
            with problem.within(), torch.no_grad():
                results = torch.func.functional_call(model, own, tuple(arguments))  # type: ignore[arg-type]
        else:
            with problem.within():
                results = call_reference(model, arguments)
        outputs = list(results) if isinstance(results, (tuple, list)) else [results]
        return {f"output{i}": x for i, x in enumerate(outputs)}

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    reference.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in values])  # type: ignore[attr-defined]
    return FunctionSpecification("the reference", reference), values


def fill_unwritten(outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], kept: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return outputs with the expected elements where CTAs that did not run would have written."""
    return [torch.where(k, x, e) for x, e, k in zip(outputs, expected, kept)]


__all__ = ["compare_outputs", "describe_outputs", "fill_unwritten", "make_specification"]
