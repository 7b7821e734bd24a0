"""Special values that occur together.

Infinities in several tensors, with scalars at 0 and 1; whole rows of -inf; rows beyond what exponentials admit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ...spec.function_specification import Value
from .special_values import HIDDEN_COLUMNS, number_rows

_MEETING = (0.0, 1.0)  # values of scalars that make an infinity NaN, or remove it
_SHARE = 1 / 4  # share of the elements changed by whole rows of -inf that must be finite
_GROWN = 1e3  # the largest output, relative to the plain outputs: steeper rows with larger outputs are dropped
_RANGES = (100.0, 200.0)  # the range of rows within a block; exp overflows at 88
_FALLING, _RISING, _SUMS, _APART = "falling", "rising", "sums", "apart"

Outputs = Mapping[str, torch.Tensor]
Evaluate = Callable[[Mapping[str, Value]], Outputs | None]
Defined = Callable[[Outputs, Outputs | None, float], bool]


@dataclass(frozen=True)
class Meeting:
    """Infinities that occur together.

    values: of each tensor; empty: tensors that also have whole rows of -inf; scalars: their values then.
    """

    values: Mapping[str, tuple[float, ...]]
    empty: tuple[str, ...] = ()
    scalars: Mapping[str, Value] = field(default_factory=dict)


def meet(meeting: Meeting, tensors: Mapping[str, torch.Tensor], turn: int, generator: torch.Generator) -> dict[str, Value]:
    """Return values of the tensors and scalars of a meeting.

    In tensors of one shape half of the places are the same.
    """
    inputs: dict[str, Value] = {**meeting.scalars}
    shared: dict[tuple[int, ...], torch.Tensor] = {}
    for n, values in meeting.values.items():
        x = tensors[n]
        odd = (number_rows(x) + turn) % 2 == 0 if x.dim() > 1 else torch.tensor(True)
        if tuple(x.shape) not in shared:
            shared[tuple(x.shape)] = torch.rand(x.shape, generator=generator) < 1 / 32
        places = (shared[tuple(x.shape)] | (torch.rand(x.shape, generator=generator) < 1 / 32)) & odd
        drawn = torch.tensor(values or (0.0,), dtype=torch.float64)[torch.randint(len(values) or 1, x.shape, generator=generator)]
        inputs[n] = torch.where(places & bool(values), drawn.to(x.dtype), x)
    for n in meeting.empty:
        y = inputs.get(n, tensors[n])
        assert isinstance(y, torch.Tensor)
        inputs[n] = put_empty_rows(y, turn)
    return inputs


def put_empty_rows(x: torch.Tensor, turn: int) -> torch.Tensor:
    """Put -inf into all of every fourth row."""
    return torch.where((number_rows(x) + turn) % 4 == 0, torch.full_like(x, -math.inf), x)


def find_meetings(
    tensors: Mapping[str, torch.Tensor],
    single: Mapping[str, tuple[float, ...]],
    scalars: Mapping[str, Sequence[Value]],
    evaluate: Evaluate,
    defined: Defined,
) -> tuple[Meeting, ...]:
    """Find which infinities may occur together, by what the specification gives.

    With the scalars as they are and at 0 and 1. single: those that each tensor may have alone.
    """
    edges = [dict.fromkeys((n for n in scalars if v in scalars[n]), v) for v in _MEETING]
    edges += [{n: v} for n in scalars for v in _MEETING if v in scalars[n] and len(scalars) > 1]
    settings: list[dict[str, Value]] = [{}, *({n: _match_value(scalars[n], v) for n, v in e.items()} for e in edges if e)]
    meetings = list[Meeting]()
    for setting in settings:
        plain = evaluate(setting)
        if plain is None:
            continue

        def evaluate_meeting(meeting: Meeting) -> Outputs | None:
            return evaluate(meet(meeting, tensors, 0, torch.Generator().manual_seed(0)))

        def holds(meeting: Meeting, plain: Outputs = plain) -> bool:
            meetings = evaluate_meeting(meeting)
            return defined(plain, meetings, _SHARE) or _is_same(plain, meetings)

        each = {n: tuple(v for v in (-math.inf, math.inf) if holds(Meeting({n: (v,)}, (), setting))) for n in tensors}
        sided = [
            n for n in tensors if not _is_same(*(evaluate_meeting(Meeting({n: (v,)}, (), setting)) or {} for v in (-math.inf, math.inf)))
        ]
        values = {n: accepted for n, accepted in each.items() if n in sided and accepted and (not setting or math.inf not in accepted)}
        # beside scalars: where -inf leaves out, and inf gives no number
        masks = [n for n in sided if not setting or n in values]
        empty = tuple(n for n in masks if tensors[n].dim() > 1 and holds(Meeting({}, (n,), setting)))
        below = {n: (-math.inf,) for n, accepted in values.items() if -math.inf in accepted}
        whole = (Meeting(below, empty, setting), Meeting(values, empty, setting), Meeting(below, (), setting), Meeting(values, (), setting))
        new = setting or len(values) > 1 or empty
        if (
            new
            and (accepted := next((m for m in whole if (m.values or m.empty) and _says_something(plain, evaluate_meeting(m))), None))
            and accepted not in meetings
        ):
            meetings.append(accepted)
    return tuple(meetings)


def _is_same(plain: Outputs, outputs: Outputs | None) -> bool:
    return outputs is not None and all(
        n in outputs and torch.equal(x.nan_to_num(7.5), outputs[n].nan_to_num(7.5)) for n, x in plain.items()
    )


def _says_something(plain: Outputs, outputs: Outputs | None) -> bool:
    """Return whether each output has a finite number, and a share of the elements that differ is not NaN."""
    if outputs is None or not all(bool(x.isfinite().any()) for x in outputs.values()):
        return False
    differs = [(~((x == plain[n]) | (x.isnan() & plain[n].isnan())), x.isnan()) for n, x in outputs.items() if x.shape == plain[n].shape]
    changed, open_ = sum(int(d.sum()) for d, _ in differs), sum(int((d & nan).sum()) for d, nan in differs)
    return open_ <= (1 - _SHARE) * changed


def _match_value(values: Sequence[Value], v: float) -> Value:
    """Return the number, or the boolean that equals it."""
    return next(x for x in values if x == v)


def make_steep(x: torch.Tensor, form: str, turn: int) -> torch.Tensor:
    """Return rows that fall or rise by 100 or by 200 within a block; every third row stays.

    sums: rows that fall or rise already are scaled to that range. apart: elements in turn lie above and below others.
    """
    columns = x.shape[-1]
    if form == _APART:
        side = (torch.arange(x.numel()).view(x.shape) + turn) % 3 - 1
        return torch.where(x.isfinite(), _clamp(x.double() + side * _RANGES[1], x.dtype), x)
    number = (number_rows(x) + turn) % 3
    range_of_row = torch.tensor([*_RANGES, 0.0], dtype=torch.float64)[number]
    if form == _SUMS:
        block = x.double()[..., : min(columns, HIDDEN_COLUMNS)]
        width = (block[..., -1:] - block[..., :1]).abs()
        factor = torch.where((width > 0) & (number < 2), range_of_row / width.clamp(min=1e-6), 1.0)
        return _clamp(x.double() * factor.clamp(min=1.0), x.dtype)
    steps = x.double().abs()
    steps = steps / steps[..., : min(columns, HIDDEN_COLUMNS)].sum(-1, keepdim=True).clamp(min=1e-6) * range_of_row
    y = steps.cumsum(-1) * (-1 if form == _FALLING else 1)
    return _clamp(torch.where(number < 2, y, x.double()), x.dtype)


def _clamp(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    largest = torch.finfo(dtype).max
    return x.clamp(-largest, largest).to(dtype)


def find_steep(tensors: Mapping[str, torch.Tensor], evaluate: Evaluate, plain: Outputs) -> tuple[tuple[str, str], ...]:
    """Find tensors whose rows may fall, or rise, so far that the outputs stay numbers of about their size."""
    forms = [(n, form) for form in (_FALLING, _RISING) for n, x in tensors.items() if x.shape[-1] > 1]
    return tuple((n, form) for n, form in forms if _stays(plain, evaluate({n: make_steep(tensors[n], form, 0)})))


def find_steep_sums(tensors: Mapping[str, torch.Tensor], evaluate: Evaluate) -> tuple[tuple[str, str], ...]:
    """Find tensors of the specification whose rows all fall or rise, such as running sums of logarithms."""
    plain = evaluate({})
    if plain is None:
        return ()
    steady = [n for n, x in tensors.items() if x.dim() and x.shape[-1] > 3 and _is_monotone(x)]
    return tuple((n, _SUMS) for n in steady if _stays(plain, evaluate({n: make_steep(tensors[n], _SUMS, 0)})))


def find_apart(tensors: Mapping[str, torch.Tensor], evaluate: Evaluate) -> tuple[tuple[str, str], ...]:
    """Find tensors of the specification, of one shape with another, from whose elements theirs may be far apart.

    Logarithms of parts that are merged are such. The smallest tensors come first.
    """
    shapes = [x.shape for x in tensors.values()]
    several = sorted((n for n, x in tensors.items() if x.dim() and shapes.count(x.shape) > 1), key=lambda n: (tensors[n].numel(), n))
    plain = evaluate({}) if several else None
    if plain is None:
        return ()
    return tuple((n, _APART) for n in several if _stays(plain, evaluate({n: make_steep(tensors[n], _APART, 0)})))


def _is_monotone(x: torch.Tensor) -> bool:
    steps = x.double().diff(dim=-1)
    return bool((steps <= 0).all() or (steps >= 0).all()) and bool((steps != 0).any())


def _stays(plain: Outputs, outputs: Outputs | None) -> bool:
    """Return whether outputs stay finite where they were, and of about their size."""
    if outputs is None:
        return False
    for n, x in outputs.items():
        most = plain[n].double()[plain[n].isfinite()].abs().max().item() if bool(plain[n].isfinite().any()) else 0.0
        if x.shape != plain[n].shape or bool((~x.isfinite() & plain[n].isfinite()).any()):
            return False
        if bool((x.double()[x.isfinite()].abs() > _GROWN * (1 + most)).any()):
            return False
    return True


__all__ = ["Meeting", "find_apart", "find_meetings", "find_steep", "find_steep_sums", "make_steep", "meet", "put_empty_rows"]
