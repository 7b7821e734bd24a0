"""Inlining: a kernel with its consts known -> the flat kernel (see checked.py).

Scopes of names are resolved and tuples taken apart here; types are the checker's. Every node of the result is new,
with a span that records the call it came through.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ..ops.expressions import traits
from ..syntax.nodes import (
    Assign,
    Attribute,
    AugAssign,
    Binary,
    Call,
    Expr,
    ExprStmt,
    For,
    Func,
    GlobalType,
    If,
    IfExp,
    Kernel,
    Keyword,
    List,
    Literal,
    Name,
    Node,
    Program,
    Return,
    Slice,
    Stmt,
    Str,
    Subscript,
    Tuple,
    Unary,
    With,
)
from ..syntax.types import DTYPES, DType
from ..syntax.walk import copy_tree, count_assignments, names_read
from ..text.diagnostics import Sink
from ..text.source import Span
from .checked import Const
from .fold import fold
from .prelude_functions import prelude
from .rewrite_hints import find_hint
from .scope import (
    PRIMITIVES,
    UNKNOWN,
    Frame,
    FreshNames,
    Growth,
    TupleValue,
    Value,
    copy_value,
    count_bindings,
    decide_by_right,
    has_effect,
    is_alias,
    is_empty_range,
    is_rank_of_single_cta,
    pair_moves,
    remove_dead_literals,
)
from .views import compose, get_written_size


@dataclass
class FlatKernel:
    declarations: tuple[Stmt, ...]
    roles: tuple[With, ...]
    inlined: frozenset[str]  # @funcs that the kernel calls with these consts, itself or through others


def flatten(program: Program, kernel: Kernel, consts: Mapping[str, Const], sink: Sink) -> FlatKernel:
    """Inline and fold a kernel of known cluster size; errors go to `sink`, unknown parts become `?`."""
    return _Flattener(program, kernel, consts, sink).run()


class _Flattener:
    def __init__(self, program: Program, kernel: Kernel, consts: Mapping[str, Const], sink: Sink):
        self.kernel, self.sink = kernel, sink
        self.funcs = prelude().funcs() | program.funcs()
        constants = prelude().constants() | program.constants()
        self.globals: dict[str, Expr] = {name: fold(c.value) for name, c in constants.items()}
        self.ranks: dict[str, int | None] = {}  # of tensors and shared arrays, which may be viewed; None for barriers
        tensors = [(p.name, p.type) for p in kernel.params if isinstance(p.type, GlobalType)]
        dims = dict.fromkeys(d for _, t in tensors for d in t.dims if isinstance(d, str))
        self.globals |= {name: Name(name) for name in (*(p.name for p in kernel.params), *dims)}
        self.ranks |= {name: len(t.dims) for name, t in tensors}
        for name, value in consts.items():
            self.globals[name] = Name(value.name) if isinstance(value, DType) else Literal(value)
        self.fresh = FreshNames()
        self.literals: set[str] = set()  # flat names of locals that a literal stands for
        self.inlined: set[str] = set()
        self.growth = Growth()
        self.base_names = {p.name for p in kernel.params} | set(dims) | set(self.funcs) | set(constants)

    # ---- kernel
    def run(self) -> FlatKernel:
        self.fresh.used |= self.base_names
        frame = Frame(count_assignments(tuple(s for s in self.kernel.body if not isinstance(s, With))), None)
        declarations: list[Stmt] = []
        roles: list[With] = []
        for stmt in self.kernel.body:
            if isinstance(stmt, With):
                roles.append(self.flatten_role(stmt, frame))
            elif roles:
                self.sink.error(
                    "S201",
                    "declarations come before the roles, found a statement after one",
                    stmt.span,
                    "move it above the first `with role(...)`",
                )
            elif isinstance(stmt, (Assign, AugAssign)):
                self.flatten_statement(stmt, frame, declarations)
            else:
                self.sink.error("S202", "before the roles only declarations: `name = ...`", stmt.span, "move it into a role")
        if not roles:
            self.sink.error("S203", "a kernel has at least one role", self.kernel.span, 'add `with role("all", warps=4):`')
        return FlatKernel(tuple(declarations), tuple(roles), frozenset(self.inlined))

    def flatten_role(self, stmt: With, outer: Frame) -> With:
        names = set(self.fresh.used)
        frame = Frame(self.count_local_bindings(stmt.body, outer.values), outer)
        if stmt.name:
            frame.counts[stmt.name] += 1
            self.take_target(stmt.name, frame)
        call, out = self.flatten_arguments(stmt.call, outer, [])
        body: list[Stmt] = []
        self.flatten_block(stmt.body, frame, body)
        index = frame.flat[stmt.name].id if stmt.name else None
        self.fresh.used = names
        return With(call, index, remove_dead_literals(tuple(out + body), self.literals), span=stmt.span)

    def count_local_bindings(self, body: tuple[Stmt, ...], outer: Mapping[str, Value]) -> Counter[str]:
        """Count the statements that bind each name; `outer`: values of names that the body may read."""
        return count_bindings(body, {n: v for n, v in (self.globals | dict(outer)).items() if isinstance(v, Literal)})

    # ---- statements
    def flatten_block(self, body: tuple[Stmt, ...], frame: Frame, out: list[Stmt]) -> None:
        """Flatten a block; consts bound in it end with it: the name stays bound, its value is no longer known."""
        before = dict(frame.values)
        for stmt in body:
            self.flatten_statement(stmt, frame, out)
        for name, value in list(frame.values.items()):
            if isinstance(value, Literal) and name not in before:
                frame.values[name] = frame.flat[name]

    def flatten_statement(self, stmt: Stmt, frame: Frame, out: list[Stmt]) -> None:
        self.growth.count_statement(self.make_span(stmt, frame))
        if isinstance(stmt, Assign):
            self.assign(stmt.targets, self.flatten_expr(stmt.value, frame, out), frame, out, self.make_span(stmt, frame))
        elif isinstance(stmt, AugAssign):
            old = Name(stmt.target, span=stmt.span)
            value = self.flatten_expr(Binary(stmt.op, old, stmt.value, span=stmt.span), frame, out)
            self.assign((stmt.target,), value, frame, out, self.make_span(stmt, frame))
        elif isinstance(stmt, ExprStmt):
            value = self.flatten_expr(stmt.value, frame, out)
            if isinstance(value, Call):
                out.append(ExprStmt(value, span=self.make_span(stmt, frame)))
            elif not isinstance(stmt.value, Call):
                self.sink.error(
                    "S204", "an expression alone does nothing", self.make_span(stmt, frame), "assign it to a name, or remove it"
                )
        elif isinstance(stmt, For):
            self.flatten_loop(stmt, frame, out)
        elif isinstance(stmt, If):
            cond = self.flatten_single(stmt.cond, frame, out)
            if isinstance(cond, Literal) and isinstance(cond.value, bool):
                for inner in stmt.body if cond.value else stmt.orelse:
                    self.flatten_statement(inner, frame, out)
                return
            then, orelse = list[Stmt](), list[Stmt]()
            self.flatten_block(stmt.body, frame, then)
            self.flatten_block(stmt.orelse, frame, orelse)
            out.append(If(cond, tuple(then), tuple(orelse), span=self.make_span(stmt, frame)))
        elif isinstance(stmt, With):
            self.sink.error("S205", "a role stands directly in the kernel", self.make_span(stmt, frame))
        elif isinstance(stmt, Return):
            self.sink.error("S206", "`return` ends a @func; a kernel stores its results", self.make_span(stmt, frame))

    def flatten_loop(self, stmt: For, frame: Frame, out: list[Stmt]) -> None:
        if isinstance(stmt.iter, Call) and isinstance(stmt.iter.func, Name) and stmt.iter.func.id == "range":
            iterator: Expr
            iterator, hoisted = self.flatten_arguments(stmt.iter, frame, [])
            out.extend(hoisted)
        else:
            iterator = self.flatten_single(stmt.iter, frame, out)
        if is_empty_range(iterator):
            return
        body: list[Stmt] = []
        target = self.take_target(stmt.target, frame)
        self.flatten_block(stmt.body, frame, body)
        out.append(For(target.id, iterator, tuple(body), span=self.make_span(stmt, frame)))

    def assign(self, targets: tuple[str, ...], value: Value, frame: Frame, out: list[Stmt], span: Span) -> None:
        if len(targets) == 1:
            pairs = [(targets[0], value)]
        elif isinstance(value, TupleValue) and len(value.items) == len(targets):
            pairs = list(zip(targets, value.items, strict=True))
        else:
            count = f"{len(value.items)} values" if isinstance(value, TupleValue) else "one value"
            self.sink.error("T151", f"expected {len(targets)} values for {', '.join(targets)}, found {count}", span)
            pairs = [(t, Name(UNKNOWN, span=span)) for t in targets]
        moves: list[tuple[Name, Expr]] = []
        aliases: list[tuple[str, Value]] = []
        for name, part in pairs:
            if name == "_":
                if isinstance(part, Call):  # a call may have effects
                    out.append(ExprStmt(part, span=span))
                continue
            if frame.parent is None and frame.func is None and isinstance(part, Call):
                self.declare(name, part)
            if not isinstance(part, TupleValue) and is_alias(part, self.ranks):
                aliases.append((name, self.bind_alias(name, part, frame, out, span)))
            else:
                self.bind(name, part, frame, moves, aliases, span)
        self.move(moves, out, span)
        frame.values.update(aliases)

    def declare(self, name: str, call: Call) -> None:
        """Record the rank of a declared array or barrier, which may be viewed or picked from."""
        makes = traits(call).makes
        if makes == "barrier":
            self.ranks[name] = None
        elif makes == "array":
            shape = call.args[1] if len(call.args) > 1 else next((k.value for k in call.keywords if k.name == "dims"), None)
            self.ranks[name] = len(shape.items) if isinstance(shape, List) else 1

    def move(self, moves: list[tuple[Name, Expr]], out: list[Stmt], span: Span) -> None:
        """Emit a parallel assignment: a value that an earlier target would overwrite is read before."""
        for i, (_, value) in enumerate(moves):
            overwritten = {t.id for t, _ in moves[:i]}
            if overwritten and overwritten & names_read(value):
                moves[i] = (moves[i][0], self.make_temporary("t", value, out))
        for name, value in moves:
            if not (isinstance(value, Name) and value.id == name.id):
                out.append(Assign((name.id,), value, span=span))

    def bind(
        self, name: str, value: Value, frame: Frame, moves: list[tuple[Name, Expr]], aliases: list[tuple[str, Value]], span: Span
    ) -> None:
        old = frame.values.get(name)
        if isinstance(value, TupleValue):
            if old is None:
                old = self.make_leaves(name, value)
                frame.values[name] = old
            if not pair_moves(old, value, moves):
                self.sink.error(
                    "T150", f"`{name}` was bound to something of another form before; a name has one type", span, "use another name"
                )
            return
        if isinstance(old, TupleValue):
            self.sink.error("T150", f"`{name}` was bound to a tuple before; a name has one type", span, "use another name")
            return
        flat = self.take_target(name, frame)
        moves.append((flat, value))
        if frame.counts[name] == 1 and isinstance(value, Literal):
            aliases.append((name, value))
            self.literals.add(flat.id)

    def make_leaves(self, name: str, value: Value) -> Value:
        if isinstance(value, TupleValue):
            return TupleValue(tuple(self.make_leaves(f"{name}_{i}", v) for i, v in enumerate(value.items)), value.span)
        return Name(self.fresh.take(name))

    def take_target(self, name: str, frame: Frame) -> Name:
        """Return the flat name that a local is bound to, made at its first binding."""
        if name not in frame.flat:
            frame.flat[name] = Name(self.fresh.take(name))
        frame.values[name] = frame.flat[name]
        return frame.flat[name]

    def bind_alias(self, name: str, value: Expr, frame: Frame, out: list[Stmt], span: Span) -> Expr:
        if frame.counts[name] > 1:
            self.sink.error(
                "T152", f"`{name}` names a view or a barrier and is bound more than once", span, "use another name for the other view"
            )
        return self.pin(value, out)

    # ---- aliases: views and barriers are not values; a name for one stands for its text
    def pin(self, e: Expr, out: list[Stmt]) -> Expr:
        """Return the alias with its indices evaluated now."""
        if isinstance(e, Attribute):
            return Attribute(self.pin(e.value, out), e.attr, span=e.span)
        if isinstance(e, Subscript):
            indices: list[Expr | Slice] = []
            for i in e.indices:
                if isinstance(i, Slice):
                    indices.append(self.pin_slice(i, out))
                else:
                    indices.append(i if isinstance(i, Literal) else self.make_temporary("i", i, out))
            return Subscript(self.pin(e.value, out), tuple(indices), span=e.span)
        return e

    def pin_slice(self, s: Slice, out: list[Stmt]) -> Slice:
        if s.start is None or s.stop is None or isinstance(s.start, Literal) or (size := get_written_size(s)) is None:
            return s
        start = self.make_temporary("i", s.start, out)
        return Slice(start, Binary("+", Name(start.id, span=start.span), size, span=s.stop.span), span=s.span)

    # ---- expressions
    def flatten_single(self, e: Expr, frame: Frame, out: list[Stmt]) -> Expr:
        """Flatten an expression that must not be a tuple."""
        value = self.flatten_expr(e, frame, out)
        if isinstance(value, TupleValue):
            self.sink.error(
                "T153",
                f"expected one value, found a tuple of {len(value.items)}",
                self.make_span(e, frame),
                "unpack it, or pick one with [0]",
            )
            return Name(UNKNOWN, span=self.make_span(e, frame))
        return value

    def flatten_expr(self, e: Expr, frame: Frame, out: list[Stmt]) -> Value:
        if isinstance(e, Name):
            return self.look_up(e, frame)
        if isinstance(e, Call):
            return self.flatten_call(e, frame, out)
        span = self.make_span(e, frame)
        if isinstance(e, Literal):
            return Literal(e.value, span=span)
        if isinstance(e, Str):
            return Str(e.value, span=span)
        if isinstance(e, (Tuple, List)):
            parts = self.flatten_operands([*e.items], frame, out)
            if isinstance(e, List):
                return List(tuple(self.refuse_group(p) for p in parts), span=span)
            return self.growth.make_group(parts, span)
        if isinstance(e, Unary):
            return self.fold_checked(Unary(e.op, self.flatten_single(e.operand, frame, out), span=span))
        if isinstance(e, Binary) and traits(e).lazy:
            return self.flatten_logic(e, frame, out, span)
        if isinstance(e, Binary):
            first, second = (self.refuse_group(v) for v in self.flatten_operands([e.left, e.right], frame, out))
            return self.fold_checked(Binary(e.op, first, second, span=span))
        if isinstance(e, IfExp):
            return self.flatten_choice(e, frame, out, span)
        if isinstance(e, Attribute):
            return Attribute(self.flatten_single(e.value, frame, out), e.attr, span=span)
        assert isinstance(e, Subscript)
        return self.flatten_subscript(e, frame, out, span)

    def flatten_operands(self, items: list[Expr], frame: Frame, out: list[Stmt]) -> list[Value]:
        """Flatten operands left to right, so that effects of inlined calls happen in the order of the text."""
        values: list[Value] = []
        for item in items:
            mark = len(out)
            value = self.flatten_expr(item, frame, out)
            if values and any(has_effect(s) for s in out[mark:]):
                first: list[Stmt] = []
                values = [
                    v if isinstance(v, (TupleValue, Name, Literal, Str)) or is_alias(v, self.ranks) else self.make_temporary("t", v, first)
                    for v in values
                ]
                out[mark:mark] = first
            values.append(value)
        return values

    def refuse_group(self, value: Value) -> Expr:
        if isinstance(value, TupleValue):
            self.sink.error(
                "T153", f"expected one value, found a tuple of {len(value.items)}", value.span, "unpack it, or pick one with [0]"
            )
            return Name(UNKNOWN, span=value.span)
        return value

    def fold_checked(self, e: Expr) -> Expr:
        try:
            return fold(e)
        except ZeroDivisionError:
            self.sink.error("T154", "division by zero in a constant expression", e.span)
            return Name(UNKNOWN, span=e.span)

    def flatten_logic(self, e: Binary, frame: Frame, out: list[Stmt], span: Span) -> Expr:
        first, decided_by = self.flatten_single(e.left, frame, out), traits(e).decided_by
        if isinstance(first, Literal) and first.value is decided_by:
            return first
        later: list[Stmt] = []
        second = self.flatten_single(e.right, frame, later)
        if not later or isinstance(first, Literal):
            out.extend(later)
            return decide_by_right(e, first, second) or self.fold_checked(Binary(e.op, first, second, span=span))
        result = self.make_temporary("t", first, out)
        cond = Name(result.id, span=span)
        later.append(Assign((result.id,), second, span=span))
        out.append(If(Unary("not", cond, span=span) if decided_by else cond, tuple(later), span=span))
        return Name(result.id, span=span)

    def flatten_choice(self, e: IfExp, frame: Frame, out: list[Stmt], span: Span) -> Value:
        cond = self.flatten_single(e.cond, frame, out)
        if isinstance(cond, Literal) and isinstance(cond.value, bool):
            return self.flatten_expr(e.then if cond.value else e.other, frame, out)
        then_out: list[Stmt] = []
        else_out: list[Stmt] = []
        then, orelse = self.flatten_expr(e.then, frame, then_out), self.flatten_expr(e.other, frame, else_out)
        if not then_out and not else_out and not isinstance(then, TupleValue) and not isinstance(orelse, TupleValue):
            return self.fold_checked(IfExp(cond, then, orelse, span=span))
        result = self.make_leaves("t", then)
        then_moves: list[tuple[Name, Expr]] = []
        else_moves: list[tuple[Name, Expr]] = []
        if not pair_moves(result, then, then_moves) or not pair_moves(result, orelse, else_moves):
            self.sink.error("T150", "both sides of `if else` must have one form", span)
        self.move(then_moves, then_out, span)
        self.move(else_moves, else_out, span)
        out.append(If(cond, tuple(then_out), tuple(else_out), span=span))
        return copy_value(result, span)

    def flatten_subscript(self, e: Subscript, frame: Frame, out: list[Stmt], span: Span) -> Value:
        value = self.flatten_expr(e.value, frame, out)
        if isinstance(value, TupleValue):
            index = self.flatten_expr(e.indices[0], frame, out) if len(e.indices) == 1 and not isinstance(e.indices[0], Slice) else None
            if isinstance(index, Literal) and type(index.value) is int and -len(value.items) <= index.value < len(value.items):
                return value.items[index.value]
            self.sink.error("T155", f"a tuple of {len(value.items)} is indexed by a known integer below its length", span)
            return Name(UNKNOWN, span=span)
        indices: list[Expr | Slice] = []
        for i in e.indices:
            if isinstance(i, Slice):
                start = self.flatten_single(i.start, frame, out) if i.start is not None else None
                stop = self.flatten_single(i.stop, frame, out) if i.stop is not None else None
                indices.append(Slice(start, stop, span=self.make_span(i, frame)))
            else:
                indices.append(self.flatten_single(i, frame, out))
        if isinstance(value, Subscript) and isinstance(value.value, Name) and (rank := self.ranks.get(value.value.id)) is not None:
            merged = compose(value.indices, tuple(indices), rank)
            if merged is not None:
                return Subscript(value.value, tuple(copy_tree(i) for i in merged), span=span)
        return Subscript(value, tuple(indices), span=span)

    def look_up(self, e: Name, frame: Frame) -> Value:
        span = self.make_span(e, frame)
        if e.id == "_":
            self.sink.error("N102", "`_` is for values that are not used and cannot be read", span)
            return Name(UNKNOWN, span=span)
        scope: Frame | None = frame
        while scope is not None:
            if e.id in scope.values:
                return copy_value(scope.values[e.id], span)
            if scope.counts[e.id]:
                self.sink.error("N103", f"`{e.id}` is read before it is bound", span)
                return Name(UNKNOWN, span=span)
            scope = scope.parent
        if e.id in self.globals:
            return copy_value(self.globals[e.id], span)
        if e.id in DTYPES or e.id == "inf":
            return Name(e.id, span=span)
        self.report_unknown(e, frame, span)
        return Name(UNKNOWN, span=span)

    def report_unknown(self, e: Name, frame: Frame, span: Span) -> None:
        if frame.func is not None and e.id in count_assignments(tuple(s for s in self.kernel.body if not isinstance(s, With))):
            why = f"`{e.id}` is a local name of the kernel; free names of a @func are parameters of the kernel, constants or @funcs"
            self.sink.error("N104", why, span, "pass it as an argument")
            return
        candidates = [*frame.values, *(frame.parent.values if frame.parent else ()), *self.globals, *DTYPES]
        called = "a @func" if e.id in self.funcs else "a primitive" if e.id in PRIMITIVES else ""
        problem = f"is {called} and must be called" if called else "is not known here"
        self.sink.error("N101", f"`{e.id}` {problem}", span, find_hint(e.id, candidates))

    # ---- calls
    def flatten_call(self, e: Call, frame: Frame, out: list[Stmt]) -> Value:
        span = self.make_span(e, frame)
        if isinstance(e.func, Name):
            if e.func.id in self.funcs:
                return self.inline(self.funcs[e.func.id], e, frame, out, span)
            if e.func.id not in PRIMITIVES:
                self.sink.error(
                    "N105",
                    f"`{e.func.id}` is neither a primitive nor a @func",
                    self.make_span(e.func, frame),
                    find_hint(e.func.id, [*PRIMITIVES, *self.funcs], "`cuir ops` lists the primitives"),
                )
                return Name(UNKNOWN, span=span)
        flat, hoisted = self.flatten_arguments(e, frame, [])
        out.extend(hoisted)
        return Literal(0, span=span) if is_rank_of_single_cta(flat, self.kernel) else self.fold_checked(flat)

    def flatten_arguments(self, e: Call, frame: Frame, out: list[Stmt]) -> tuple[Call, list[Stmt]]:
        func: Expr
        if isinstance(e.func, Attribute):
            func = Attribute(self.flatten_single(e.func.value, frame, out), e.func.attr, span=self.make_span(e.func, frame))
        else:
            func = Name(e.func.id if isinstance(e.func, Name) else UNKNOWN, span=self.make_span(e.func, frame))
        values = self.flatten_operands([*e.args, *(k.value for k in e.keywords)], frame, out)
        flat = [self.refuse_group(v) for v in values]
        keywords = tuple(Keyword(k.name, v, span=self.make_span(k, frame)) for k, v in zip(e.keywords, flat[len(e.args) :], strict=True))
        return Call(func, tuple(flat[: len(e.args)]), keywords, span=self.make_span(e, frame)), out

    def inline(self, func: Func, e: Call, caller: Frame, out: list[Stmt], span: Span) -> Value:
        if func.name in caller.stack:
            self.sink.error(
                "N106", f"@func `{func.name}` calls itself ({' -> '.join([*caller.stack, func.name])}); functions are inlined", span
            )
            return Name(UNKNOWN, span=span)
        self.growth.count_call(caller, span)
        values = self.flatten_operands([*e.args, *(k.value for k in e.keywords)], caller, out)
        arguments = dict(zip(func.params, values[: len(e.args)], strict=False))
        for k, v in zip(e.keywords, values[len(e.args) :], strict=True):
            if k.name not in func.params or k.name in arguments:
                self.sink.error("N107", f"`{func.name}` has no parameter `{k.name}` left to give", self.make_span(k, caller))
            arguments[k.name] = v
        if len(e.args) > len(func.params) or set(arguments) != set(func.params):
            self.sink.error(
                "N108",
                f"`{func.name}({', '.join(func.params)})` takes {len(func.params)} arguments, found {len(values)}",
                span,
                notes=[(f"`{func.name}` is defined here", func.span)],
            )
            return Name(UNKNOWN, span=span)
        self.inlined.add(func.name)
        frame = Frame(self.count_local_bindings(func.body, arguments), None, span, func, stack=(*caller.stack, func.name))
        for name in func.params:
            frame.values[name] = self.bind_argument(name, arguments[name], frame, out, span)
            frame.counts[name] += 1
        *body, last = func.body
        for stmt in body:
            self.flatten_statement(stmt, frame, out)
        assert isinstance(last, Return)
        return self.flatten_expr(last.value, frame, out)

    def bind_argument(self, name: str, value: Value, frame: Frame, out: list[Stmt], span: Span) -> Value:
        rebound = frame.counts[name] > 0
        if isinstance(value, TupleValue):
            if rebound:
                target = self.make_leaves(name, value)
                moves: list[tuple[Name, Expr]] = []
                pair_moves(target, value, moves)
                self.move(moves, out, span)
                return target
            items = (self.bind_argument(f"{name}_{i}", v, Frame(Counter(), None), out, span) for i, v in enumerate(value.items))
            return TupleValue(tuple(items), value.span)
        if is_alias(value, self.ranks) or (isinstance(value, (Name, Literal, Str)) and not rebound):
            return value  # nothing in the callee can rebind the names in an alias' indices
        if not rebound:
            return self.make_temporary(name, value, out, span)
        flat = self.take_target(name, frame)
        out.append(Assign((flat.id,), value, span=span))
        return flat

    # ---- helpers
    def make_temporary(self, base: str, value: Expr, out: list[Stmt], span: Span | None = None) -> Name:
        name = self.fresh.take(base)
        out.append(Assign((name,), value, span=span or value.span))
        return Name(name, span=value.span)

    def make_span(self, node: Node, frame: Frame) -> Span:
        return node.span.through(frame.via) if frame.via is not None else node.span
