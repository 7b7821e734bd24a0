"""Python's operations on the stand-in of a captured number: hash, text, rounding, class.

The stand-in hashes, prints and rounds as the number, and `isinstance` sees the number's class. Operations, which give
CuIR, are in proxy.py; trace.py decides when a trace begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

from ...syntax.types import BOOL, F32, I32, DType
from ...text.diagnostics import CuirError

KINDS: dict[DType, type] = {F32: float, I32: int, BOOL: bool}


@dataclass(eq=False)
class Tracing:
    """A trace that runs.

    Attributes:
        apply: apply(name, args, kwargs) applies an operation to values of the mod.
        refused: errors that were raised in the mod, which may have caught them.
        rows: it works on rows or views of captured tensors.
        beyond: the current part is computed for pairs behind the last query and key, too.
    """

    apply: Callable[[str, tuple[object, ...], Mapping[str, object]], object]
    refused: list[CuirError] = field(default_factory=list)
    rows: bool = False
    beyond: bool = False


TRACE: ContextVar[Tracing | None] = ContextVar("TRACE", default=None)


class Constant(BaseException):
    """The end of a trace: a captured number that needs to be constant becomes one in the next trace.

    A mod's own `except Exception` does not catch it.
    """


class Answers:
    """Python's operations on a proxy that need its value.

    Attributes:
        number: The proxy stands for a captured number, a length, or a result of Python's operators on these, and for no
            tensor. A length has no value.
    """

    element: DType
    value: int | float | bool | None
    numbers: frozenset[str]
    number: bool

    def require_value(self, purpose: str) -> int | float | bool:
        raise NotImplementedError

    def constant(self, purpose: str) -> int | float | bool:
        """Return the value for a use that needs a constant.

        Ends the trace if a captured number thereby becomes a constant; refuses (X121) if there is no value.
        """
        value = self.require_value(purpose)
        if self.numbers and TRACE.get() is not None:
            raise Constant
        return value

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class for `isinstance`, `match` and `functools.singledispatch`.

        A tensor's class is not given: PyTorch would take the proxy's memory for one.
        """
        return KINDS[self.element] if self.number else type(self)

    def __hash__(self) -> int:
        return hash(self.constant("a key of a dict or a set")) if self.number else id(self)

    def __str__(self) -> str:
        return str(self.constant("text")) if self.number else repr(self)

    def __format__(self, spec: str) -> str:
        return format(self.constant("text") if self.number else repr(self), spec)

    def __copy__(self) -> Answers:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Answers:
        return self


def _answer_for(name: str) -> Callable[..., object]:
    def answer(self: Answers, *operands: object) -> object:
        return getattr(self.constant(f"{name}()"), f"__{name}__")(*operands)

    return answer


# what Python's numbers have, and kernels have not
for _name in ("round", "trunc", "floor", "ceil", "divmod", "rdivmod"):
    setattr(Answers, f"__{_name}__", _answer_for(_name))

__all__ = ["KINDS", "TRACE", "Answers", "Constant", "Tracing"]
