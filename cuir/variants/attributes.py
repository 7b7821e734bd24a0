"""Attributes of the user's objects, in `__dict__` and in slots, without a call of their own `__getattr__`."""

from __future__ import annotations

import types
from typing import Any

EMPTY = object()  # in a slot that nothing lies in


def slots_of(value: Any) -> list[tuple[str, Any]]:
    """What lies in the slots of an object of a Python class."""
    slots = ((n, slot_of(value, n)) for n in slot_names(type(value)))
    return [(n, v) for n, v in slots if v is not EMPTY]


def slot_names(cls: type) -> list[str]:
    classes = [c for c in cls.__mro__ if "__slots__" in vars(c)]
    return [n for c in classes for n, member in vars(c).items() if isinstance(member, types.MemberDescriptorType)]


def slot_of(value: Any, name: str) -> Any:
    """EMPTY for one that nothing lies in; the object's own `__getattr__` is not asked."""
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return EMPTY


def attributes_of(value: Any) -> Any:
    """`__dict__`, None for an object that has none, whatever its own `__getattr__` makes of the question."""
    try:
        return getattr(value, "__dict__", None)
    except Exception:  # the object's own `__getattribute__` may raise anything
        return None


def has_attributes(value: Any) -> bool:
    """An object of a class of the user's, or of PyTorch's, that has attributes of its own."""
    return isinstance(attributes_of(value), dict) or bool(slots_of(value))


__all__ = ["EMPTY", "attributes_of", "has_attributes", "slot_names", "slot_of", "slots_of"]
