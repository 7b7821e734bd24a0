"""Attributes of the user's objects, in `__dict__` and in slots.

They are read without calling the objects' `__getattr__`.
"""

from __future__ import annotations

import types
from collections.abc import Mapping

EMPTY = object()  # the value of a slot that was never set


def slots_of(value: object) -> list[tuple[str, object]]:
    """Return the names and values of an object's slots, without those that were never set."""
    slots = ((n, slot_of(value, n)) for n in slot_names(type(value)))
    return [(n, v) for n, v in slots if v is not EMPTY]


def slot_names(cls: type) -> list[str]:
    classes = [c for c in cls.__mro__ if "__slots__" in vars(c)]
    return [n for c in classes for n, member in vars(c).items() if isinstance(member, types.MemberDescriptorType)]


def slot_of(value: object, name: str) -> object:
    """Return a slot's value, or EMPTY if it was never set; the object's own `__getattr__` is not called."""
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return EMPTY


def attributes_of(value: object) -> Mapping[str, object] | None:
    """Return `__dict__`, or None for an object that has none or whose class raises when asked for it."""
    try:
        return getattr(value, "__dict__", None)
    except Exception:  # the object's own `__getattribute__` may raise anything
        return None


def has_attributes(value: object) -> bool:
    """Return whether an object has attributes of its own, in `__dict__` or in slots."""
    return isinstance(attributes_of(value), dict) or bool(slots_of(value))


__all__ = ["EMPTY", "attributes_of", "has_attributes", "slot_names", "slot_of", "slots_of"]
