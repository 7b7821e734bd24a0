"""What Python answers about a value of a mod that stands for a number of Python's: it hashes, prints and rounds as the number, `isinstance` sees its class.

Owns these answers; not the operations, which give CuIR (proxy.py), nor when a trace begins anew (trace.py).
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from ..syntax.types import BOOL, F32, I32, DType
from ..text.diagnostics import CuirError

KINDS: dict[DType, type] = {F32: float, I32: int, BOOL: bool}


@dataclass(eq=False)
class Tracing:
    """A trace that runs. refused: what the mod was told, which it may have caught. rows: whether it works on rows or views of captured tensors.
    beyond: what it computes now is computed for pairs behind the last query and key, too."""

    refused: list[CuirError] = field(default_factory=list)
    rows: bool = False
    beyond: bool = False


TRACE: ContextVar[Tracing | None] = ContextVar("TRACE", default=None)


class Constant(BaseException):
    """Ends a trace: a captured number was asked for what only a constant can answer, and is one in the next trace. A mod's own `except Exception` lets it pass."""


class Answers:
    """Of a proxy. `number`: it stands for a captured number, a length, or what Python's operators make of these, and for no tensor. A length has no value."""

    element: DType
    value: int | float | bool | None
    numbers: frozenset[str]
    number: bool

    def known(self, what: str) -> int | float | bool:
        raise NotImplementedError

    def constant(self, what: str) -> int | float | bool:
        """The value. Ends the trace if that makes a captured number a constant; refuses (X121) if there is none."""
        value = self.known(what)
        if self.numbers and TRACE.get() is not None:
            raise Constant
        return value

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """What `isinstance` asks, and `match` and `functools.singledispatch` with it. A tensor's is not told: PyTorch would take the proxy's memory for one."""
        return KINDS[self.element] if self.number else type(self)

    def __hash__(self) -> int:
        return hash(self.constant("a key of a dict or a set")) if self.number else id(self)

    def __str__(self) -> str:
        return str(self.constant("text")) if self.number else repr(self)

    def __format__(self, spec: str) -> str:
        return format(self.constant("text") if self.number else repr(self), spec)

    def __copy__(self) -> Answers:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Answers:
        return self


def _asked(name: str) -> Callable[..., Any]:
    def answer(self: Answers, *others: Any) -> Any:
        return getattr(self.constant(f"{name}()"), f"__{name}__")(*others)

    return answer


for _name in ("round", "trunc", "floor", "ceil", "divmod", "rdivmod"):  # what Python's numbers have, and kernels have not
    setattr(Answers, f"__{_name}__", _asked(_name))

__all__ = ["KINDS", "TRACE", "Answers", "Constant", "Tracing"]
