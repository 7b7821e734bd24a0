"""Verdicts that must not hang on the last bits of what is not exact: a problem is judged once more with noise, and what changes the verdict is named.

Owns which problems, and the search for the comparison to blame. The noise is cuir/interp/noise.py's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any, TypeVar

import numpy as np
import torch

from ..checking.checked import Checked
from ..checking.decisions import deciders, definitions, dtype_of, entry
from ..interp.noise import Noise, Truth, perturbing
from ..ops.base import Op
from ..syntax.nodes import Expr, Name
from ..syntax.printer import show
from ..syntax.walk import Itself
from ..text.diagnostics import CuirError, Diagnostic, Note
from .problems import Case

SEED = 1
FEW = 2  # problems of level quick
MANY = 12

C = TypeVar("C")


def to_perturb(checked: Checked, cases: Iterable[C], level: str) -> list[C]:
    """The smallest problems that are not empty; none if no comparison is fed by what is not exact."""
    if not any(inexact(checked, floats) for _, floats in deciders(checked)):
        return []
    sized = sorted(((_volume(c), i, c) for i, c in enumerate(cases)), key=lambda x: x[:2])
    return [c for volume, _, c in sized if volume > 0][: FEW if level == "quick" else MANY]


def _volume(case: Any) -> int:
    sizes = asdict(case.lengths) if isinstance(case, Case) else case.sizes
    return math.prod(int(n) for n in sizes.values())


def check_perturbed(checked: Checked, judged: Callable[[], object]) -> None:
    """Judges twice more with noise, to opposite sides; `judged` runs the kernel on fresh arguments, and raises CuirError for a bad verdict (it passed without noise).

    Raises CuirError V308 if a comparison changed its truth and with it the verdict. Numbers that are further off without one are within the bounds.
    """
    for seed in (SEED, -SEED):
        if (error := _judged(judged, Noise(seed))) is not None:
            _blame(checked, judged, seed, error)


def _blame(checked: Checked, judged: Callable[[], object], seed: int, error: CuirError) -> None:
    calm, shaken = Noise(seed, off=True, truths=[]), Noise(seed, truths=[])
    if _judged(judged, calm) is not None:
        return
    _judged(judged, shaken)
    flipped = _flipped(calm.truths or [], shaken.truths or [])
    truths: dict[Itself, list[Any]] = {}
    for e, value in calm.truths or []:
        truths.setdefault(Itself(e), []).append(value)
    for e in flipped:
        if _judged(judged, Noise(seed, forced={Itself(e): list(truths[Itself(e)])})) is None:
            raise _blamed(checked, e, error)
    if flipped and _judged(judged, Noise(seed, forced={Itself(e): list(truths[Itself(e)]) for e in flipped})) is None:
        raise _blamed(checked, flipped[0], error)


def _judged(judged: Callable[[], object], noise: Noise) -> CuirError | None:
    try:
        with perturbing(noise):
            judged()
    except CuirError as error:
        return error
    return None


def _flipped(calm: list[Truth], shaken: list[Truth]) -> list[Expr]:
    """The comparisons that gave something else, in order of the first time."""
    before: dict[Itself, list[Any]] = {}
    for e, value in calm:
        before.setdefault(Itself(e), []).append(value)
    flipped: dict[Itself, Expr] = {}
    for e, value in shaken:
        others = before.get(Itself(e))
        other = others.pop(0) if others else None
        if other is not None and Itself(e) not in flipped and not _same(value, other):
            flipped[Itself(e)] = e
    return list(flipped.values())


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape == b.shape and torch.equal(a, b)
    return np.shape(a) == np.shape(b) and bool(np.all(a == b))


def _blamed(checked: Checked, e: Expr, error: CuirError) -> CuirError:
    floats = next(f for d, f in deciders(checked) if d is e)
    source = inexact(checked, floats)
    first = error.diagnostics[0]
    notes = [Note(f"then: {first.message}"), *first.notes]
    if source is not None:
        notes.insert(0, Note(f"fed by `{source[0].written}`, which is {_bound(source[0])}", source[1].span))
    what = "comparison" if entry(checked, e) and len(floats) > 1 else "test"
    return CuirError([Diagnostic("V308", f"the {what} `{_short(e)}` hangs on the last bits of a value that is not exact, and the result on it", e.span, tuple(notes),
                                 "compare numbers that are exact (before the function, or indices), or leave room for the error: x > c - 0.001")])  # fmt: skip


def _short(e: Expr) -> str:
    """As it is written, where that is one line; names of functions' locals differ in the flat kernel."""
    span = e.span
    line = span.source.line(span.line) if span.line == span.end_line else ""
    text = line[span.column - 1 : span.end_column - 1] or show(e)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _bound(op: Op) -> str:
    return f"right within {op.ulps} units in the last place" if op.ulps else "a sum in no fixed order"


def inexact(checked: Checked, floats: list[Expr]) -> tuple[Op, Expr] | None:
    """The nearest operation that values are made by and that is not exact."""
    return next(_inexact(checked, floats), None)


def _inexact(checked: Checked, floats: list[Expr]) -> Iterator[tuple[Op, Expr]]:
    bound: dict[str, list[Expr]] = {}
    for body in (checked.declarations, *(r.body for r in checked.roles)):
        for name, values in definitions(body).items():
            bound.setdefault(name, []).extend(values)
    left, seen = list(floats), set[str]()
    while left:
        e = left.pop(0)
        if isinstance(e, Name):
            if e.id not in seen:
                seen.add(e.id)
                left += bound.get(e.id, [])
            continue
        operation = entry(checked, e)
        if operation is None:
            continue
        op, args = operation
        as_written = op.traits.divides_floats and e.decides
        if op.sums or (op.ulps and not as_written):
            yield op, e
        left += [a for a in args if isinstance(a, Expr) and dtype_of(checked, a) is not None]


__all__ = ["check_perturbed", "inexact", "to_perturb"]
