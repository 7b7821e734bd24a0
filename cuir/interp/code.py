"""Compiler from a flat kernel to code, which all launches on a device share.

Code is a list of functions of the worker with explicit jumps. Control flow and names are here; primitives and
operators are in ops/, subscripts in places.py. Invariants: an evaluator of anything but a name gives a tensor that
nobody else holds, so that the next operation may overwrite it; all that may split the lanes is evaluated before an
instruction has an effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import torch

from ..checking.checked import Checked
from ..ops.base import Effects, Op
from ..ops.expressions import operator, subscript, traits
from ..syntax.nodes import Assign, Binary, Call, Expr, ExprStmt, For, If, Literal, Name, Stmt
from ..syntax.types import DTYPES, F32, DType, Scalar, SharedView, TileType, Type
from ..syntax.walk import IdentityKey
from ..text.source import Span, spell_name
from .actions import Product, ReclaimedRegisters
from .async_groups import check_rebinding
from .event_trace import estimate_cost
from .expression_watches import Watch
from .faults import make_fault
from .late_waits import blame_late_wait, name_product_wait
from .machine import BLOCK, POINT, Block, Evaluate, Instruction, Worker
from .noisy_operations import collect_decisions, compile_perturbed
from .ops_registry import RUNS
from .step_budget import TURN
from .values import HELD_DTYPES, POISON, Diverge, DivisionByZero, collapse, f32, require_uniform


@dataclass
class TripCounts:
    """Trip counts of a loop: least and most for one entry into the loop, and the total, in all runs."""

    stmt: For
    least: int = -1  # -1: the loop was never entered
    most: int = -1
    total: int = 0
    counts: set[int] = field(default_factory=set)  # all trip counts that occurred

    def count(self, n: int) -> None:
        self.total += n
        self.counts.add(n)
        if n > self.most:
            self.most = n
        if n < self.least or self.least < 0:
            self.least = n


class Compiler:
    """Compiler of statements and expressions, for all launches on a device.

    costs: instructions also advance the worker's time, by the trace's cost model.
    """

    data = True  # whether data are moved and computed, or synchronisation alone is run
    observer: Watch | None = None  # observes the values of expressions

    def __init__(self, checked: Checked, device: torch.device, costs: bool, perturbs: bool = False):
        self.checked, self.device, self.costs, self.perturbs = checked, device, costs, perturbs
        self.deciders = collect_decisions(checked) if perturbs else frozenset[IdentityKey]()
        self.loops = 0
        self.blocks: list[Sequence[Stmt]] = []
        self.entered: set[int] = set()  # numbers of blocks that some run has entered
        self.turns: dict[int, TripCounts] = {}  # of each loop, by its number

    # ---- statements
    def compile_body(self, stmts: Sequence[Stmt]) -> list[Instruction]:
        code: list[Instruction] = []
        self.compile_block(stmts, code)
        return code

    def compile_block(self, stmts: Sequence[Stmt], code: list[Instruction]) -> None:
        number, entered = len(self.blocks), self.entered
        self.blocks.append(stmts)
        code.append(lambda w: entered.add(number))
        for stmt in stmts:
            self.compile_statement(stmt, code)

    def compile_statement(self, stmt: Stmt, code: list[Instruction]) -> None:
        if isinstance(stmt, Assign):
            code.append(self.add_cost(self.compile_assignment(stmt), stmt.value))
        elif isinstance(stmt, ExprStmt):
            code.append(self.add_cost(self.compile_expression_statement(stmt.value), stmt.value))
        elif isinstance(stmt, If):
            self.compile_branch(stmt, code)
        elif isinstance(stmt, For):
            self.compile_loop(stmt, code)

    def compile_expression_statement(self, value: Expr) -> Instruction:
        """Compile an expression as a statement, dropping a value that nobody needs.

        What an instruction returns says whether the worker blocks.
        """
        run = self.compile_expr(value)
        if not isinstance(value, Call) or self.checked.call(value).op.effects != Effects():
            return run

        def instruction(w: Worker) -> None:
            run(w)

        return instruction

    def add_cost(self, run: Instruction, value: Expr) -> Instruction:
        cost = estimate_cost(value, self.checked) if self.costs else 0.0
        if not cost:
            return run

        def instruction(w: Worker) -> int | None:
            signal = run(w)
            w.time += cost
            return signal

        return instruction

    def compile_assignment(self, stmt: Assign) -> Instruction:
        name, span = stmt.targets[0], stmt.span
        if isinstance(self.checked.type_of(stmt.value), TileType):
            value = self.compile_held(stmt.value)

            def bind_tile(w: Worker) -> None:
                v = value(w)
                frame = w.frame
                old = frame.get(name)
                if isinstance(old, Product) or w.groups.operands:
                    check_rebinding(w, name, old, v, span)
                frame[name] = v

            return bind_tile
        scalar = self.compile_expr(stmt.value)

        def bind_scalar(w: Worker) -> None:
            v = scalar(w)
            w.frame[name] = collapse(v) if v.__class__ is np.ndarray else v

        return bind_scalar

    def compile_branch(self, stmt: If, code: list[Instruction]) -> None:
        cond = self.compile_expr(stmt.cond)
        at = len(code)
        code.append(_placeholder)
        self.compile_block(stmt.body, code)
        after_body = len(code)
        if stmt.orelse:
            code.append(_placeholder)
            self.compile_block(stmt.orelse, code)
            code[after_body] = _jump(len(code))
            after_body += 1

        def branch(w: Worker) -> None:
            if not require_uniform(cond(w)):
                w.pc = after_body

        code[at] = branch

    def compile_loop(self, stmt: For, code: list[Instruction]) -> None:
        self.loops += 1
        key = f"#{self.loops}"  # not a name of the language, so it is free in the frame
        counter = self.turns[self.loops] = TripCounts(stmt)
        begun = f"{key}begun"
        head = len(code) + 1
        if isinstance(stmt.iter, Call):
            start, stop, step = self.compile_range(stmt.iter)

            def begin(w: Worker) -> None:
                first, end, by = require_uniform(start(w)), require_uniform(stop(w)), require_uniform(step(w))
                if by == 0:
                    raise make_fault(w.m, "M410", "the step of range is 0", stmt.iter.span, "a step that is positive or negative")
                budget = w.m.launch.budget
                count = count_turns(first, end, by)
                budget.require(count, TURN, stmt.iter.span)
                counter.count(count)
                w.frame[key] = first
                w.frame[begun] = first, perf_counter()

            def advance(w: Worker) -> None:
                i, end, by = w.frame[key], require_uniform(stop(w)), require_uniform(step(w))
                budget = w.m.launch.budget
                if perf_counter() > budget.look_at:
                    first, since = w.frame[begun]
                    budget.turn(count_turns(first, i, by), count_turns(first, end, by), since, stmt.iter.span)
                if i < end if by > 0 else i > end:
                    w.frame[stmt.target] = i
                    w.frame[key] = i + by
                else:
                    w.pc = exit_at

            end_at, steps = f"{key}s", f"{key}e"
            stop, step = self.freeze(stop, end_at, code), self.freeze(step, steps, code)
            head = len(code) + 1
            following: Instruction = advance
        else:

            def begin(w: Worker) -> None:
                w.frame[key] = 0
                for c in w.m.clusters:
                    counter.count(len(w.m.launch.work[c]))
                w.frame[begun] = perf_counter()

            def take(w: Worker) -> int | None:
                handout = w.m.handout
                if handout is not None and handout.behind(w.frame[key]):
                    w.block = Block(handout, w.frame[key], stmt.span)
                    return BLOCK
                k, work = w.frame[key], [w.m.launch.work[c] for c in w.m.clusters]
                if perf_counter() > w.m.launch.budget.look_at:
                    w.m.launch.budget.turn(k, max(map(len, work)), w.frame[begun], stmt.iter.span)
                has = [k < len(units) for units in work]
                if False in has:
                    if True in has:
                        raise Diverge([np.flatnonzero(has), np.flatnonzero(np.logical_not(has))])
                    w.pc = exit_at
                    w.unit = -1
                else:
                    w.unit = k
                    chosen = [units[k] for units in work]
                    same = chosen.count(chosen[0]) == len(chosen)
                    w.frame[stmt.target] = int(chosen[0]) if same else np.array(chosen, dtype=np.int64)
                    w.frame[key] = k + 1
                if handout is None:
                    return None
                handout.take(w.number)
                w.m.mark_change()
                w.block = None
                return POINT

            following = take

        code.append(begin)
        code.append(following)
        self.compile_block(stmt.body, code)
        code.append(_jump(head))
        exit_at = len(code)

    def freeze(self, e: Evaluate, key: str, code: list[Instruction]) -> Evaluate:
        """Compile a bound of a loop, evaluated once before it."""

        def keep(w: Worker) -> None:
            w.frame[key] = require_uniform(e(w))

        code.append(keep)
        return lambda w: w.frame[key]

    def compile_range(self, call: Call) -> tuple[Evaluate, Evaluate, Evaluate]:
        parts = [self.compile_expr(a) for a in call.args]
        zero, unit = _constant(0), _constant(1)
        if len(parts) == 1:
            return zero, parts[0], unit
        return parts[0], parts[1], parts[2] if len(parts) == 3 else unit

    # ---- expressions
    def compile_expr(self, e: Expr) -> Evaluate:
        """Compile the value of a scalar or tile; a value in flight may not be read."""
        return self.make_evaluator(e) if self.observer is None else self.observer.watch(e, self.make_evaluator(e))

    def make_evaluator(self, e: Expr) -> Evaluate:
        if isinstance(e, Name):
            return self.compile_name_value(e)
        if isinstance(e, Literal):
            return _constant(self.evaluate_literal(e))
        if isinstance(e, Call):
            bound = self.checked.call(e)
            return self.compile_application(bound.op, bound.args, e)
        operation = operator(e)
        op, operands = operation if operation is not None else (subscript(self.checked.type_of(e)), (e,))
        return self.compile_application(op, {p.name: x for p, x in zip(op.params, operands, strict=True)}, e)

    def compile_application(self, op: Op, args: Mapping[str, Expr], e: Expr) -> Evaluate:
        """Compile the application of a table entry to its arguments, with perturbation if requested."""
        run = self.guard_division(op, RUNS[op.name](Site(self, op, args, e)), e)
        return compile_perturbed(self.checked, self.deciders, self.compile_expr, op, list(args.values()), e, run) if self.perturbs else run

    def guard_division(self, op: Op, run: Evaluate, e: Expr) -> Evaluate:
        """Report a division by zero at its place."""
        if op.evaluate is None or not op.evaluate.divides:
            return run

        def run_guarded(w: Worker) -> Any:
            try:
                return run(w)
            except DivisionByZero:
                raise make_fault(w.m, "M411", f"{w.label} divides by zero", e.span, "guard it: max(1, x), or an if") from None

        return run_guarded

    def compile_name_value(self, e: Name) -> Evaluate:
        name, span = e.id, e.span
        if name == "inf":
            return _constant(float("inf"))
        if not isinstance(self.checked.type_of(e), TileType):
            return lambda w: w.frame[name]

        def read(w: Worker) -> Any:
            v = w.frame[name]
            return v if v.__class__ is torch.Tensor else read_settled_tile(w, name, v, span)

        return read

    def compile_held(self, e: Expr) -> Evaluate:
        """Compile a read of the value of a name, in flight or not, or of another expression."""
        if isinstance(e, Name) and e.id != "inf":
            name = e.id
            return lambda w: w.frame[name]
        return self.compile_expr(e)

    def compile_index(self, e: Expr) -> Evaluate:
        """Compile an index or the start of a slice; nodes made by composing views carry no type."""
        if isinstance(e, Literal):
            return _constant(e.value)
        if e.type is not None:
            return self.compile_expr(e)
        assert isinstance(e, Binary) and traits(e).linear == (1, 1)
        first, second = self.compile_index(e.left), self.compile_index(e.right)
        return lambda w: first(w) + second(w)

    def evaluate_literal(self, e: Literal) -> Any:
        t = self.checked.type_of(e)
        if isinstance(t, Scalar) and t.dtype.is_float and not isinstance(e.value, bool):
            return f32(float(e.value)) if t.dtype == F32 else float(torch.tensor(float(e.value), dtype=HELD_DTYPES[t.dtype]))
        return e.value


def count_turns(first: int, end: int, by: int) -> int:
    """Return the number of turns of a range, whose length may exceed what Python's range() allows."""
    return max(0, -(-(end - first) // by))


def read_settled_tile(w: Worker, name: str, v: Any, span: Span) -> torch.Tensor:
    """Return the tile of a name that was bound to a product.

    Raises CuirError M405 (in flight), M408 (taken over).
    """
    by = v.by if isinstance(v, ReclaimedRegisters) else v.successor
    if by is not None and w.m.launch.detect:
        raise make_fault(
            w.m,
            "M408",
            f"`{spell_name(name, span)}` is read after {by.actor.label} took its registers over",
            span,
            "read it before the product, or use the product's result",
            [("taken over here", by.actor.span)],
        )
    if isinstance(v, Product):
        if v.over and v.value is not None:
            return v.value
        if w.m.launch.detect:
            spelling = spell_name(name, span)
            hint, notes = blame_late_wait(
                w, span, "read", v.actor.span, f"{name_product_wait(w.m.launch.checked.arch)}({spelling}) before the read"
            )
            message = f"`{spelling}` is read while {v.actor.label} is in flight"
            raise make_fault(w.m, "M405", message, span, hint, [("issued here", v.actor.span), *notes])
    t = w.m.launch.checked  # an undetected early read gives poison
    role = next(r for r in t.roles if r.name == w.program.name)
    shape = role.locals[name]
    assert isinstance(shape, TileType)
    return torch.full((1, shape.rows, shape.cols), POISON[shape.dtype], dtype=HELD_DTYPES[shape.dtype], device=w.m.launch.device)


class Site:
    """A call or operator in the text, as the implementation of its entry sees it when code is made.

    values: whether data are moved and computed.
    """

    values = True

    def __init__(self, compiler: Compiler, op: Op, args: Mapping[str, Expr], node: Expr):
        self.compiler, self.op, self.args, self.node = compiler, op, args, node
        self.span = node.span
        self.device = compiler.device

    def has(self, arg: str) -> bool:
        return arg in self.args

    def variadic(self, arg: str) -> list[str]:
        return [name for name in self.args if name.startswith(arg) and name[len(arg) :].isdecimal()]

    def type(self, arg: str) -> Type:
        return self.compiler.checked.type_of(self.args[arg])

    def result(self) -> Type:
        return self.compiler.checked.type_of(self.node)

    def dtype(self, arg: str) -> DType:
        t = self.type(arg)
        assert isinstance(t, (Scalar, TileType))
        return t.dtype

    def value(self, arg: str) -> Evaluate:
        return self.compiler.compile_expr(self.args[arg])

    def compile_held(self, arg: str) -> Evaluate:
        return self.compiler.compile_held(self.args[arg])

    def is_name(self, arg: str) -> str | None:
        e = self.args[arg]
        return e.id if isinstance(e, Name) else None

    def fresh(self, arg: str) -> bool:
        """Return True if the tensor of this argument may be overwritten (see the module's invariant)."""
        return isinstance(self.type(arg), TileType) and not isinstance(self.args[arg], Name)

    def const(self, arg: str, default: Any = None) -> Any:
        """Return the value of a constant argument: a number, a bool, a string, a dtype, or dims."""
        e = self.args.get(arg)
        if e is None:
            return default
        if isinstance(e, Name) and e.id in DTYPES:
            return DTYPES[e.id]
        items = getattr(e, "items", None)
        if items is not None:
            return tuple(i.value for i in items)
        return getattr(e, "value", default)

    def is_shared(self, arg: str) -> bool:
        return isinstance(self.type(arg), SharedView)

    def rank(self, arg: str) -> int:
        t = self.type(arg)
        return len(t.dims) if isinstance(t, SharedView) else 0


def _constant(value: Any) -> Evaluate:
    return lambda w: value


def _jump(target: int) -> Instruction:
    def jump(w: Worker) -> None:
        w.pc = target

    return jump


def _placeholder(w: Worker) -> None:
    raise AssertionError("a jump without a target")
