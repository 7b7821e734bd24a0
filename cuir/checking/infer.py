"""Types of the flat kernel's expressions and statements, binding of arguments, types of literals.

The types that a primitive takes and gives are in its entry of the table, which this file applies.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..ops import Op
from ..ops.base import PRODUCTS
from ..ops.expressions import attribute, get_called_op, method, methods, operator, subscript, traits
from ..ops.limits import TARGETS
from ..ops.rules import broadcast
from ..syntax.nodes import (
    Assign,
    Attribute,
    Call,
    Expr,
    ExprStmt,
    For,
    If,
    Kernel,
    List,
    Literal,
    Name,
    Slice,
    Stmt,
    Str,
    Subscript,
    Unary,
)
from ..syntax.types import BOOL, DTYPES, F32, I32, BarrierType, DType, ErrorType, GlobalView, Scalar, SharedView, TileType, Type, Void
from ..text.diagnostics import Sink
from ..text.source import Span, spell_name
from .checked import BoundCall, ScalarParam, TensorParam, bind, call_of, set_type
from .rewrite_hints import describe_composition
from .rule_context import RuleContext, is_literal
from .scope import UNKNOWN
from .views import Drop, Range, View, count_panel_columns, make_view, root_name

LARGEST_TILE = 2**20  # elements; Triton's limit, too
COLUMN_UNIT = 8  # columns of a register tile are 1 or a multiple of this


@dataclass
class Scope:
    """Names that every role sees."""

    tensors: Mapping[str, TensorParam]
    scalar_params: tuple[ScalarParam, ...]
    dims: tuple[str, ...]
    declared: dict[str, Type]  # scalars: dims, parameters, declarations
    views: dict[str, SharedView] = field(default_factory=dict)
    barriers: dict[str, BarrierType] = field(default_factory=dict)
    tiles: str | None = None


class Typer:
    """Typer of flat trees: writes on each node its type.

    Errors go to the sink, and a wrong expression has the type ErrorType, which silences errors that follow from it.
    """

    def __init__(self, kernel: Kernel, scope: Scope, sink: Sink):
        self.kernel, self.scope, self.sink = kernel, scope, sink
        self.written: set[str] = set()
        self.barrier_uses: dict[str, list[tuple[str, Call, str]]] = {}
        self.locals: dict[str, Type] = {}
        self.first: dict[str, Span] = {}  # place of a local's first binding
        self.bound: set[str] = set()
        self.literals: list[Literal] = []  # all literals; their dtypes are final once everything is typed
        self.role_name: str | None = None
        self.threads = 128

    # ---- statements
    def type_role(self, name: str, threads: int, index: str | None, body: tuple[Stmt, ...]) -> dict[str, Type]:
        self.locals, self.first, self.bound, self.role_name, self.threads = {}, {}, set(), name, threads
        if index:
            self.locals[index] = Scalar(I32)
            self.bound.add(index)
        self.type_block(body)
        self.role_name = None
        return self.locals

    def type_block(self, body: tuple[Stmt, ...]) -> None:
        for stmt in body:
            self.type_statement(stmt)

    def type_statement(self, stmt: Stmt) -> None:
        if isinstance(stmt, Assign):
            self.bind(stmt.targets[0], self.infer(stmt.value), stmt.span, self.locals)
        elif isinstance(stmt, ExprStmt):
            self.infer(stmt.value)
        elif isinstance(stmt, For):
            self.check_iterator(stmt)
            before = set(self.bound)
            self.bind(stmt.target, Scalar(I32), stmt.span, self.locals)
            self.type_block(stmt.body)
            self.bound = before  # a loop may run no trip
        elif isinstance(stmt, If):
            cond = self.infer(stmt.cond)
            if cond != Scalar(BOOL) and not isinstance(cond, ErrorType):
                hint = "on tiles: where(cond, x, y)" if isinstance(cond, TileType) else "compare: n > 0"
                self.sink.error("T116", f"a condition is a bool scalar, found {cond}", stmt.cond.span, hint)
            before = set(self.bound)
            self.type_block(stmt.body)
            then, self.bound = self.bound, before
            self.type_block(stmt.orelse)
            self.bound &= then

    def check_iterator(self, stmt: For) -> None:
        iterable = stmt.iter
        if isinstance(iterable, Name) and iterable.id == self.scope.tiles:
            return
        if not (isinstance(iterable, Call) and iterable.func == Name("range")):
            if not (isinstance(iterable, Name) and iterable.id == UNKNOWN):
                is_call = traits(iterable).makes == "units"
                hint = "before the roles `work = tiles(...)`, and here `in work`" if is_call else None
                self.sink.error("S220", "`for` runs over range(...) or over what `tiles` gave", iterable.span, hint)
            return
        if iterable.keywords or not 1 <= len(iterable.args) <= 3:
            self.sink.error(
                "T163", f"range takes one to three arguments, found {len(iterable.args) + len(iterable.keywords)}", iterable.span
            )
        for a in iterable.args:
            t = self.infer(a)
            if t != Scalar(I32) and not isinstance(t, ErrorType):
                self.sink.error("T101", f"range takes i32 scalars, found {t}", a.span)
        if len(iterable.args) == 3 and not (isinstance(iterable.args[2], Literal) and iterable.args[2].value != 0):
            self.sink.error("T102", "the step of a range is a known integer other than 0", iterable.args[2].span)

    def bind(self, name: str, t: Type, span: Span, names: dict[str, Type]) -> None:
        self.bound.add(name)
        old = names.get(name)
        if isinstance(t, (Scalar, TileType)):
            if old is None or isinstance(old, ErrorType):
                names[name] = t
                self.first[name] = span
            elif old != t:
                notes = [(f"bound to {old} here", self.first[name])] if name in self.first else []
                self.sink.error(
                    "T150",
                    f"`{spell_name(name, span)}` is {old} and cannot become {t}; a name has one type in a role",
                    span,
                    "use another name, or cast",
                    notes,
                )
                names[name] = ErrorType()  # one report; later uses would be compared with the old type
        else:
            self.poison(name, t, span, names)

    def poison(self, name: str, t: Type, span: Span, names: dict[str, Type]) -> None:
        """Bind a name to an expression that has no value."""
        if not isinstance(t, ErrorType):
            self.sink.error("T164", f"`{name}` cannot be bound to {t}", span)
        names.setdefault(name, ErrorType())

    def type_declaration(self, value: Expr) -> Type:
        return self.infer(value)

    # ---- expressions
    def infer(self, e: Expr, place: bool = False) -> Type:
        """Infer the type of an expression.

        Args:
            place: the expression names a place and is not read.
        """
        t = self._infer(e, place)
        set_type(e, t)
        return t

    def _infer(self, e: Expr, place: bool) -> Type:
        if isinstance(e, Literal):
            self.literals.append(e)
            return Scalar(BOOL if isinstance(e.value, bool) else I32 if isinstance(e.value, int) else F32)
        if isinstance(e, Name):
            return self.type_name(e)
        if (operation := operator(e)) is not None:
            return self.apply(operation[0], dict(zip((p.name for p in operation[0].params), operation[1], strict=True)), e)
        if isinstance(e, Attribute):
            op = attribute(e)
            if op is None:
                self.sink.error(
                    "N115", f"there is no attribute `.{e.attr}`", e.span, "`.T` transposes a Shared view; a barrier's methods are called"
                )
                return ErrorType()
            return self.apply(op, {op.params[0].name: e.value}, e)
        if isinstance(e, Subscript):
            return self.type_subscript(e, place)
        if isinstance(e, Call):
            bound = self.bind_arguments(e)
            return ErrorType() if bound is None else self.apply(bound.op, bound.args, e)
        if isinstance(e, (List, Str)):
            for item in e.items if isinstance(e, List) else ():
                self.infer(item)
            return Void()
        self.sink.error("T153", "a tuple is no value here", e.span)
        return ErrorType()

    def type_name(self, e: Name) -> Type:
        if e.id == UNKNOWN:
            return ErrorType()
        if e.id in self.scope.views:
            return self.scope.views[e.id]
        if e.id in self.scope.tensors:
            t = self.scope.tensors[e.id]
            return GlobalView(t.dtype, t.dims)
        if e.id in self.scope.barriers:
            return self.scope.barriers[e.id]
        if self.role_name is not None and e.id in self.locals:
            if e.id not in self.bound:
                self.sink.error(
                    "N103",
                    f"`{e.id}` is not bound on every path to here",
                    e.span,
                    "bind it before the branch or the loop",
                    [("bound here", self.first.get(e.id))],
                )
            return self.locals[e.id]
        if e.id in self.scope.declared:
            return self.scope.declared[e.id]
        if e.id == "inf":
            return Scalar(F32)
        if e.id in DTYPES or e.id == self.scope.tiles:
            return Void()
        self.sink.error("N103", f"`{e.id}` is read before it is bound", e.span)
        return ErrorType()

    def apply(self, op: Op, args: Mapping[str, Expr], node: Expr) -> Type:
        """Type the arguments, unify literals' dtypes with the other operands', and apply the entry's rule."""
        accessed = {a.arg for a in op.effects.accesses}
        for arg, e in args.items():
            if e.type is None:
                self.infer(e, place=arg in accessed)
            if (inner := call_of(e)) is not None and inner.op.effects.group == PRODUCTS:
                self.sink.error(
                    "S222", "a product in flight is read here", e.span, "bind it to a name, S = mma_async(...), and wait for it"
                )
                set_type(e, ErrorType())
            if isinstance(e.type, SharedView) and e.type.in_tensor_memory and "tcgen05" not in op.needs:
                self.sink.error(
                    "T106", f"`{arg}` lies in tensor memory, which {op.written} does not reach", e.span, "load_async(view) reads a view"
                )
                set_type(e, ErrorType())
        self.unify_literals(op, args)
        return self.check_tile(op.rule(RuleContext(self, op, args, node)), node.span)

    def unify_literals(self, op: Op, args: Mapping[str, Expr]) -> None:
        if op.traits.takes is not None:
            literal, source = (args[a] for a in op.traits.takes)
            value, kind = self.const(source), source.type
            dtype = value if isinstance(value, DType) else kind.dtype if isinstance(kind, Scalar) else None
            if dtype is not None:
                self.retype(literal, dtype)
            return
        alike = op.traits.alike
        group = list(args.values()) if alike and op.params[0].variadic else [args[a] for a in alike]
        dtypes = [t.dtype for e in group if isinstance(t := e.type, (Scalar, TileType)) and not is_literal(e)]
        if not dtypes:
            kinds = [t.dtype for e in group if isinstance(t := e.type, Scalar)]
            dtypes = [F32] if F32 in kinds else []
        for e in group:
            if dtypes:
                self.retype(e, dtypes[0])

    def retype(self, e: Expr, dtype: DType) -> None:
        """Give a literal a dtype: an integer any number's, a float a float's."""
        if is_literal(e):
            literal_type = e.type
            if isinstance(literal_type, Scalar) and (
                (literal_type.dtype == I32 and dtype != BOOL) or (literal_type.dtype == F32 and dtype.is_float)
            ):
                set_type(e, Scalar(dtype))
                if isinstance(e, Unary):
                    self.retype(e.operand, dtype)

    # ---- subscripts
    def type_subscript(self, e: Subscript, place: bool) -> Type:
        root = root_name(e)
        if not isinstance(e.value, Name):
            base = self.infer(e.value)
            if not isinstance(base, ErrorType):
                self.sink.error("T165", f"a subscript is of a tensor, a shared array or a ring of barriers, found {base}", e.value.span)
            return ErrorType()
        base = self.infer(e.value, place=True)
        if isinstance(base, ErrorType):
            return ErrorType()
        for i in e.indices:
            for part in (i.start, i.stop) if isinstance(i, Slice) else (i,):
                if part is not None and part.type is None:
                    self.infer(part)
        if isinstance(base, BarrierType):
            return self.type_stage(e, base)
        if not isinstance(base, (GlobalView, SharedView)) or root is None:
            hint = "register tiles are not subscripted: store to shared memory and load a view" if isinstance(base, TileType) else None
            self.sink.error("T165", f"a subscript is of a tensor, a shared array or a ring of barriers, found {base}", e.value.span, hint)
            return ErrorType()
        view = make_view(e, len(base.dims))
        if view is None:
            self.sink.error("T166", f"`{root}` has {len(base.dims)} dims, found {len(e.indices)} indices", e.span)
            return ErrorType()
        if view.ranges:
            t = self.type_view(view, base, e)
            return t if isinstance(t, ErrorType) else self.apply_typed(t, e)
        shape = self.compute_index_shape(view, e)
        if isinstance(shape, ErrorType):
            return shape
        if shape is None:
            if isinstance(base, SharedView) and base.in_tensor_memory:
                self.sink.error("T161", "tensor memory has no single elements", e.span, "load_async(view) reads a view")
                return ErrorType()
            self.check_literal_bounds(view, base)
            t = Scalar(base.dtype)
            return t if place else self.apply_typed(t, e)
        if isinstance(base, SharedView):
            self.sink.error("T161", "index tiles gather from tensors only, found a shared array", e.span, "load(view) reads a view")
            return ErrorType()
        return self.check_tile(TileType(base.dtype, *shape), e.span)

    def apply_typed(self, t: Type, e: Expr) -> Type:
        """Set the type of a subscript's base, and return the type of the subscript."""
        set_type(e, t)
        op = subscript(t)
        return op.rule(RuleContext(self, op, {op.params[0].name: e}, e))

    def type_stage(self, e: Subscript, base: BarrierType) -> Type:
        if base.stages is None:
            self.sink.error("T167", "this is one barrier, not a ring", e.span, "declare it with stages=")
            return ErrorType()
        if len(e.indices) != 1 or isinstance(e.indices[0], Slice):
            self.sink.error("T168", "a stage is picked by one i32 scalar", e.span)
            return ErrorType()
        t = e.indices[0].type
        if t != Scalar(I32):
            if not isinstance(t, ErrorType):
                self.sink.error("T168", f"a stage is picked by one i32 scalar, found {t}", e.indices[0].span)
            return ErrorType()
        value = self.const(e.indices[0])
        if value is not None and not 0 <= value < base.stages:
            self.sink.error("T169", f"the ring has stages 0 to {base.stages - 1}, found {value}", e.indices[0].span)
        return BarrierType(base.kind, None)

    def compute_index_shape(self, view: View, e: Subscript) -> tuple[int, int] | ErrorType | None:
        shape: tuple[int, int] | None = None
        for part in view.parts:
            assert isinstance(part, Drop)
            t = part.index.type
            if isinstance(t, ErrorType):
                return t
            if not isinstance(t, (Scalar, TileType)) or t.dtype != I32:
                self.sink.error("T170", f"an index is an i32 scalar or tile, found {t}", part.index.span)
                return ErrorType()
            if isinstance(t, TileType):
                merged = broadcast(shape, (t.rows, t.cols))
                if merged is None:
                    self.sink.error("T113", f"index shapes do not broadcast: {shape} and [{t.rows}, {t.cols}]", part.index.span)
                    return ErrorType()
                shape = merged
        return shape

    def check_literal_bounds(self, view: View, base: GlobalView | SharedView) -> None:
        for part, dim in zip(view.parts, base.dims, strict=True):
            value = self.const(part.index) if isinstance(part, Drop) else None
            if isinstance(value, int) and (value < 0 or (isinstance(dim, int) and value >= dim)):
                self.sink.error("T171", f"index {value} is outside of a dim of {dim}", part.index.span)  # type: ignore[union-attr]

    def type_view(self, view: View, base: GlobalView | SharedView, e: Subscript) -> Type:
        dims: list[str | int] = []
        last = len(base.dims) - 1
        ok = True
        for n, (part, dim) in enumerate(zip(view.parts, base.dims, strict=True)):
            index = part.index if isinstance(part, Drop) else part.start
            t = index.type if index is not None else None
            if t is not None and t != Scalar(I32):
                if not isinstance(t, ErrorType):
                    self.sink.error(
                        "T172",
                        f"indices of a view are i32 scalars, found {t}",
                        index.span if index else e.span,
                        "a gather has an index for every dim and no slice",
                    )
                ok = False
            value = self.const(index) if index is not None else None
            if isinstance(part, Drop):
                if isinstance(base, SharedView) and isinstance(dim, int) and isinstance(value, int) and not 0 <= value < dim:
                    self.sink.error("T171", f"index {value} is outside of a dim of {dim}", part.index.span)
                if n == last and isinstance(base, SharedView):
                    self.sink.error("T173", "the last dim of a shared view is kept", part.index.span, "slice it")
                    ok = False
                continue
            size: str | int = dim
            if part.start is not None:
                if part.size is None or part.size <= 0:
                    description = "an empty one" if part.size is not None else "another text"
                    self.sink.error(
                        "T160", f"a slice is `:` or `e : e + c` with the same text e and a known c > 0, found {description}", e.span
                    )
                    return ErrorType()
                size = part.size
                if isinstance(base, SharedView) and isinstance(dim, int):
                    ok &= self.check_shared_slice(part, dim, n, base, e)
            dims.append(size)
        if not ok:
            return ErrorType()
        if isinstance(base, SharedView):
            return replace(base, dims=tuple(d for d in dims if isinstance(d, int)))
        return GlobalView(base.dtype, tuple(dims))

    def check_shared_slice(self, part: Range, dim: int, n: int, base: SharedView, e: Subscript) -> bool:
        """Check that a shared slice has rows at multiples of 8 and columns in 16-byte chunks from a panel."""
        start, size = self.const(part.start) if part.start is not None else None, part.size or dim
        if size > dim or (isinstance(start, int) and not 0 <= start <= dim - size):
            self.sink.error("T171", f"the slice leaves a dim of {dim}", e.span)
            return False
        columns, rows = n == len(base.dims) - 1, n == len(base.dims) - 2
        start_unit, unit = (count_panel_columns(base.dtype), 16 // base.dtype.itemsize) if columns else (8, 8) if rows else (1, 1)
        if size % unit or (isinstance(start, int) and start % start_unit):
            rule = (
                f"columns are sliced from panels of {start_unit} on, {unit} at a time"
                if columns
                else "rows of shared arrays are sliced at multiples of 8"
            )
            self.sink.error("T174", f"{rule}, found {start if isinstance(start, int) else 'e'} : +{size}", e.span)
            return False
        return True

    # ---- calls
    def bind_arguments(self, call: Call) -> BoundCall | None:
        op = self.find_primitive(call)
        if op is None:
            return None
        args: dict[str, Expr] = {}
        params = list(op.params)
        if isinstance(call.func, Attribute):
            args[params[0].name] = call.func.value
            params = params[1:]
        positional = list(call.args)
        for p in params:
            if p.variadic:
                args.update({f"{p.name}{i}": e for i, e in enumerate(positional)})
                positional = []
            elif positional and not p.keyword:
                args[p.name] = positional.pop(0)
        names = {p.name for p in params}
        for k in call.keywords:
            if k.name not in names or any(p.variadic for p in params):
                close = difflib.get_close_matches(k.name, names, 1)
                self.sink.error(
                    "N116", f"{op.signature()} has no parameter `{k.name}`", k.span, f"did you mean `{close[0]}`?" if close else None
                )
                return None
            if k.name in args:
                self.sink.error("N117", f"`{k.name}` is given twice", k.span)
                return None
            args[k.name] = k.value
        missing = [p.name for p in params if p.name not in args and not p.default and not p.variadic and op.traits.makes != "workers"]
        if positional or missing:
            problem = (
                f"is missing `{missing[0]}`"
                if missing
                else f"takes {len([p for p in params if not p.keyword])} arguments by position, found {len(call.args)}"
            )
            self.sink.error("N118", f"{op.signature()} {problem}", call.span)
            return None
        bound = bind(call, op, args)
        if not self.is_allowed(op, call):
            return None
        self.note_effects(op, args, call)
        return bound

    def find_primitive(self, call: Call) -> Op | None:
        if isinstance(call.func, Attribute):
            t = self.infer(call.func.value, place=True)
            if isinstance(t, ErrorType):
                return None
            if not isinstance(t, BarrierType):
                self.sink.error("N119", f"only barriers have methods, found {t}", call.func.span, describe_composition(call.func.attr))
                return None
            op = method(t.kind, call.func.attr)
            if op is None:
                method_names = ", ".join(methods(t.kind))
                self.sink.error("N120", f"{t.kind} has no method `{call.func.attr}`; it has: {method_names}", call.func.span)
            return op
        if not isinstance(call.func, Name) or call.func.id == UNKNOWN:
            return None
        if call.func.id == "range":
            self.sink.error("S221", "range stands only behind `for x in`", call.span)
            return None
        return get_called_op(call)

    def is_allowed(self, op: Op, call: Call) -> bool:
        ok = True
        if self.kernel.arch not in op.archs:
            message = f"{op.written} needs {' or '.join(op.archs)}, this kernel is for {self.kernel.arch}"
            self.sink.error("S217", message, call.span, TARGETS[self.kernel.arch].find_substitute(*op.needs))
            ok = False
        inside = self.role_name is not None
        if (op.where == "declaration" and inside) or (op.where == "role" and not inside):
            self.sink.error("S218", f"{op.written} stands {'before the roles' if inside else 'in a role'}", call.span)
            ok = False
        if inside and self.threads not in op.workers:
            self.sink.error(
                "S219",
                f"{op.written} is done by a whole warpgroup, role `{self.role_name}` has warps",
                call.span,
                "give the role warpgroups=",
            )
            ok = False
        return ok

    def note_effects(self, op: Op, args: Mapping[str, Expr], call: Call) -> None:
        for access in op.effects.accesses:
            root = root_name(args[access.arg]) if access.mode != "read" else None
            if root in self.scope.tensors:
                self.written.add(root)  # type: ignore[arg-type]
        for kind in ("arrives", "waits"):
            arg = getattr(op.effects, kind)
            root = root_name(args[arg]) if arg else None
            if root is not None and self.role_name is not None:
                self.barrier_uses.setdefault(root, []).append((self.role_name, call, kind))

    def check_tile(self, t: Type, span: Span) -> Type:
        """Check the shape of a register tile, whose rows are spread over the worker's lanes."""
        unit = self.threads // 2
        if isinstance(t, TileType) and t.rows * t.cols > LARGEST_TILE:
            self.sink.error(
                "T176", f"a tile has at most {LARGEST_TILE} elements, found {t}", span, "go over the rows or the columns in a loop"
            )
            return ErrorType()
        if isinstance(t, TileType) and self.role_name is not None:
            wrong_rows, wrong_cols = t.rows > 1 and t.rows % unit, t.cols > 1 and t.cols % COLUMN_UNIT
            if wrong_rows or wrong_cols:
                rows, cols = (
                    -(-t.rows // unit) * unit if wrong_rows else t.rows,
                    -(-t.cols // COLUMN_UNIT) * COLUMN_UNIT if wrong_cols else t.cols,
                )
                hint = (
                    f"rows of a tile are 1 or a multiple of 64 in a role of warpgroups, of 16 in one of warps, columns 1 or a multiple of {COLUMN_UNIT}; "
                    f"the next larger one is [{rows}, {cols}]"
                )
                role = "warpgroup" if self.threads == 128 else "warp"
                if wrong_rows:
                    self.sink.error("T158", f"a tile of a {role} has 1 or a multiple of {unit} rows, found {t}", span, hint)
                else:
                    self.sink.error("T159", f"a tile has 1 or a multiple of {COLUMN_UNIT} columns, found {t}", span, hint)
                return ErrorType()
        return t

    def const(self, e: Expr) -> Any:
        """Return the Python value of a literal, dtype or list (dims as a tuple); None for other expressions."""
        if isinstance(e, (Literal, Str)):
            return e.value
        if isinstance(e, Name):
            return DTYPES.get(e.id)
        if isinstance(e, List):
            values = tuple(self.const(i) for i in e.items)
            return None if any(v is None for v in values) else values
        return None
