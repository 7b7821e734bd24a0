"""Statements that cause wrong numbers and NaN, found by a second, watched run of the problem.

The report names the store of the wrong element and where a NaN began. Runs after a verdict, on the smallest problem
that fails, and never changes the verdict.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import torch

from ..attn.verification.problems import Launch
from ..checking.checked import Checked
from ..checking.views import root_name
from ..interp import Schedule
from ..interp.actions import Product
from ..interp.code import Compiler
from ..interp.faults import format_ranges
from ..interp.interpreted_launch import LaunchOptions, prepare, run_each
from ..interp.machine import Instruction, Worker
from ..ops.expressions import traits
from ..ops.meaning.tiles import view_bits
from ..ops.traits import Traits
from ..spec.function_specification import AnySpecification, FunctionSpecification
from ..spec.specification import Specification
from ..syntax.nodes import Assign, Binary, Call, Expr, ExprStmt, For, Name, Stmt, Subscript, Unary
from ..syntax.walk import names_read, walk
from ..text.diagnostics import CuirError, Diagnostic, Note
from ..text.source import Span, spell_name
from .inputs import FunctionLaunch, collect_readable

# replaced in the message once the watched run shows the cause of a NaN
_UNKNOWN = "as before the launch, or computed so,"
# a NaN that no computation produces, by bytes: marks elements that no store reached
_MARKS = {2: 0x7E5A, 4: 0x7FC0515A}


@dataclass(frozen=True)
class _Step:
    """One execution of a statement: its worker, and the turns of its loops."""

    stmt: Stmt
    label: str
    cluster: int
    unit: int | None
    turns: tuple[tuple[str, int], ...]  # of the enclosing loops, the outermost first

    @property
    def span(self) -> Span:
        return self.stmt.value.span if isinstance(self.stmt, (Assign, ExprStmt)) else self.stmt.span

    @property
    def turns_text(self) -> str:
        """The turns of the enclosing loops."""
        return f" ({', '.join(f'{name} = {value}' for name, value in self.turns)})" if self.turns else ""

    def __str__(self) -> str:
        work = f" for the unit of work {self.unit}" if self.unit is not None else ""
        return f"{self.label} of CTA {self.cluster}{work}{self.turns_text}"


@dataclass
class _Watch:
    """Observations of a watched run.

    last: for each output, the number of the step that wrote each element last; 0: none.
    """

    outputs: Mapping[str, torch.Tensor]
    before: dict[str, torch.Tensor] = field(default_factory=dict)
    last: dict[str, torch.Tensor] = field(default_factory=dict)
    steps: list[_Step] = field(default_factory=list)
    # where a NaN began: the number of stores before, the step, the name
    began: list[tuple[int, _Step, str]] = field(default_factory=list)
    overflowed: list[tuple[int, _Step, str]] = field(
        default_factory=list
    )  # the same of an overflow: finite numbers made an infinity, or a NaN by way of one

    def __post_init__(self) -> None:
        for name, x in self.outputs.items():
            self.before[name], self.last[name] = view_bits(x).clone(), torch.zeros(x.shape, dtype=torch.int32)

    def record_store(self, step: _Step) -> None:
        self.steps.append(step)
        for name, x in self.outputs.items():
            now = view_bits(x)
            changed = now != self.before[name]
            if changed.any():
                self.last[name][changed] = len(self.steps)
                self.before[name].copy_(now)


class _Watched(Compiler):
    """Code that reports the effect of each statement.

    One run at a time: the watch is stored in the class meanwhile.
    """

    watch: _Watch | None = None

    def __init__(self, checked: Checked, device: torch.device, costs: bool, perturbs: bool = False):
        super().__init__(checked, device, costs, perturbs)
        self.loops_around: list[tuple[str, bool]] = []  # names of loops, and whether they are over the units of work

    def compile_loop(self, stmt: For, code: list[Instruction]) -> None:
        self.loops_around.append((stmt.target, not isinstance(stmt.iter, Call)))
        super().compile_loop(stmt, code)
        self.loops_around.pop()

    def compile_statement(self, stmt: Stmt, code: list[Instruction]) -> None:
        at = len(code)
        super().compile_statement(stmt, code)
        if isinstance(stmt, (Assign, ExprStmt)):
            code[at] = self.watch_statement(code[at], stmt)

    def watch_statement(self, run: Instruction, stmt: Assign | ExprStmt) -> Instruction:
        loops, target = tuple(self.loops_around), stmt.targets[0] if isinstance(stmt, Assign) else ""
        bound = self.checked.find_call(stmt.value) if isinstance(stmt.value, Call) else None
        stores = bound is not None and any(a.mode != "read" for a in bound.op.effects.accesses)
        drains = bound is not None and bound.op.effects.drains is not None
        names = sorted(names_read(stmt.value))
        overflows = bool(target) and _is_finite_but_for_overflow(stmt.value)

        def step(w: Worker) -> _Step:
            units = [w.frame.get(n) for n, unit in loops if unit]
            turns = tuple((spell_name(n, stmt.span), int(w.frame[n])) for n, unit in loops if not unit and isinstance(w.frame.get(n), int))
            return _Step(stmt, w.label, int(w.m.clusters[0]), int(units[0]) if units and units[0] is not None else None, turns)

        def instruction(w: Worker) -> int | None:
            watch = _Watched.watch
            if watch is None:
                return run(w)
            clean = bool(target) and not any(_has_nan(w.frame.get(n)) for n in names if n != target)
            clean = clean and not (target in names and _has_nan(w.frame.get(target)))
            finite = overflows and clean and not any(_has_infinity(w.frame.get(n)) for n in names)
            outcome = run(w)
            if stores or drains:
                watch.record_store(step(w))
            if clean and _has_nan(w.frame.get(target)):
                watch.began.append((len(watch.steps), step(w), target))
            if finite and (_has_infinity(w.frame.get(target)) or _has_nan(w.frame.get(target))):
                watch.overflowed.append((len(watch.steps), step(w), target))
            return outcome

        return instruction


def _has_nan(value: object) -> bool:
    x = value.value if isinstance(value, Product) else value
    return isinstance(x, torch.Tensor) and x.is_floating_point() and bool(x.isnan().any()) if x is not None else False


def _has_infinity(value: object) -> bool:
    x = value.value if isinstance(value, Product) else value
    return math.isinf(x) if isinstance(x, float) else isinstance(x, torch.Tensor) and x.is_floating_point() and bool(x.isinf().any())


def _is_finite_but_for_overflow(value: Expr) -> bool:
    """Return whether finite operands give an infinity or a NaN only by overflow.

    There is no read, division, root or logarithm.
    """
    for node in walk(value):
        if isinstance(node, Subscript) or (isinstance(node, Name) and node.id == "inf"):
            return False
        if isinstance(node, (Binary, Unary, Call)) and not _overflows_at_most(traits(node)):
            return False
    return True


def _overflows_at_most(operator: Traits) -> bool:
    arithmetic = (
        operator.linear
        or operator.multiplies
        or operator.exponential
        or operator.extremum
        or operator.magnitude
        or operator.converts
        or operator.logistic
    )
    folds = operator.reduction or operator.column_reduction or operator.chooses or operator.votes
    without_floats = (
        operator.compares or operator.complements or operator.decided_by is not None or operator.tests_bit or operator.divides_integers
    )
    return bool(arithmetic or folds or without_floats or operator.constant is not None or operator.repeats or operator.index_of)


def blame(checked: Checked, spec: AnySpecification, problem: Launch | FunctionLaunch, error: CuirError) -> CuirError:
    """Locate a verdict V301 to V304 at the statement that stored the wrong element.

    Notes tell its worker, where a NaN began, and which elements are wrong. problem: its outputs as before
    the launch. Returns the error unchanged for other codes, and where a second run shows nothing.
    """
    first = error.diagnostics[0]
    named = re.match(r"\w+", first.message)
    if first.code not in ("V301", "V302", "V303", "V304", "V309") or named is None:
        return error
    for name in ("O", "LSE") if first.code == "V303" else (named[0],):
        if name not in problem.outputs:
            continue
        try:
            watch, wrong = _run_watched(checked, spec, problem.fresh() if isinstance(problem, Launch) else problem, name)
        except CuirError:
            return error
        if wrong is not None and wrong.any():
            return CuirError([_describe(checked, first, name, watch, wrong), *error.diagnostics[1:]])
    return error


def _run_watched(
    checked: Checked, spec: AnySpecification, problem: Launch | FunctionLaunch, name: str
) -> tuple[_Watch, torch.Tensor | None]:
    """Run the problem watched; return the wrong elements of the output: unexpected NaN, or large errors."""
    outputs = {n: x for n, x in problem.outputs.items() if x.element_size() in _MARKS and x.is_contiguous()}
    if name not in outputs:
        return _Watch({}), None
    marked = {}
    for n, x in outputs.items():
        marked[n] = x.isnan() if x.dtype.is_floating_point else torch.zeros_like(x, dtype=torch.bool)
        view_bits(x)[marked[n]] = _MARKS[x.element_size()]
    arguments = problem.arguments()
    watch = _Watch({n: cast(torch.Tensor, arguments[n]) for n in outputs})
    launch, _, _ = prepare(
        checked, arguments, LaunchOptions(schedule=Schedule.adversarial("engines_first"), detect=False), compiler=_Watched
    )  # engines act at once, so that a change belongs to the current statement
    _Watched.watch = watch
    try:
        run_each(launch)
    finally:
        _Watched.watch = None
    output = outputs[name].double()
    if isinstance(spec, FunctionSpecification):
        assert isinstance(problem, FunctionLaunch)
        expected = spec.exact(collect_readable(checked, problem), list(problem.before)).get(name)
    else:
        assert isinstance(problem, Launch) and isinstance(spec, Specification)
        if name in problem.extra_outputs:
            expected = spec.compute_output(name, problem.q, problem.k, problem.scale)
        else:
            expected = dict(zip(("O", "LSE"), spec.reference(problem.q, problem.k, problem.v, problem.scale))).get(name)
    if expected is None:
        return watch, None
    expected = expected.double()
    bad = output.isnan() & ~expected.isnan()
    if bad.any():
        return watch, bad
    same = (output == expected) | expected.isnan()
    off = torch.where(same, 0.0, (output - expected).abs().nan_to_num(nan=torch.inf))
    eps = torch.finfo(outputs[name].dtype).eps if outputs[name].dtype.is_floating_point else 0
    finite = expected[expected.isfinite()]
    rounding = 8 * eps * (finite.abs().max().item() if finite.numel() else 0.0)
    return watch, (off > 0) & (off > min(rounding, 0.25 * off.max().item()))


def _describe(checked: Checked, first: Diagnostic, name: str, watch: _Watch, wrong: torch.Tensor) -> Diagnostic:
    last = watch.last[name]
    unwritten = wrong & (last == 0)
    if unwritten.any():
        sites = find_stores(checked, name)
        pattern = _describe_pattern(unwritten)
        text = (
            f"no store reached {int(unwritten.sum()):,} of {last.numel():,} elements of `{name}`, the first {_format_element(name, unwritten)}"
            + (f"; {pattern}" if pattern else "")
        )
        other_stores = [Note(f"`{name}` is stored to here too", s) for s in sites[1:2]]
        return replace(first, span=sites[0] if sites else first.span, notes=(Note(text), *other_stores, *first.notes))
    index = tuple(torch.nonzero(wrong)[0].tolist())  # the first in memory order
    number = int(last[index])
    step = watch.steps[number - 1]
    pattern = _describe_pattern(wrong)
    notes = [
        Note(
            f"{_format_element(name, wrong)} was stored here by {step}{_describe_share(watch, last, wrong)}"
            + (f"; {pattern}" if pattern else "")
        )
    ]
    if first.code == "V302":
        overflow = _find_first(watch.overflowed, number, step)
        if overflow is not None:
            cause, target = overflow
            assert isinstance(cause.stmt, Assign)
            dtype = getattr(cause.stmt.value.type, "dtype", None)
            beyond = f": beyond {dtype.largest}, the largest {dtype}" if dtype is not None else ""
            notes.append(
                Note(
                    f"an overflow: `{spell_name(target, cause.span)}` is not finite here, and all operands are{beyond}{cause.turns_text}",
                    cause.span,
                )
            )
            message = first.message.replace(_UNKNOWN, "after an overflow,")
            first = replace(first, message=message, hint="scale down, subtract the largest number before an exponential, or compute in f32")
        first_nan = _find_first(watch.began, number, step)
        if first_nan is not None:
            began, target = first_nan
            notes.append(
                Note(
                    f"the first NaN of {step.label}'s unit of work: `{spell_name(target, began.span)}` has one here, and no operand had{began.turns_text}",
                    began.span,
                )
            )
    return replace(first, span=step.span, notes=(*notes, *first.notes))


def _find_first(observations: Sequence[tuple[int, _Step, str]], number: int, step: _Step) -> tuple[_Step, str] | None:
    """Return the first step before a store in its unit of work, preferably of the same worker."""
    candidates = [(s, n) for before, s, n in observations if before < number and s.cluster == step.cluster and s.unit == step.unit]
    return next((x for x in candidates if x[0].label == step.label), candidates[0] if candidates else None)


def find_stores(checked: Checked, name: str) -> list[Span]:
    """Return the places of the statements that store to a tensor."""
    spans = []
    for role in checked.roles:
        for node in (n for stmt in role.body for n in walk(stmt)):
            bound = checked.find_call(node)
            places = [bound.args.get(a.arg) for a in bound.op.effects.accesses if a.mode != "read"] if bound is not None else []
            if any(e is not None and root_name(e) == name for e in places):
                spans.append(node.span)
    return list(dict.fromkeys(spans))


def _format_element(name: str, selected: torch.Tensor) -> str:
    return f"{name}{torch.nonzero(selected)[0].tolist()}"


def _describe_share(watch: _Watch, last: torch.Tensor, wrong: torch.Tensor) -> str:
    """Describe whether all wrong elements are of one worker, unit or statement, and others are right."""
    steps = [watch.steps[n - 1] for n in torch.unique(last[wrong]).tolist() if n]
    right_steps = [watch.steps[n - 1] for n in torch.unique(last[~wrong]).tolist() if n]
    parts = []
    for noun, key in (
        ("unit of work", lambda s: s.unit),
        ("worker", lambda s: s.label),
        ("statement", lambda s: (s.span.line, s.span.column)),
    ):
        wrong_keys, all_keys = {key(s) for s in steps}, {key(s) for s in (*steps, *right_steps)}
        if len(wrong_keys) == 1 and len(all_keys) > 1:
            parts.append(f"this {noun}")
        elif noun == "unit of work" and None not in all_keys and len(wrong_keys) < len(all_keys):
            parts.append(f"units of work {', '.join(sorted(map(str, wrong_keys)))} of {len(all_keys)}")
    return f"; the wrong elements are all of {' and '.join(parts)}" if parts else ""


def _describe_pattern(wrong: torch.Tensor) -> str:
    """Describe the dims in which the wrong elements lie in a part of the places."""
    parts = []
    for d, n in enumerate(wrong.shape):
        places = wrong.movedim(d, 0).reshape(n, -1).any(1).nonzero().flatten().numpy()
        if 0 < len(places) < n:
            parts.append(f"dim {d} at {_format_places(places)} of {n}")
    return f"wrong: {', '.join(parts)}" if parts else ""


def _format_places(places: np.ndarray) -> str:
    text = format_ranges(places)
    return text if text.count(",") < 4 else f"{len(places)} places from {places[0]} to {places[-1]}"
