"""Tensors that a mod reads from where no walk replaces them: classes, modules, what properties give. Met as PyTorch meets them, at the operation.

Owns the telling apart of such tensors from those that the mod makes itself. What stands in for them is the tracer's, or the rebuilder's, to say.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

Standing = Callable[[torch.Tensor], Any]  # what stands for a tensor that the mod did not make


class Outside(TorchFunctionMode):
    """While it is entered, operations see `standing(x)` for every tensor x that is neither `own` nor a result of an operation in it."""

    def __init__(
        self, standing: Standing, own: Iterable[Any] = (), run: Callable[..., Any] | None = None, asked: Callable[[Any], None] | None = None
    ):
        """run(func, args, kwargs): does an operation one of whose tensors was replaced; the operation itself if left out. asked(func): told of each operation before it is done."""
        super().__init__()
        self.standing, self.run, self.asked = standing, run, asked
        self.made = {id(x): x for x in own}  # holds them: an id says nothing about what is gone

    def of(self, value: Any) -> Any:
        """What stands for a value."""
        if isinstance(value, torch.Tensor):
            return value if id(value) in self.made else self.standing(value)
        if type(value) in (tuple, list):
            items = [self.of(v) for v in value]
            return value if all(item is v for item, v in zip(items, value)) else type(value)(items)
        return value

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if self.asked is not None:
            self.asked(func)
        with torch._C.DisableTorchFunction():
            given = [self.of(a) for a in args]
            named = {n: self.of(a) for n, a in kwargs.items()}
        replaced = any(x is not a for x, a in zip(given, args)) or any(named[n] is not a for n, a in kwargs.items())
        result = self.run(func, given, named) if replaced and self.run is not None else func(*given, **named)
        for one in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(one, torch.Tensor):
                self.made[id(one)] = one
        return result


class Standin:
    """A mod that sees `standing(x)` for every tensor x from outside: x itself for one that stands for another."""

    def __init__(self, mod: Callable[..., Any], standing: Standing):
        self.mod, self.standing = mod, standing

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        """Whose signature it has, and whose place in the user's file."""
        return self.mod

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with Outside(self.standing, [*args, *kwargs.values()]):
            return self.mod(*args, **kwargs)


def attribute_read(func: Any) -> str | None:
    """Of `Tensor.shape.__get__` and the like: which attribute; None for other operations."""
    return func.__self__.__name__ if getattr(func, "__name__", "") == "__get__" else None


def found_under(value: object, frame: Any) -> str | None:
    """The last name on the way on which a function's own code reaches a value: a variable, an attribute or an item. Nothing of the user's runs.

    Of what a property or a call gives: the attribute that was read last.
    """
    code = frame.f_code
    known = {n: frame.f_globals[n] for n in code.co_names if n in frame.f_globals} | frame.f_locals
    for _ in range(_STEPS):
        for name, one in _with_items(known):
            if one is value:
                return name
        known = {n: x for one in known.values() for n, x in _members(one, code.co_names)}
    attributes = [i.argval for i in dis.get_instructions(code) if i.offset < frame.f_lasti and i.opname == "LOAD_ATTR"]
    return attributes[-1] if attributes else None


_STEPS = 4  # `package.module.Class.tensor`


def _with_items(known: Mapping[str, Any], further: int = 3) -> Iterable[tuple[str, Any]]:
    for name, one in known.items():
        yield name, one
        items = one.items() if isinstance(one, dict) else enumerate(one) if isinstance(one, (list, tuple)) else ()
        if further and items:
            yield from _with_items({f"{name}_{n}": x for n, x in items if isinstance(n, (str, int))}, further - 1)


def _members(one: Any, names: Iterable[str]) -> Iterable[tuple[str, Any]]:
    own = (one, *one.__mro__) if isinstance(one, type) else (one, *type(one).__mro__)
    for name in names:
        for holder in own:
            known = getattr(holder, "__dict__", None)
            if known is not None and name in known:
                yield name, known[name]
                break


__all__ = ["Outside", "Standin", "attribute_read", "found_under"]
