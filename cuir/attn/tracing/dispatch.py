"""The application of operations to numbers, and to tensors with dims.

Numbers go to the table's handlers; tensors with dims are taken element by element.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NoReturn

import torch

from .captured_rows import Array, array, elementwise, has_dims
from .concrete_answers import TRACE, Tracing
from .half_rounding import promote_operands, round_like
from .operation_table import FUNCTIONS, HANDLERS, by_position, in_table, words
from .proxy import Operands, Options, Proxy, Scalar, as_constants, without_gradient
from .refusal import refuse

CONVERSIONS = ("to", "type", "float", "double", "half", "bfloat16", "type_as")
MAX_SIZE = 2000
_FACTORIES = frozenset({"arange", "range", "linspace", "logspace", "eye", "full", "ones", "zeros", "tril_indices", "triu_indices"})
_ALIASES = {"special_expit": "sigmoid"}  # torch.special.expit and the like
_OTHER_NAMES = {"swapdims": "transpose", **_ALIASES}


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Enter a trace, within which values of a mod take operations."""
    entered = TRACE.set(Tracing(apply_operation))
    try:
        yield
    finally:
        TRACE.reset(entered)


def apply_operation(name: str, args: Operands, kwargs: Options) -> object:
    """Apply an operation of PyTorch or Python by its name to values of a mod."""
    plain = name.strip("_")
    plain = _ALIASES.get(plain, plain)
    plain = in_table(plain, HANDLERS) if plain not in FUNCTIONS else plain
    args, kwargs = by_position(plain, args, kwargs)
    of_rows = any(map(has_dims, (*args, *kwargs.values())))
    if of_rows or (plain in FUNCTIONS and (plain not in HANDLERS or len(args) == 1)):
        return _apply_to_rows(name, args, kwargs)
    if plain not in HANDLERS and plain[:1] in "ri" and plain[1:] in HANDLERS:  # __radd__, __iadd__
        args, plain = (args[::-1] if plain[0] == "r" else args), plain[1:]
    if plain in _FACTORIES:
        as_constants(*(x for x in (*args, *kwargs.values()) if isinstance(x, Proxy)))
        refuse(
            f"`{name}` whose size or values are only known when the kernel runs",
            "a tensor that a mod makes is the same for each pair: torch.stack([x, y]) joins numbers to a row",
        )
    if plain not in HANDLERS:
        if any(has_dims(x) for a in args if isinstance(a, (list, tuple)) for x in a):
            _refuse_rows(name)
        refuse(f"`{name}` cannot become part of a kernel", f"what can: operators and {', '.join(words())}")
    promoted = plain not in CONVERSIONS
    if promoted:
        args = promote_operands(plain, args)
    try:
        result = HANDLERS[plain](*args, **kwargs)
    except TypeError as error:
        refuse(f"`{name}`: {error}")
    if not isinstance(result, Proxy):
        return result
    if promoted:
        result = round_like(result, args)
    if not torch.is_grad_enabled():
        result = without_gradient(result)
    result.size = max(result.size, 1 + sum(a.size for a in args if isinstance(a, Proxy)))
    if result.size > MAX_SIZE:
        refuse(
            f"the expression has more than {MAX_SIZE} operations when written out",
            "a kernel evaluates it for every pair of query and key: make it simpler",
        )
    return result


def _apply_to_rows(name: str, args: Operands, kwargs: Options) -> object:
    """Apply an operation that has an operand with dims, or makes dims of a number."""
    if (running := TRACE.get()) is not None:
        running.rows = True
    plain = name.strip("_")
    plain = in_table(in_table(_OTHER_NAMES.get(plain, plain), FUNCTIONS), HANDLERS)
    swapped = plain[:1] == "r" and plain not in HANDLERS and plain not in FUNCTIONS and (plain[1:] in HANDLERS or plain[1:] in FUNCTIONS)
    if swapped:
        plain, args = plain[1:], args[::-1]
    args, kwargs = by_position(plain, args, kwargs)
    if plain == "item":
        return apply_operation(plain, (_only_element(array(args[0])),), kwargs)
    if plain in FUNCTIONS:
        try:
            return FUNCTIONS[plain](*args, **kwargs)
        except TypeError as error:
            refuse(f"`{name}`: {error}")
    if plain in HANDLERS:
        return elementwise(plain, args, kwargs)
    return _refuse_rows(name)


def _refuse_rows(name: str) -> NoReturn:
    refuse(
        f"`{name}` of a row or a view of a captured tensor cannot become part of a kernel",
        "compute it before the mod, and index the result in the mod",
    )


def _only_element(x: Array) -> Scalar:
    if x.numel() != 1 or x.follows:
        refuse(f"`item` of elements of shape {list(x.shape)}", "it is of one element")
    return x.element((0,) * x.ndim)


__all__ = ["tracing"]
