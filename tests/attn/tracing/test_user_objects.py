"""Members of user objects: each is found by its steps, and its guard notices that another one takes its place."""

from __future__ import annotations

import functools
import types
from collections import defaultdict, deque, namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch

from cuir.attn.capture.capture_keys import follow
from cuir.attn.tracing.user_objects import EMPTY, Member, list_cells, list_globals, list_members

WINDOW, TABLE = 4, torch.arange(3)
Pair = namedtuple("Pair", "first second")


class Slotted:
    __slots__ = ("set", "unset")

    def __init__(self) -> None:
        self.set = 3

    def method(self, x: int) -> int:
        return self.set + x


class Plain:
    def __init__(self) -> None:
        self.table, self.window = TABLE, 2


def make_function() -> Callable[..., object]:
    captured, other = torch.zeros(2), 5

    def mod(a: int, b: int = 1, c: object = TABLE, *, d: int = 2, e: tuple[int, ...] = (3,)) -> object:
        return captured, other, WINDOW, TABLE, lambda: Plain, a, b, c, d, e

    mod.note = "own attribute"  # type: ignore[attr-defined]
    return mod


class Listed(list[int]):
    def __init__(self) -> None:
        super().__init__([1, 2])
        self.extra = 7


OBJECTS: dict[str, tuple[object, list[str]]] = {
    "function": (make_function(), ["captured", "other", "b", "c", "d", "e", "Plain", "TABLE", "WINDOW", "note"]),
    "object": (Plain(), ["table", "window"]),
    "slots": (Slotted(), ["set", "unset"]),
    "method": (Slotted().method, ["__func__", "__self__"]),
    "partial": (functools.partial(make_function(), 1, d=4), ["func", "args", "keywords"]),
    "list": ([1, TABLE], ["0", "1"]),
    "named tuple": (Pair(1, TABLE), ["0", "1"]),
    "deque": (deque([TABLE]), ["0"]),
    "dict": ({"a": 1, 2: TABLE}, ["a", "2"]),
    "defaultdict": (defaultdict(list, a=1), ["a", "default_factory"]),
    "subclass of list": (Listed(), ["0", "1", "extra"]),
    "class": (Plain, []),
    "module": (torch, []),
    "tensor": (TABLE, []),
    "number": (3, []),
    "text": ("abc", []),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_members_are_found_by_their_steps_and_guards(name: str) -> None:
    value, names = OBJECTS[name]
    members = list_members(value)
    assert [m.name for m in members] == names
    for m in members:
        get, holder, key, held = m.link
        assert get(holder, key) is held
        if m.steps and m.value is not EMPTY:
            assert follow((value,), (("root", "0"), *m.steps)) is m.value


def test_guards_notice_what_is_bound_anew() -> None:
    captured = TABLE

    def mod(x: int, *, window: int = 1) -> object:
        return captured, WINDOW, x, window

    instance, slotted, entries = Plain(), Slotted(), {"a": 1}
    held = {id(o): {m.name: m for m in list_members(o)} for o in (mod, instance, slotted, entries)}

    def holds(owner: object, name: str) -> bool:
        member: Member = held[id(owner)][name]
        return member.link[0](*member.link[1:3]) is member.value

    assert all(holds(o, n) for o in (mod, instance, slotted, entries) for n in held[id(o)])
    captured, instance.window, slotted.unset, entries["a"] = torch.ones(3), 9, 1, 2
    assert [holds(*p) for p in ((mod, "captured"), (instance, "window"), (slotted, "unset"), (entries, "a"))] == [False] * 4
    del instance.table
    assert not holds(instance, "table") and holds(mod, "WINDOW")


def test_a_variable_that_is_bound_later_and_a_missing_global_are_empty() -> None:
    def mod() -> Any:
        return later, missing_global, WINDOW  # type: ignore[name-defined]  # noqa: F821

    assert [(m.name, m.value is EMPTY) for m in list_cells(mod)] == [("later", True)]
    later = 1
    assert [m.value for m in list_cells(mod)] == [later]
    assert [(m.name, m.value is EMPTY) for m in list_globals(mod)] == [("WINDOW", False), ("missing_global", True)]
    assert isinstance(mod, types.FunctionType)
