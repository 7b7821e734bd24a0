"""Runs of the synchronisation of a launch alone, without moving or computing data.

Barriers, engines, groups and races behave as with data. Statements outside of the slice (control_slice.py) are left
out; tiles are stand-ins without values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from ..arguments.binding import Argument
from ..checking.checked import Checked, set_type
from ..checking.views import Drop, make_view, root_name
from ..ops.base import Op
from ..ops.expressions import subscript
from ..ops.meaning.tiles import force_exact_products, force_one_thread
from ..syntax.nodes import Assign, Call, Expr, Literal, Name, Slice, Stmt, Subscript
from ..syntax.types import TileType
from ..syntax.walk import children
from ..text.diagnostics import CuirError
from .actions import Product, ReclaimedRegisters
from .async_groups import check_rebinding
from .code import Compiler, Site, read_settled_tile
from .control_slice import ControlSlice, RoleSlice, control_slice, has_effects, is_data, is_watched
from .interpreted_launch import Grid, LaunchOptions, RunReport, prepare, report_of, run_batches, run_chosen
from .machine import Evaluate, Instruction, Worker
from .ops_registry import RUNS
from .schedule import Schedule
from .values import make_blank


def run_without_data(
    checked: Checked,
    arguments: Mapping[str, Argument],
    *,
    grid: Grid | None = None,
    schedule: Schedule | None = None,
    budget: float | None = None,
    choose: Callable[[int], Sequence[int]] | None = None,
) -> RunReport:
    """Run a launch's synchronisation alone, under a schedule (by default in order).

    arguments: as for `run`; only tensors in `control_slice(checked).inputs` are read, none is written. choose: returns
    the CTAs (or clusters) that run, for their number, by default all; for kernels whose CTAs do not wait for each
    other. Raises
    CuirError as `run` does for deadlocks, overruns, races and values in flight, and V202 for a kernel whose control
    flow depends on data that such a run does not have.
    """
    begin = time.perf_counter()
    parts = control_slice(checked)
    if parts.refusal is not None:
        raise CuirError([parts.refusal])
    schedule = schedule or Schedule()
    with np.errstate(all="ignore"), torch.inference_mode(), force_exact_products(), force_one_thread():
        launch, units, _ = prepare(checked, arguments, LaunchOptions(grid, schedule, budget=budget), compiler=SynchronisationCompiler)
        for name in parts.unwatched:
            launch.tensors[name].shadow = None
        if choose is None:
            run_batches(launch)
        else:
            run_chosen(launch, choose(launch.grid))
    return report_of(launch, units, time.perf_counter() - begin)


class SynchronisationCompiler(Compiler):
    """Compiler of the statements that the protocol needs."""

    data = False

    def __init__(self, checked: Checked, device: torch.device, costs: bool, perturbs: bool = False):
        super().__init__(checked, device, costs, perturbs)
        self.slice: ControlSlice = control_slice(checked)
        self.role_slice: RoleSlice | None = None  # slice of the role being compiled; None in declarations

    # ---- statements
    def compile_block(self, stmts: Sequence[Stmt], code: list[Instruction]) -> None:
        role = next((r for r in self.checked.roles if r.body is stmts), None)
        if role is not None:
            self.role_slice = self.slice.roles[role.name]
        super().compile_block(stmts, code)

    def compile_statement(self, stmt: Stmt, code: list[Instruction]) -> None:
        if self.role_slice is None or self.role_slice.keeps(stmt):
            super().compile_statement(stmt, code)

    def compile_assignment(self, stmt: Assign) -> Instruction:
        name, span = stmt.targets[0], stmt.span
        role_slice = self.role_slice
        if role_slice is None or name in role_slice.needed:
            return super().compile_assignment(stmt)
        value, alias = self.compile_stand_in(stmt.value), isinstance(stmt.value, Name)
        if name not in role_slice.watched:
            return _drop_value(value)

        def bind(w: Worker) -> None:
            v = value(w)
            if not alias and v.__class__ is torch.Tensor:
                v = v[:]  # a product takes over all names that hold one object
            old = w.frame.get(name)
            if isinstance(old, Product) or w.groups.operands:
                check_rebinding(w, name, old, v, span)
            w.frame[name] = v

        return bind

    def compile_expression_statement(self, value: Expr) -> Instruction:
        if self.role_slice is None or not isinstance(value, Call) or not has_effects(self.checked, value):
            return _drop_value(self.compile_stand_in(value))
        return self.compile_effect(value)

    # ---- expressions without values
    def compile_effect(self, e: Expr) -> Evaluate:
        """Compile a call or read with effects, without its data."""
        if isinstance(e, Call):
            bound = self.checked.call(e)
            return RUNS[bound.op.name](_SiteWithoutData(self, bound.op, bound.args, e))
        op = subscript(self.checked.type_of(e))
        return RUNS[op.name](_SiteWithoutData(self, op, {op.params[0].name: e}, e))

    def compile_stand_in(self, e: Expr) -> Evaluate:
        """Compile an expression without data: its effects run, and its value is a stand-in of its shape."""
        if isinstance(e, Name):
            return self.compile_name(e)
        if has_effects(self.checked, e):
            return self.compile_effect(e)
        effects, blank = self.collect_effects(e), self.blank(e)

        def run(w: Worker) -> object:
            for effect in effects:
                effect(w)
            return blank

        return run

    def blank(self, e: Expr) -> object:
        """Return a value of an expression's shape without meaning."""
        kind = self.checked.type_of(e)
        if not isinstance(kind, TileType):
            return 0
        return make_blank(kind, self.device)

    def collect_effects(self, e: Expr) -> list[Evaluate]:
        """Compile the effects of an expression's operands; a read of a product in flight is an error."""
        effects: list[Evaluate] = []
        for part in children(e):
            if isinstance(part, Name):
                if self.role_slice is not None and part.id in self.role_slice.watched and isinstance(part.type, TileType):
                    effects.append(self.compile_name_read(part))
            elif isinstance(part, Expr) and has_effects(self.checked, part):
                effects.append(self.compile_effect(part))
            else:
                effects += self.collect_effects(part)  # type: ignore[arg-type]
        return effects

    def compile_name(self, e: Name) -> Evaluate:
        """Compile a read of a name, a product in flight included; a stand-in if no kept statement bound it."""
        name, blank = e.id, self.blank(e)
        return lambda w: w.frame.get(name, blank)

    def compile_name_read(self, e: Name) -> Evaluate:
        """Compile a read of a name's value.

        Raises CuirError M405, M408 where it is in flight or taken over.
        """
        binding, name, span = self.compile_name(e), e.id, e.span

        def read(w: Worker) -> object:
            v = binding(w)
            return read_settled_tile(w, name, v, span) if isinstance(v, (Product, ReclaimedRegisters)) else v

        return read


class _SiteWithoutData(Site):
    """A call of which only the arguments that decide places and times have values."""

    values = False

    def __init__(self, compiler: SynchronisationCompiler, op: Op, args: Mapping[str, Expr], node: Expr):
        super().__init__(compiler, op, {n: _move_to_start(compiler, e) for n, e in args.items()}, node)
        self.compiler_without_data, self.bound = compiler, compiler.checked.find_call(node)

    def value(self, arg: str) -> Evaluate:
        e = self.args[arg]
        if self.bound is None or not is_data(self.compiler_without_data.checked, self.bound, arg):
            return super().value(arg)
        return self.compiler_without_data.compile_name_read(e) if isinstance(e, Name) else self.compiler_without_data.compile_stand_in(e)

    def compile_held(self, arg: str) -> Evaluate:
        return self.compiler_without_data.compile_stand_in(self.args[arg])


def _drop_value(value: Evaluate) -> Instruction:
    """Compile a statement whose value nobody needs."""

    def run(w: Worker) -> None:
        value(w)

    return run


def _move_to_start(compiler: SynchronisationCompiler, e: Expr) -> Expr:
    """Return a box at the start of a tensor, where the part of the tensor does not matter."""
    root = root_name(e)
    tensor = next((t for t in compiler.checked.tensors if t.name == root), None)
    if tensor is None or not isinstance(e, Subscript):
        return e
    if is_watched(compiler.checked, root) and root not in compiler.slice.unwatched:
        return e
    view = make_view(e, len(tensor.dims))
    if view is None or any(isinstance(p, Drop) and isinstance(compiler.checked.find_type(p.index), TileType) for p in view.parts):
        return e
    zero = Literal(0, span=e.span)
    indices = tuple(
        zero if isinstance(p, Drop) else Slice(span=e.span) if p.size is None else Slice(zero, Literal(p.size, span=e.span), span=e.span)
        for p in view.parts
    )
    moved = set_type(replace(e, indices=indices), compiler.checked.type_of(e))
    object.__setattr__(moved, "place", e.place)
    return moved
