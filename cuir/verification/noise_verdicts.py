"""Verdicts under noise: problems judged again with inexact results varied within their bounds.

A decision that then takes another value, and changes the verdict, is reported. The noise is that of
cuir/interp/noise.py.

Verdict with every product contracted with its sum.

A GPU may round both once, and the result must stay right.

Which sums lowering may contract, and which it computes as written, says checking/contraction.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import numpy as np
import torch

from ..attn.verification.problems import Case
from ..checking.checked import Checked
from ..checking.contraction import collect_exact, list_contractable_sums
from ..checking.decisions import entry, jumps, list_placed_deciders, walk_sources
from ..interp.noise import Noise, Truth, contract_sums, perturb_runs
from ..ops.base import Op
from ..ops.expressions import traits
from ..syntax.nodes import Binary, Expr
from ..syntax.printer import show
from ..syntax.walk import IdentityKey
from ..text.diagnostics import CuirError, Diagnostic, Note
from .values.cases import Draw
from .values.step_inputs import KIND

SEED = 1
FEW = 2  # problems of level quick
MANY = 12
_WHOLE = (KIND, "ties")  # kinds of inputs whose values meet the steps of floor, round and casts
_STEP = 2.0**-14  # relative: smaller changes are not jumps

C = TypeVar("C", bound="Draw | Case")


def choose_perturbed(checked: Checked, cases: Iterable[C], level: str) -> list[C]:
    """Choose the smallest nonempty problems, and those of whole numbers where something jumps.

    Empty if only exact values feed the decisions.
    """
    fed = [(e, source) for i, e, floats in list_placed_deciders(checked) if (source := _find_nearest(checked, i, floats)) is not None]
    if not fed:
        return []
    most = FEW if level == "quick" else MANY
    sized = sorted(((compute_volume(c), i, c) for i, c in enumerate(cases)), key=lambda x: x[:2])
    small = [c for volume, _, c in sized if volume > 0]
    kinds = _WHOLE if any(jumps(checked, e) for e, _ in fed) else _WHOLE[:1] if any(op.ulps for _, (op, _) in fed) else ()
    whole = sorted((c for c in small if getattr(c, "kind", "") in kinds), key=lambda c: kinds.index(c.kind))
    first = small[:most]
    return [*first, *(c for c in whole[:most] if not any(c is x for x in first))]


def compute_volume(case: Draw | Case) -> int:
    sizes = asdict(case.lengths) if isinstance(case, Case) else case.sizes
    return math.prod(int(n) for n in sizes.values())


def check_perturbed(checked: Checked, judged: Callable[[], object]) -> None:
    """Judge twice again with noise, to opposite sides.

    judged: runs the kernel on fresh arguments, and raises CuirError for a bad verdict (it passed without noise). Raises
    CuirError V308 if a comparison changed its truth and with it the verdict. Larger errors without such a change are
    within the bounds.
    """
    for seed in (SEED, -SEED):
        if (error := judge_with(judged, Noise(seed))) is not None:
            _blame(checked, judged, seed, error)


def _blame(checked: Checked, judged: Callable[[], object], seed: int, error: CuirError) -> None:
    calm, shaken = Noise(seed, off=True, truths=[]), Noise(seed, truths=[])
    if judge_with(judged, calm) is not None:
        return
    judge_with(judged, shaken)
    flipped = _find_flipped(calm.truths or [], shaken.truths or [])
    truths: dict[IdentityKey, list[Any]] = {}
    for e, value in calm.truths or []:
        truths.setdefault(IdentityKey(e), []).append(value)
    for e in flipped:
        if judge_with(judged, Noise(seed, forced={IdentityKey(e): list(truths[IdentityKey(e)])})) is None:
            raise _make_error(checked, e, error)
    if flipped and judge_with(judged, Noise(seed, forced={IdentityKey(e): list(truths[IdentityKey(e)]) for e in flipped})) is None:
        raise _make_error(checked, flipped[0], error)


def judge_with(judged: Callable[[], object], noise: Noise) -> CuirError | None:
    try:
        with perturb_runs(noise):
            judged()
    except CuirError as error:
        return error
    return None


def _find_flipped(calm: list[Truth], shaken: list[Truth]) -> list[Expr]:
    """Return the expressions whose value differs between two runs, in order of their first difference."""
    before: dict[IdentityKey, list[Any]] = {}
    for e, value in calm:
        before.setdefault(IdentityKey(e), []).append(value)
    flipped: dict[IdentityKey, Expr] = {}
    for e, value in shaken:
        earlier_values = before.get(IdentityKey(e))
        earlier = earlier_values.pop(0) if earlier_values else None
        if earlier is not None and IdentityKey(e) not in flipped and not _agree(value, earlier):
            flipped[IdentityKey(e)] = e
    return list(flipped.values())


def _agree(a: object, b: object) -> bool:
    """Return whether comparisons agree and step functions stay on the same step."""
    x, y = (v if isinstance(v, torch.Tensor) else torch.as_tensor(np.asarray(v)) for v in (a, b))
    if x.shape != y.shape or not x.is_floating_point():
        return x.shape == y.shape and torch.equal(x, y)
    near = (x - y).abs() <= _STEP * torch.maximum(x.abs(), y.abs())
    return bool((near | (x == y) | (x.isnan() & y.isnan())).all())


def _make_error(checked: Checked, e: Expr, error: CuirError) -> CuirError:
    i, floats = next((i, f) for i, d, f in list_placed_deciders(checked) if d is e)
    source = _find_nearest(checked, i, floats)
    first = error.diagnostics[0]
    notes = [Note(f"then: {first.message}"), *first.notes]
    if source is not None:
        notes.insert(0, Note(f"fed by `{source[0].written}`, which is {_describe_bound(source[0])}", source[1].span))
    noun, hint = _describe(checked, e, len(floats))
    return CuirError(
        [
            Diagnostic(
                "V308",
                f"the {noun} `{shorten(e)}` hangs on the last bits of a value that is not exact, and the result on it",
                e.span,
                tuple(notes),
                hint,
            )
        ]
    )


def _describe(checked: Checked, e: Expr, operands: int) -> tuple[str, str]:
    """Return the name of a deciding operation, and the advice for the message."""
    operation = entry(checked, e)
    if operation is not None and jumps(checked, e):
        noun = "conversion" if operation[0].traits.converts else "remainder" if operands > 1 else "rounding"
        return (
            noun,
            "round numbers that are exact (integers, quotients, what stands before the function), or leave room for the error: floor(x + 0.00001)",
        )
    noun = "comparison" if operation and operands > 1 else "test"
    return noun, "compare numbers that are exact (before the function, or indices), or leave room for the error: x > c - 0.001"


def shorten(e: Expr) -> str:
    """Return the text as written, if it is one line.

    Names of functions' locals differ in the flat kernel.
    """
    span = e.span
    line = span.source.line(span.line) if span.line == span.end_line else ""
    text = line[span.column - 1 : span.end_column - 1] or show(e)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _describe_bound(op: Op) -> str:
    if op.ulps:
        return f"right within {op.ulps} units in the last place"
    return "a sum in no fixed order" if op.sums else "rounded once or twice where it meets a product"


def _find_nearest(checked: Checked, block: int, floats: list[Expr]) -> tuple[Op, Expr] | None:
    """Return the nearest operation that feeds values and is not exact."""
    exact = collect_exact(checked)
    for e in walk_sources(checked, [(block, a) for a in floats]):
        operation = entry(checked, e)
        if operation is None:
            continue
        op = operation[0]
        is_exact = IdentityKey(e) in exact
        if op.sums or (op.ulps and not (op.traits.divides_floats and is_exact)) or (not is_exact and _may_fuse(e)):
            return op, e
    return None


def _may_fuse(e: Expr) -> bool:
    """Return whether an expression may be contracted to a fused multiply-add unless it is exact."""
    return (
        isinstance(e, Binary) and bool(traits(e).linear) and any(isinstance(x, Binary) and traits(x).multiplies for x in (e.left, e.right))
    )


WIDE = "wide"  # of inputs, with the largest products
_HINT = (
    "a product that is rounded elsewhere does not cancel this one: subtract first, c * (x - y) for c * x - c * y, or subtract "
    "the maximum of such products itself, row_max(c * x), which is computed as written"
)


def choose_contraction_cases(checked: Checked, cases: Iterable[Draw | Case], level: str) -> list[Draw]:
    """Return the smallest problems of wide inputs; none if the kernel has nothing to contract.

    Nor those of a mask or score: expert kernels contract a score and its row's maximum, whose error is a factor of all
    weights of the row, and cancels. Scores beyond 2^31 would overflow, which only such inputs of a steep score reach.
    """
    wide = [c for c in cases if isinstance(c, Draw) and c.kind == WIDE and compute_volume(c)] if list_contractable_sums(checked) else []
    return sorted(wide, key=compute_volume)[: FEW if level == "quick" else MANY]


def check_contraction(checked: Checked, judge: Callable[[], Sequence[Mapping[str, object]]]) -> None:
    """Judge a problem with all products contracted.

    Raises CuirError V301 for a sum that changes the verdict.

    judge: runs the kernel on fresh arguments, and returns rows of numbers, or raises CuirError for a bad verdict. It
    passed without contraction.
    """
    sums = list_contractable_sums(checked)
    error = judge_with(judge, contract_sums(sums))
    if error is None or not error.diagnostics[0].code.startswith("V3"):
        return
    alone = ((e, judge_with(judge, contract_sums([e]))) for e in sums)
    e, error = next(((e, alone_error) for e, alone_error in alone if alone_error is not None), (sums[0], error))
    before = max((float(r["error / allowed"]) for r in judge() if "error / allowed" in r), default=0.0)  # type: ignore[arg-type]
    raise _make_contraction_error(e, error, before)


def _make_contraction_error(e: Expr, error: CuirError, before: float) -> CuirError:
    first = error.diagnostics[0]
    message = f"the GPU may round the product and the sum `{shorten(e)}` once (FMA), and the result is then wrong"
    notes = (Note(f"then: {first.message}"), *first.notes, Note(f"with both rounded, the error is {before:.2f} of what is allowed"))
    return CuirError([Diagnostic("V301", message, e.span, notes, _HINT)])


__all__ = [
    "check_contraction",
    "check_perturbed",
    "choose_contraction_cases",
    "choose_perturbed",
    "compute_volume",
    "judge_with",
    "shorten",
]
