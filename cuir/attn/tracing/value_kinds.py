"""`isinstance` and `type` for traced functions: a stand-in shows the class of the value it imitates."""

from __future__ import annotations

import builtins
from types import UnionType

import torch

from .concrete_answers import KINDS
from .proxy import Proxy, Rows, TensorProxy
from .traced_methods import class_of

Classes = type | UnionType | tuple["Classes", ...]  # as `isinstance` takes them


def _kind(x: object) -> type | None:
    """Return the Python class that a traced stand-in imitates; None for other values."""
    if isinstance(x, Proxy):
        return KINDS[x.element] if x.number else torch.Tensor
    return x.kind if isinstance(x, TensorProxy) else torch.Tensor if isinstance(x, Rows) else None


def _isinstance(x: object, classes: Classes) -> bool:
    kind, classes = _kind(x), type if classes is _type else classes
    return isinstance(x, classes) if kind is None else issubclass(kind, classes)


def _type(*args: object, **keywords: object) -> type:
    return (_kind(args[0]) or class_of(args[0])) if len(args) == 1 else type(*args, **keywords)


BUILTINS = {**vars(builtins), "isinstance": _isinstance, "type": _type}  # the builtins of traced functions

__all__ = ["BUILTINS"]
