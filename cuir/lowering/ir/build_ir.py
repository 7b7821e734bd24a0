"""The tile IR of a checked kernel: names become values, loops and branches carry those that they bind.

Every name of the program is a value at each place; where branches or turns of a loop meet, names that they bind
differently are carried. Nothing is optimised here: dead values are carried too (the pass `eliminate_dead_code` removes them).
Operations on exact floats are marked `exact` (checking/contraction.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from xdsl.dialects.builtin import IntAttr, StringAttr, UnitAttr
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from ...checking.checked import Checked
from ...checking.checked import Role as CheckedRole
from ...checking.contraction import collect_exact
from ...checking.fact_solver import reach
from ...checking.kernel_results import keep_with_kernel
from ...checking.tensor_modes import find_exchanged
from ...checking.views import Drop, make_view
from ...ops.base import PRODUCTS, Op, Param
from ...ops.expressions import operator, subscript, traits
from ...ops.traits import NEGATIVE
from ...syntax.nodes import Assign, Binary, Call, Expr, ExprStmt, For, If, IfExp, Literal, Name, Stmt, Str, Subscript, Unary
from ...syntax.nodes import Attribute as Member
from ...syntax.types import BOOL, F32, I32, BarrierType, DType, GlobalView, Scalar, SharedView, TileType, Void
from ...syntax.walk import IdentityKey, count_assignments
from ...text.source import Span
from . import ir_types as types
from . import ops
from .ir_walk import every, last, operations
from .product_waits import ProductWaits
from .program_places import Key, Places, make_key, make_location


def build(checked: Checked) -> ops.Kernel:
    """Build the IR of a kernel. The program's lines are its operations' locations."""
    return _Kernel(checked).build()


class Built(NamedTuple):
    """The IR of a kernel for analyses, which change nothing, and the value of each expression of the program."""

    kernel: ops.Kernel
    values: Mapping[IdentityKey, SSAValue]


@keep_with_kernel
def build_for_analyses(checked: Checked) -> Built:
    """Build the IR of a kernel once for all analyses that ask about expressions of the program."""
    builder = _Kernel(checked)
    return Built(builder.build(), builder.values)


def _hint(name: str) -> str:
    """Return a name as xDSL accepts it for a value: it puts numbers behind `_` itself."""
    return re.sub(r"_(\d+)$", r".\1", name) if name[-1].isdigit() else name


class _Builder:
    """Appends operations to a block, with the location of the statement that they come from.

    `places` collects the spans of locations, `values` those of expressions.
    """

    def __init__(self, block: Block, places: dict[Key, Span], values: dict[IdentityKey, SSAValue], span: Span | None = None):
        self.block, self.places, self.values, self.span = block, places, values, span
        self._constants: dict[tuple[str, str], SSAValue] = {}  # by text and dtype, of this block and those around it

    def make_inner(self, block: Block) -> _Builder:
        """Return a builder of a block that will stand inside of an operation at this place."""
        inner = _Builder(block, self.places, self.values, self.span)
        inner._constants = dict(self._constants)
        return inner

    @property
    def span(self) -> Span | None:
        """The statement; its location is made once for all its operations."""
        return self._span

    @span.setter
    def span(self, span: Span | None) -> None:
        self._span, self._location = span, None
        if span is not None:
            key = make_key(span)
            self.places.setdefault(key, span)
            self._location = make_location(key)

    def add(self, op: Operation, hint: str | None = None) -> SSAValue:
        """Append an operation, and return its first result."""
        self.put(op)
        if hint:
            op.results[0].name_hint = _hint(hint)
        return op.results[0]

    def add_constant(self, value: int | float | bool, dtype: DType) -> SSAValue:
        """Return a constant, which is made once for this block and those inside it."""
        key = repr(value), dtype.name  # 0.0 is not -0.0
        if key not in self._constants:
            self._constants[key] = self.add(ops.constant(value, dtype))
        return self._constants[key]

    def put(self, op: Operation) -> Operation:
        if self._location is not None:
            op.location = self._location
        self.block.add_op(op)
        return op


class _Kernel:
    """Builder of a kernel's declarations and roles."""

    def __init__(self, checked: Checked):
        self.checked = checked
        self.frame: dict[str, SSAValue] = {}
        self.places: dict[Key, Span] = {}
        self.values: dict[IdentityKey, SSAValue] = {}

    def build(self) -> ops.Kernel:
        checked, block = self.checked, Block()
        to = _Builder(block, self.places, self.values)
        exchanged = find_exchanged(checked)
        for t in checked.tensors:
            flags = {"written": t.written, "scratch": t.scratch, "exchanged": t.name in exchanged}
            words = [word for word, holds in flags.items() if holds]
            properties: dict[str, Attribute] = {"symbol": StringAttr(t.name), **{word: UnitAttr() for word in words}}
            kind = types.TensorT(StringAttr(t.dtype.name), types.dims(t.dims))
            to.span = t.span
            self._declare(to, t.name, ops.Tensor(properties=properties, result_types=[kind]))
        for s in checked.scalars:
            properties, to.span = {"symbol": StringAttr(s.name)}, s.span
            self._declare(to, s.name, ops.Parameter(properties=properties, result_types=[types.scalar(s.dtype)]))
        to.span = None
        for d in checked.dims:
            properties = {"symbol": StringAttr(d), "dim": UnitAttr()}
            self._declare(to, d, ops.Parameter(properties=properties, result_types=[types.scalar(I32)]))
        for a in checked.shared.values():
            to.span = a.span
            properties = {"symbol": StringAttr(a.name), "offset": IntAttr(a.offset)}
            self._declare(to, a.name, ops.Shared(properties=properties, result_types=[types.from_language(a.type)]))
        for b in checked.barriers.values():
            to.span = b.span
            threads = next((r.threads for r in checked.roles if r.name == b.arrivers), 32)
            warps = b.warps if b.hardware else b.count * (threads // 32)
            properties = {"symbol": StringAttr(b.name), "count": IntAttr(b.count), "warps": IntAttr(warps)}
            self._declare(to, b.name, ops.Barrier(properties=properties, result_types=[types.from_language(b.type)]))
        to.span = None
        frame = _Body(self.checked, to, self.frame)
        for stmt in checked.declarations:
            if isinstance(stmt, Assign) and isinstance(checked.declared.get(stmt.targets[0]), Scalar):
                frame.statement(stmt)
        self.frame = frame.env
        if checked.tiles is not None:
            properties = {"symbol": StringAttr(checked.tiles.name)} | ({"dynamic": UnitAttr()} if checked.tiles.dynamic else {})
            to.span = checked.tiles.span
            count = frame.value(checked.tiles.count)
            self._declare(to, checked.tiles.name, ops.Units(operands=[count], properties=properties, result_types=[types.UnitsT()]))
        for role in checked.roles:
            self._build_role(to, role)
        to.put(ops.end())
        kernel = ops.Kernel(
            properties={
                "symbol": StringAttr(checked.name),
                "arch": StringAttr(checked.arch),
                "cluster": IntAttr(checked.cluster),
                "cluster_x": IntAttr(checked.cluster_x),
                "threads": IntAttr(checked.threads),
                **({"consts": StringAttr(consts)} if (consts := ", ".join(f"{n}={v}" for n, v in checked.consts.items())) else {}),
                "places": Places(self.places),
            },
            regions=[Region(block)],
        )
        for parameter in _find_index_parameters(kernel):
            parameter.properties["judged"] = UnitAttr()
        origin = make_key(checked.origin.span)
        self.places.setdefault(origin, checked.origin.span)
        kernel.location = make_location(origin)
        return kernel

    def _declare(self, to: _Builder, name: str, op: Operation) -> None:
        self.frame[name] = to.add(op, name)

    def _build_role(self, to: _Builder, role: CheckedRole) -> None:
        block = Block(arg_types=[types.scalar(I32)])
        env = dict(self.frame)
        if role.index:
            block.args[0].name_hint = _hint(role.index)
            env[role.index] = block.args[0]
        waits = ProductWaits()
        body = _Body(self.checked, _Builder(block, self.places, self.values, role.span), env, waits)
        body.statements(role.body)
        body.to.put(ops.end())
        if replaced := waits.settle(block):
            self._update_values(replaced)
        to.span = role.span
        numbers = {
            "workers": role.workers,
            "threads": role.threads,
            "registers": role.registers or 0,
            "warpgroup": role.warpgroup,
            "warp": role.warp,
            **({"exchange": role.exchange, "exchanged": role.exchanged} if role.exchanged else {}),
        }
        to.put(
            ops.Role(properties={"symbol": StringAttr(role.name)} | {k: IntAttr(n) for k, n in numbers.items()}, regions=[Region(block)])
        )

    def _update_values(self, replaced: Mapping[SSAValue, SSAValue]) -> None:
        """Give expressions whose values were replaced those in their place."""
        for key, value in self.values.items():
            while value in replaced:
                value = self.values[key] = replaced[value]


class _Body:
    """Builder of the statements and expressions of a role, or of the kernel's frame.

    `env`: the value of each name at the present place.
    """

    def __init__(self, checked: Checked, to: _Builder, env: Mapping[str, SSAValue], waits: ProductWaits | None = None):
        self.checked, self.to, self.env = checked, to, dict(env)
        self.waits = ProductWaits() if waits is None else waits

    # ---- statements
    def statements(self, body: Sequence[Stmt]) -> None:
        for stmt in body:
            self.statement(stmt)

    def statement(self, stmt: Stmt) -> None:
        self.to.span = stmt.span
        if isinstance(stmt, Assign):
            name, t = stmt.targets[0], self.checked.type_of(stmt.value)
            if isinstance(t, (Scalar, TileType)):
                value = self.value(stmt.value)
                if value.name_hint is None:
                    value.name_hint = _hint(name)
                self.env[name] = value
        elif isinstance(stmt, ExprStmt):
            if isinstance(stmt.value, Call):
                self._build_effect(stmt.value)
            else:
                self.value(stmt.value)
        elif isinstance(stmt, If):
            self._build_if(stmt)
        else:
            assert isinstance(stmt, For)
            self._build_for(stmt)

    def _build_effect(self, call: Call) -> None:
        """Build a call for its effect; a wait for products gives the tiles that pass through it new values."""
        binding = self.checked.call(call)
        if binding.op.effects.drains != PRODUCTS:
            self._build_call(call)
            return
        names = [a.id for a in binding.args.values() if isinstance(a, Name)]
        self.to.put(self.waits.make(binding.op.name, names, self.env))

    def _build_if(self, stmt: If) -> None:
        condition = self.value(stmt.cond)
        regions, envs = [], []
        for body in (stmt.body, stmt.orelse):
            inner = self._make_inner(Block())
            inner.statements(body)
            regions.append(inner)
            envs.append(inner.env)
        # names bound in only one region are not read behind: the checker requires them to be bound
        changed = [n for n, v in self.env.items() if envs[0][n] is not v or envs[1][n] is not v]
        changed += [n for n in envs[0] if n not in self.env and n in envs[1]]
        for inner in regions:
            inner.to.span = stmt.span
            inner.to.put(ops.end([inner.env[n] for n in changed]))
        self.to.span = stmt.span
        branch = self.to.put(ops.branch(condition, *(Region(r.to.block) for r in regions)))
        self._rebind(changed, branch.results)

    def _build_for(self, stmt: For) -> None:
        names = count_assignments(stmt.body)
        carried = [n for n in self.env if n in names or n == stmt.target]
        bounds = None if isinstance(stmt.iter, Name) else self._build_range(stmt)
        block = Block(arg_types=[types.scalar(I32), *(self.env[n].type for n in carried)])
        inner = self._make_inner(block)
        for name, argument in zip([stmt.target, *carried], block.args, strict=True):
            argument.name_hint = _hint(name)
        for name, argument in zip(carried, block.args[1:], strict=True):
            inner.env[name] = argument
        inner.env[stmt.target] = block.args[0]
        inner.statements(stmt.body)
        inner.to.put(ops.end([inner.env[n] for n in carried]))
        start = [self.env[n] for n in carried]
        self.to.span = stmt.span
        if bounds is None:
            assert isinstance(stmt.iter, Name)
            loop = ops.loop_over_units(self.env[stmt.iter.id], start, Region(block))
        else:
            loop = ops.loop(*bounds, start, Region(block))  # type: ignore[assignment]
        self.to.put(loop)
        self._rebind(carried, loop.results)

    def _build_range(self, stmt: For) -> tuple[SSAValue, SSAValue, int]:
        assert isinstance(stmt.iter, Call)
        args = [self.value(a) for a in stmt.iter.args]
        start, stop = (self._add_constant(0), args[0]) if len(args) == 1 else args[:2]
        step = ops.constant_value(args[2]) if len(args) == 3 else 1
        assert isinstance(step, int) and step, "the checker sees to it"
        return start, stop, step

    def _make_inner(self, block: Block) -> _Body:
        return _Body(self.checked, self.to.make_inner(block), self.env, self.waits)

    def _rebind(self, names: Sequence[str], values: Sequence[SSAValue]) -> None:
        for name, value in zip(names, values, strict=True):
            value.name_hint = _hint(name)
            self.env[name] = value

    # ---- expressions
    def _add_constant(self, value: int | float | bool) -> SSAValue:
        return self.to.add_constant(value, BOOL if isinstance(value, bool) else I32 if isinstance(value, int) else F32)

    def value(self, expr: Expr) -> SSAValue:
        """Build the operations of an expression, and return its value."""
        value = self.to.values[IdentityKey(expr)] = self._build_expression(expr)
        return value

    def _build_expression(self, expr: Expr) -> SSAValue:
        t = self.checked.type_of(expr)
        if isinstance(expr, Literal):
            assert isinstance(t, Scalar)
            return self.to.add_constant(expr.value, t.dtype)
        if isinstance(expr, Name):
            return self._add_constant(float("inf")) if expr.id == "inf" else self.env[expr.id]
        if isinstance(t, (SharedView, GlobalView, BarrierType)):
            return self.place(expr)
        if (operator_call := operator(expr)) is not None:
            return self._build_operator(*operator_call, expr)
        if isinstance(expr, Subscript):
            return self.to.add(ops.perform(subscript(t).name, {"place": self.place(expr)}, [types.from_language(t)]))
        assert isinstance(expr, Call), expr
        return self._build_call(expr).results[0]

    def _build_operator(self, entry: Op, operands: tuple[Expr, ...], expr: Expr) -> SSAValue:
        kind = entry.traits
        if kind.linear == NEGATIVE and operands[0] == Name("inf"):
            return self._add_constant(float("-inf"))
        if kind.lazy and not all(_is_speculatable(self.checked, x) for x in operands[1:]):
            if kind.chooses:
                return self._build_lazy(*operands)
            first, second = operands
            return self._build_lazy(first, Literal(True), second) if kind.decided_by else self._build_lazy(first, second, Literal(False))
        return self._apply(entry.name, [self.value(x) for x in operands], expr)

    def _apply(self, name: str, args: Sequence[SSAValue], expr: Expr) -> SSAValue:
        return self.to.add(ops.apply(name, args, types.from_language(self.checked.type_of(expr)), self._is_exact(expr)))

    def _is_exact(self, expr: Expr) -> bool:
        return IdentityKey(expr) in collect_exact(self.checked)

    def _build_lazy(self, condition: Expr, then: Expr, orelse: Expr) -> SSAValue:
        """Build a choice of which only one side is evaluated.

        The other one might read outside of a tensor, or divide by 0.
        """
        test = self.value(condition)
        regions = []
        for side in (then, orelse):
            inner = self._make_inner(Block())
            value = inner._add_constant(side.value) if isinstance(side, Literal) and isinstance(side.value, bool) else inner.value(side)
            inner.to.put(ops.end([value]))
            regions.append(Region(inner.to.block))
        return self.to.put(ops.branch(test, *regions)).results[0]

    def _build_call(self, call: Call) -> Operation:
        binding, t = self.checked.call(call), self.checked.type_of(call)
        name, entry = binding.op.name, binding.op
        if entry.traits.measures:
            (array,) = binding.args.values()
            view = self.checked.type_of(array)
            assert isinstance(view, SharedView)
            return self.to.put(ops.constant(self._count_bytes(view), I32))
        if any(p.variadic for p in entry.params) and not isinstance(t, Void):  # two at a time, from the left
            first, *rest = (self.value(a) for a in binding.args.values())
            for x in rest:
                first = self._apply(name, [first, x], call)
            assert isinstance(first.owner, Operation)
            return first.owner
        params = {p.name: p for p in entry.params}
        reached = {a.arg for a in entry.effects.accesses if a.mode != "read" or entry.effects.group == "cp_async"}
        consts, values = {}, {}
        for arg, expr in binding.args.items():
            if _is_const(params[arg], expr):
                if isinstance(expr, (Literal, Str)) and not isinstance(expr.value, float):
                    consts[arg] = expr.value
            elif arg in reached and isinstance(expr, Subscript):
                values[arg] = self.place(expr)
            else:
                values[arg] = self.value(expr)
        if entry.effects.accesses or isinstance(t, Void):
            return self.to.put(ops.perform(name, values, [] if isinstance(t, Void) else [types.from_language(t)], consts))
        return self.to.put(ops.apply(name, list(values.values()), types.from_language(t), self._is_exact(call)))

    def _count_bytes(self, view: SharedView) -> int:
        """Compute the bytes of a view, the padding of its rows included."""
        rows = 1
        for d in view.dims[:-1]:
            rows *= d
        return rows * (-(-view.dims[-1] * view.dtype.itemsize // 16) * 16)

    # ---- places
    def place(self, expr: Expr) -> SSAValue:
        """Build the place of a view, a box, elements, or a barrier."""
        if isinstance(expr, Name):
            return self.env[expr.id]
        t = self.checked.type_of(expr)
        root: Expr = expr
        while isinstance(root, (Subscript, Member)):
            root = root.value
        assert isinstance(root, Name)
        array = self.env[root.id]
        if isinstance(t, BarrierType):
            assert isinstance(expr, Subscript)
            return self.to.add(ops.at(array, [(self.value(expr.indices[0]), -1)], types.from_language(t)))  # type: ignore[arg-type]
        rank = len(array.type.sizes)  # type: ignore[attr-defined]
        view = make_view(expr, rank)
        assert view is not None
        parts: list[tuple[SSAValue | None, int]] = []
        for part, dim in zip(view.parts, array.type.sizes, strict=True):  # type: ignore[attr-defined]
            if isinstance(part, Drop):
                parts.append((self.value(part.index), -1))
            elif part.start is None:
                parts.append((None, dim if isinstance(dim, int) else 0))
            else:
                assert part.size is not None
                start = self.value(part.start)
                parts.append((None if ops.constant_value(start) == 0 else start, part.size))
        if isinstance(t, (Scalar, TileType)):
            kind: Attribute = types.element(types.dtype_of(array), *((t.rows, t.cols) if isinstance(t, TileType) else ()))
        else:
            kind = types.from_language(t)
        return self.to.add(ops.at(array, parts, kind))


def _find_index_parameters(kernel: ops.Kernel) -> list[ops.Parameter]:
    """Return the integers from which a role computes an index of a tensor or the bounds of a loop.

    A launch is refused if arithmetic on the way there would leave 32 bits (arguments/index_ranges.py).
    """
    parameters = [op for op in operations(kernel.body.block) if isinstance(op, ops.Parameter) and op.dim is None]
    parameters = [op for op in parameters if types.dtype_of(op.result) == I32]
    if not parameters:
        return []
    roots = list[SSAValue]()
    for op in (op for role in kernel.roles for op in every(role)):
        if isinstance(op, ops.For):
            roots += [op.start, op.stop]
        elif isinstance(op, ops.At) and isinstance(op.array.type, types.TensorT):
            roots += op.starts
    outside = {result for op in operations(kernel.body.block) for result in op.results}
    reached = reach(roots, lambda value: () if value in outside else _list_inputs(value))
    return [op for op in parameters if op.result in reached]


def _list_inputs(value: SSAValue) -> Sequence[SSAValue]:
    """Return the values from which a role computes one."""
    op = value.owner
    if isinstance(op, Block):
        loop = op.parent_op()
        if not isinstance(loop, ops.Loop):
            return ()
        if value is loop.turn:
            return (loop.start, loop.stop) if isinstance(loop, ops.For) else ()
        i = loop.inner.index(value)
        return loop.carried[i], last(loop.body).values[i]
    if isinstance(op, ops.Loop):
        i = op.results.index(value)
        return op.carried[i], last(op.body).values[i]
    if isinstance(op, ops.Branch):
        i = op.results.index(value)
        return last(op.then).values[i], last(op.orelse).values[i]
    return op.operands


def _is_const(param: Param, expr: Expr) -> bool:
    """Return whether an argument is constant: a dtype, dims, a flag or a word.

    The first two are in the result's type.
    """
    return param.description.startswith(("const ", "dtype", "[", "word")) or not isinstance(expr, Expr)


def _is_speculatable(checked: Checked, expr: Expr) -> bool:
    """Return whether an expression and its operands are speculatable, or divide by nonzero constants."""
    if isinstance(expr, (Name, Literal)):
        return True
    if isinstance(expr, Subscript):
        return False
    if isinstance(expr, Binary) and traits(expr).divides_integers:
        return isinstance(expr.right, Literal) and expr.right.value != 0 and _is_speculatable(checked, expr.left)
    if isinstance(expr, Call):
        binding = checked.call(expr)
        return binding.op.speculatable and all(_is_speculatable(checked, a) for a in binding.args.values() if isinstance(a, Expr))
    return all(_is_speculatable(checked, a) for a in _iterate_operands(expr))


def _iterate_operands(expr: Expr) -> Iterator[Expr]:
    if isinstance(expr, Unary):
        yield expr.operand
    elif isinstance(expr, Binary):
        yield from (expr.left, expr.right)
    elif isinstance(expr, IfExp):
        yield from (expr.cond, expr.then, expr.other)


__all__ = ["Built", "build", "build_for_analyses"]
