"""The view of a call that a typing rule of the table has, while the typer works on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ..ops import Op
from ..ops.expressions import traits
from ..ops.limits import TARGETS, Target
from ..ops.rules import broadcast
from ..syntax.nodes import Expr, Kernel, Literal, Name, Node, Subscript, Unary
from ..syntax.types import ErrorType, TileType, Type
from ..text.diagnostics import Sink


class Typer(Protocol):
    """The typer that applies the rule."""

    threads: int
    sink: Sink
    kernel: Kernel

    def const(self, e: Expr) -> Any: ...


class RuleContext:
    """The arguments of one call, by the names of the parameters (see `CallContext` in cuir/ops/base.py)."""

    def __init__(self, typer: Typer, op: Op, args: Mapping[str, Expr], node: Expr):
        self._typer, self._op, self._args, self._node = typer, op, args, node
        self.threads = typer.threads

    @property
    def target(self) -> Target:
        """The features and limits of the kernel's architecture."""
        return TARGETS[self._typer.kernel.arch]

    def has(self, arg: str) -> bool:
        return arg in self._args

    def type(self, arg: str) -> Type:
        t = self._args[arg].type
        assert t is not None
        return t

    def const(self, arg: str) -> Any:
        return self._typer.const(self._args[arg])

    value = const

    def is_subscript(self, arg: str) -> bool:
        return isinstance(self._args[arg], Subscript)

    def variadic(self, arg: str) -> list[str]:
        return [a for a in self._args if a.startswith(arg)]

    def broadcast(self, arg: str, shape: tuple[int, int] | None) -> tuple[int, int] | None:
        t = self.type(arg)
        assert isinstance(t, TileType)
        merged = broadcast(shape, (t.rows, t.cols))
        if merged is None:
            self.error("T113", f"shapes do not broadcast: [{t.rows}, {t.cols}] and {list(shape or ())}", arg)
        return merged

    def error(self, code: str, message: str, arg: str | None = None, hint: str | None = None) -> Type:
        at: Node = self._args[arg] if arg is not None and arg in self._args else self._node
        self._typer.sink.error(code, message, at.span, hint)
        return ErrorType()


def is_literal(e: Expr) -> bool:
    if isinstance(e, Unary):
        return traits(e).linear == (-1,) and is_literal(e.operand)
    return isinstance(e, Literal) or (isinstance(e, Name) and e.id == "inf")
