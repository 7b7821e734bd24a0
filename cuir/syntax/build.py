"""Builder of statements, definitions and the program, with their comments; refuses wrong forms.

One method per rule or alias of `grammar.lark`, as in `build_expressions.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lark import Token

from ..text.source import Span
from .build_expressions import MAX_BLOCKS, Child, ExpressionBuilder, take_first_line
from .nodes import (
    Assign,
    Attribute,
    AugAssign,
    Call,
    Comments,
    Constant,
    ConstType,
    Expr,
    ExprStmt,
    For,
    Func,
    GlobalType,
    If,
    Kernel,
    List,
    Literal,
    Name,
    Node,
    Param,
    Program,
    Return,
    ScalarType,
    Stmt,
    Str,
    Subscript,
    Tuple,
    Unary,
    With,
)
from .walk import limit_depth, measure_depth

SCALARS = ("f32", "i32", "bool")


class Builder(ExpressionBuilder):
    """Builder with a method per rule; see `begin` for the state of a parse."""

    # ---- comments
    def _take(self, span: Span, last_line: int, header: int | None = None) -> Comments:
        first = span.line - self.shift
        at_start = not self.lines[first - 1][: span.column - 1 - self.indent].strip()
        return self.comments.take(first, last_line - self.shift, at_start, None if header is None else header - self.shift)

    def _header(self, span: Span, body: Sequence[Stmt]) -> Comments:
        """Take the comments of a compound statement: of its lines up to the first statement in it."""
        return self._take(span, max(span.line, body[0].span.line - 1))

    # ---- program
    def program(self, children: list[Child]) -> Program:
        items: list[Any] = []
        for child in children:
            if isinstance(child, Token):
                continue
            if isinstance(child, Assign):
                items += self._constants(child)
            elif isinstance(child, Func | Kernel):
                items.append(child)
            elif not isinstance(child, _Broken) and not (isinstance(child, ExprStmt) and isinstance(child.value, Str)):
                self._error(
                    "P013",
                    "a file holds only constants (`NAME = literal`), @func and @kernel definitions",
                    take_first_line(child),
                    "move the statement into a @kernel or @func",
                )
        for text in self.documents:
            self._error(
                "P016",
                "a string in triple quotes or as a statement stands only first in a definition, as its documentation",
                take_first_line(text),
                "write a comment",
            )
        first_definitions: dict[str, Node] = {}
        for item in items:
            if item.name in first_definitions:
                self._error(
                    "N001",
                    f"`{item.name}` is defined twice",
                    take_first_line(item),
                    "rename or remove one of them",
                    [("the first one is here", take_first_line(first_definitions[item.name]))],
                )
            first_definitions.setdefault(item.name, item)
        whole = Span(self.source, 1 + self.shift, 1 + self.indent, len(self.lines) + self.shift, len(self.lines[-1]) + 1 + self.indent)
        span = self._span(items[0], items[-1]) if items else whole
        comments = [
            text
            for line in sorted({*self.comments.lead, *self.comments.trail})
            for text in [*self.comments.lead.get(line, ()), *filter(None, [self.comments.trail.get(line)])]
        ]
        return Program(tuple(items), tuple(comments + self.comments.tail), span=span)

    def _constants(self, stmt: Assign) -> list[Constant]:
        value = stmt.value
        if len(stmt.targets) != 1:
            self._error("P017", "a constant is one name and a literal: `NAME = 128`", stmt, "write one constant per line")
        elif not isinstance(value.operand if isinstance(value, Unary) and value.op == "-" else value, Literal):
            self._error(
                "P017",
                "the value of a constant is an int, a float or a bool, possibly negated",
                value,
                "write the number itself, or make it a const parameter of the kernel",
            )
        elif isinstance(value, Unary) and isinstance(value.operand, Literal) and value.operand.kind == "bool":
            self._error("P017", "a bool cannot be negated with `-`", value, "write True or False")
        else:
            return [Constant(stmt.targets[0], value, span=stmt.span, comments=stmt.comments)]
        return []

    # ---- definitions
    def decorator(self, children: list[Child]) -> Expr:
        return replace(children[1], span=self._span(children[0], children[1]))

    def params(self, children: list[Child]) -> list[_Param]:
        return [c for c in children if isinstance(c, _Param)]

    def param(self, children: list[Child]) -> _Param:
        kinds = {c.type: children[i + 1] for i, c in enumerate(children) if isinstance(c, Token) and c.type in ("COLON", "ASSIGN")}
        span = self._span(children[0], children[-1])
        return _Param(str(children[0]), children[0], kinds.get("COLON"), kinds.get("ASSIGN"), span=span)

    def star(self, children: list[Child]) -> _Param:
        return _Param("*", children[0], span=self._span(children[0], children[0]))

    def definition(self, children: list[Child]) -> Func | Kernel | _Broken:
        decorators: list[Expr] = [c for c in children if isinstance(c, Node)]  # type: ignore[misc]
        keyword = children[len(decorators)]
        name, body = children[len(decorators) + 1], children[-1]
        params: list[_Param] = next((c for c in children if isinstance(c, list) and c is not body), [])
        span = self._span(children[0], body[-1])
        comments = self._take(span, max(span.line, body[0].span.line - 1), keyword.line + self.shift)
        body, doc = self._docstring(body)
        comments = Comments(comments.lead + doc, comments.trail)
        heading = self._span(keyword, name)
        if measure_depth(body, (For, If, With)) > MAX_BLOCKS:
            self._error("P018", f"blocks in `{name}` are nested more than {MAX_BLOCKS} deep", heading, "move inner blocks into a @func")
        if not decorators:
            self._error("P013", f"`def {name}` has no decorator", heading, f'write `@func` or `@kernel(arch="...")` above `def {name}`')
            return _Broken(span=span)
        if len(decorators) > 1:
            self._error("P012", "a definition has one decorator, found another", decorators[1])
        kind, call = _get_decorator_name(decorators[0])
        if kind == "func" and call is None:
            self._check_func_body(name, body)
            return Func(str(name), self._func_params(params), body, span=span, comments=comments)
        if kind == "kernel":
            arch, cluster = self._kernel_options(decorators[0], call)
            self._check_kernel_body(body)
            if not body:
                self._error("P003", f"kernel `{name}` has no statements", heading)
            return Kernel(str(name), self._kernel_params(params), body, arch, cluster, span=span, comments=comments)
        self._error(
            "P012",
            'the decorators are `@func` and `@kernel(arch="...", cluster=n)`',
            decorators[0],
            "write `@func` without arguments" if kind == "func" else None,
        )
        return _Broken(span=span)

    def _docstring(self, body: tuple[Stmt, ...]) -> tuple[tuple[Stmt, ...], tuple[str, ...]]:
        """Turn a string as the first statement into comment lines above the definition."""
        head = body[0]
        if not (isinstance(head, ExprStmt) and isinstance(head.value, Str)):
            return body, ()
        self.documents = [d for d in self.documents if d is not head.value]
        lines = [f"# {line.strip()}".rstrip() for line in head.value.value.strip().split("\n")]
        trail = [head.comments.trail] if head.comments.trail else []
        return body[1:], (*head.comments.lead, *lines, *trail)

    def _func_params(self, params: list[_Param]) -> tuple[str, ...]:
        names: list[str] = []
        for p in params:
            if p.name == "*":
                self._error("P011", "a @func has no parameters after `*`; its arguments are plain values", p)
            elif p.annotation or p.default:
                self._error(
                    "P011",
                    f"the parameters of a @func have neither annotation nor default, found `{p.span.text()}`",
                    p,
                    f"write `{p.name}`; what it is is settled at each call",
                )
            if p.name != "*":
                self._unique(p, names)
                names.append(p.name)
        return tuple(names)

    def _unique(self, p: _Param, names: list[str]) -> None:
        if p.name in names:
            self._error("N002", f"there are two parameters `{p.name}`", p.token, "rename one of them")

    def _kernel_params(self, params: list[_Param]) -> tuple[Param, ...]:
        out: list[Param] = []
        starred: _Param | None = None
        for p in params:
            if p.name == "*":
                if starred:
                    self._error("P011", "`*` stands once in a signature", p)
                starred = p
                continue
            self._unique(p, [q.name for q in out])
            kind = self._annotation(p)
            if kind is None:
                continue
            const = isinstance(kind, ConstType)
            if const and not starred:
                self._error(
                    "P011", f"const parameters stand after `*`, found `{p.name}` before it", p, "put `*, ` before the first const parameter"
                )
            if not const and starred:
                self._error("P011", f"after `*` come only const parameters, found `{p.span.text()}`", p, "put it before the `*`")
            if p.default and not const:
                self._error("P011", f"only const parameters have defaults, found one for `{p.name}`", p.default)
            elif p.default and not isinstance(p.default.operand if isinstance(p.default, Unary) else p.default, Literal | Name):
                self._error("P011", "the default of a const is an int, a bool, a dtype or a const before it", p.default)
            out.append(Param(p.name, kind, p.default, span=p.span))
        if starred and params[-1] is starred:
            self._error("P011", "after `*` come const parameters, found none", starred, "remove the `*`")
        return tuple(out)

    def _annotation(self, p: _Param) -> GlobalType | ScalarType | ConstType | None:
        a = p.annotation
        forms = "`Global[dtype, dims...]`, `Scratch[dtype, dims...]`, `f32`, `i32`, `bool` or `const`"
        if a is None:
            self._error("P011", f"parameter `{p.name}` of a kernel needs an annotation: {forms}", p, f"write `{p.name}: ...`")
            return None
        if isinstance(a, Name) and a.id == "const":
            return ConstType(span=a.span)
        if isinstance(a, Name) and a.id in SCALARS:
            return ScalarType(a.id, span=a.span)
        if isinstance(a, Subscript) and isinstance(a.value, Name) and a.value.id in ("Global", "Scratch"):
            word = a.value.id
            dtype, dims = a.indices[0], a.indices[1:]
            if not isinstance(dtype, Name):
                self._error("P011", f"the first argument of `{word}` is a dtype or the name of a const, found `{dtype.span.text()}`", dtype)
                return None
            if not dims:
                self._error("P011", f"`{word}` needs a dtype and at least one dim", a, f"write `{word}[T, M, N]`")
                return None
            out: list[str | int] = []
            for dim in dims:
                if isinstance(dim, Name):
                    out.append(dim.id)
                elif isinstance(dim, Literal) and dim.kind == "int":
                    out.append(int(dim.value))
                else:
                    self._error("P011", f"a dim is a name or an integer, found `{dim.span.text()}`", dim)
                    return None
            return GlobalType(dtype.id, tuple(out), word == "Scratch", span=a.span)
        self._error("P011", f"the type of a kernel's parameter is {forms}, found `{a.span.text()}`", a)
        return None

    def _kernel_options(self, decorator: Expr, call: Call | None) -> tuple[str, Expr | None]:
        arch = None
        cluster: Expr | None = None
        form = '`@kernel(arch="sm_90a", cluster=n)`'
        for arg in call.args if call else ():
            self._error("P012", f"the options of a kernel are given by name: {form}", arg)
        for k in call.keywords if call else ():
            if k.name == "arch" and isinstance(k.value, Str):
                arch = k.value.value
            elif k.name == "cluster" and (len(k.value.items) == 2 if isinstance(k.value, Tuple) else not isinstance(k.value, Str | List)):
                cluster = k.value
            elif k.name == "arch":
                self._error("P012", "`arch` is a word in quotes", k.value, 'write `arch="sm_90a"`')
                arch = ""
            elif k.name == "cluster":
                self._error(
                    "P012", "`cluster` is an integer, a const parameter or an expression of these, or two of them in parentheses", k.value
                )
            else:
                self._error("P012", f"a kernel has no option `{k.name}`: {form}", k)
        if arch is None:
            self._error("P012", "a kernel names its architecture", decorator, 'write `@kernel(arch="sm_90a")`')
        return arch or "", cluster

    def _check_func_body(self, name: Token, body: Sequence[Stmt]) -> None:
        if not body or not isinstance(body[-1], Return):
            at = body[-1] if body else name
            self._error(
                "P010",
                f"@func `{name}` ends in a `return`, found {_describe_kind(body[-1]) if body else 'nothing'} at its end",
                take_first_line(at),
                "add `return ...` as the last statement; `return ()` for a function without a result",
            )
        for stmt in _walk_returns(body[:-1] if body and isinstance(body[-1], Return) else body):
            self._error(
                "P010",
                "the only `return` of a @func is its last statement",
                stmt,
                "compute the value on every path (`a if c else b`, or assign in both branches) and return it at the end",
            )

    def _check_kernel_body(self, body: Sequence[Stmt]) -> None:
        for stmt in _walk_returns(body):
            self._error("P010", "a kernel has no `return`", stmt, "store results with `store(...)` or `store_async(...)`")

    # ---- statements
    def suite(self, children: list[Child]) -> tuple[Stmt, ...]:
        return self._body(children[2:-1])

    def inline_suite(self, children: list[Child]) -> tuple[Stmt, ...]:
        return self._body(children[:1])

    def _body(self, statements: list[Child]) -> tuple[Stmt, ...]:
        for s in statements:
            if isinstance(s, Func | Kernel | _Broken):
                self._error(
                    "P005",
                    "a definition stands at the top level of the file, found one inside another statement",
                    take_first_line(s),
                    "move it out; a @func sees the kernel's parameters by name",
                )
        return tuple(statements)

    def line(self, children: list[Child]) -> Stmt:
        stmt = children[0]
        limit_depth(stmt, self.sink)
        return replace(stmt, comments=self._take(stmt.span, stmt.span.end_line))

    def for_(self, children: list[Child]) -> For:
        _, target, _, over, _, body = children
        limit_depth(over, self.sink)
        if not isinstance(target, Name):
            self._error(
                "P009", "a loop has one variable", target, "unpack inside the loop: `a, b = ...`" if isinstance(target, Tuple) else None
            )
            target = Name("_", span=target.span)
        span = self._span(children[0], body[-1])
        return For(target.id, over, body, span=span, comments=self._header(span, body))

    def if_(self, children: list[Child]) -> If:
        keyword, cond, _, body, *rest = children
        limit_depth(cond, self.sink)
        orelse: tuple[Stmt, ...] = ()
        if rest:
            orelse = (rest[0],) if isinstance(rest[0], If) else rest[0].body
        span = self._span(keyword, (orelse or body)[-1])
        return If(cond, body, orelse, span=span, comments=self._header(span, body))

    def else_(self, children: list[Child]) -> _Else:
        keyword, _, body = children
        first, head = keyword.line, body[0]
        extra = self.comments.take(first, max(first, head.span.line - self.shift - 1), header=first)
        lead = (*extra.lead, *filter(None, [extra.trail]))
        if lead:
            body = (replace(head, comments=Comments(lead + head.comments.lead, head.comments.trail)), *body[1:])
        return _Else(body)

    def with_(self, children: list[Child]) -> With:
        call, body = children[1], children[-1]
        limit_depth(call, self.sink)
        name = str(children[3]) if isinstance(children[2], Token) and children[2].type == "AS" else None
        if not isinstance(call, Call):
            self._error("P005", f"`with` opens a role, found `{call.span.text()}`", call, 'write `with role("name", warps=1):`')
            call = Call(call, span=call.span)
        span = self._span(children[0], body[-1])
        return With(call, name, body, span=span, comments=self._header(span, body))

    def expr_stmt(self, children: list[Child]) -> ExprStmt:
        if isinstance(children[0], Str):
            self.documents.append(children[0])
        return ExprStmt(children[0], span=self._span(children[0], children[0]))

    def assign(self, children: list[Child]) -> Assign:
        target, value = children[0], children[2]
        if len(children) > 3:
            self._error("P009", "one assignment per statement, found a second `=`", children[3], "write two statements")
        names: list[str] = []
        if isinstance(target, Tuple) and len(target.items) < 2:
            self._error("P009", "one target stands without a comma", target)
        for item in target.items if isinstance(target, Tuple) else (target,):
            names.append(self._target(item))
        return Assign(tuple(names), value, span=self._span(children[0], children[-1]))

    def _target(self, node: Node) -> str:
        if isinstance(node, Name):
            return node.id
        hint = "write memory with `store(place, tile)`" if isinstance(node, Subscript) else None
        self._error("P009", f"only names can be assigned to, found `{node.span.text()}`", node, hint)
        return "_"

    def augassign(self, children: list[Child]) -> AugAssign:
        target, op, value = children
        return AugAssign(self._target(target), str(op)[:-1], value, span=self._span(target, value))

    def return_(self, children: list[Child]) -> Return:
        if len(children) == 1:
            self._error("P010", "`return` needs a value", children[0], "a @func gives a value; return `()` for none")
        value = children[1] if len(children) > 1 else Tuple((), span=self._span(children[0], children[0]))
        return Return(value, span=self._span(children[0], children[-1]))


@dataclass(frozen=True)
class _Param(Node):
    """A parameter as written, or the `*` of a signature, before its kind is known."""

    name: str
    token: Token
    annotation: Expr | None = None
    default: Expr | None = None


@dataclass(frozen=True)
class _Broken(Node):
    """A placeholder for a definition that was reported."""


@dataclass(frozen=True)
class _Else:
    body: tuple[Stmt, ...]


def _get_decorator_name(decorator: Expr) -> tuple[str, Call | None]:
    """Return `func` or `kernel`, with or without `cuir.` before it, and the call if it is one.

    The name is "" for anything else.
    """
    call = decorator if isinstance(decorator, Call) else None
    target = call.func if call else decorator
    if isinstance(target, Attribute) and isinstance(target.value, Name) and target.value.id == "cuir":
        return target.attr, call
    return (target.id if isinstance(target, Name) else ""), call


def _walk_returns(body: Iterable[Stmt]) -> Iterable[Return]:
    for stmt in body:
        if isinstance(stmt, Return):
            yield stmt
        elif isinstance(stmt, For | With):
            yield from _walk_returns(stmt.body)
        elif isinstance(stmt, If):
            yield from _walk_returns((*stmt.body, *stmt.orelse))


def _describe_kind(stmt: Stmt) -> str:
    names = {For: "a `for`", If: "an `if`", With: "a `with`", ExprStmt: "an expression"}
    return names.get(type(stmt), "an assignment")
