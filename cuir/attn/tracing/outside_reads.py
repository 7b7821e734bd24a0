"""Tensors that a mod reads from places where no walk replaces them.

These are classes, modules and results of properties. The tensors are found as PyTorch finds them, at the operation, and
told apart from tensors that the mod makes itself. The tracer or the rebuilder supplies their stand-ins.

Detection of mods that draw random numbers, and so are no functions of their arguments.
"""

from __future__ import annotations

import dis
import functools
import random
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from types import FrameType

import torch
from torch.overrides import TorchFunctionMode

from ...text.diagnostics import CuirError
from ...text.source import function_span
from .refusal import refuse

Operation = Callable[..., object]  # of PyTorch
Standing = Callable[[torch.Tensor], object]  # what stands for a tensor that the mod did not make


class Outside(TorchFunctionMode):
    """A mode in which operations see `standing(x)` for every tensor x from outside.

    These are tensors that are neither `inside` nor a result of an operation in the mode.
    """

    def __init__(
        self,
        standing: Standing,
        inside: Iterable[object] = (),
        run: Callable[[Operation, list[object], dict[str, object]], object] | None = None,
        observe: Callable[[Operation], None] | None = None,
    ):
        """Create a mode.

        Args:
            standing: returns the stand-in of a tensor from outside.
            inside: tensors that are not replaced, as the mod's arguments.
            run: run(func, args, kwargs) applies an operation that has a replaced tensor; the operation itself by
                default.
            observe: called with each operation before it runs.
        """
        super().__init__()
        self.standing, self.run, self.observe = standing, run, observe
        self.results = {id(x): x for x in inside}  # keeps them alive, as an id may be reused

    def of(self, value: object) -> object:
        """Return a value with its tensors from outside replaced by stand-ins."""
        if isinstance(value, torch.Tensor):
            return value if id(value) in self.results else self.standing(value)
        if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
            items = [self.of(v) for v in value]
            return value if all(item is v for item, v in zip(items, value)) else type(value)(items)
        return value

    def __torch_function__(
        self, func: Operation, types: Collection[type], args: tuple[object, ...] = (), kwargs: Mapping[str, object] | None = None
    ) -> object:
        kwargs = kwargs or {}
        if self.observe is not None:
            self.observe(func)
        with torch._C.DisableTorchFunction():
            arguments = [self.of(a) for a in args]
            named = {n: self.of(a) for n, a in kwargs.items()}
        replaced = any(x is not a for x, a in zip(arguments, args)) or any(named[n] is not a for n, a in kwargs.items())
        result = self.run(func, arguments, named) if replaced and self.run is not None else func(*arguments, **named)
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.results[id(tensor)] = tensor
        return result


class Standin:
    """A mod that sees `standing(x)` for every tensor x from outside.

    `standing` returns x itself for a stand-in.
    """

    def __init__(self, mod: Callable[..., object], standing: Callable[[torch.Tensor], torch.Tensor]):
        self.mod, self.standing = mod, standing

    @property
    def __wrapped__(self) -> Callable[..., object]:
        """The mod, for its signature and its place in the user's file."""
        return self.mod

    def __call__(self, *args: object, **kwargs: object) -> object:
        with Outside(self.standing, [*args, *kwargs.values()]):
            return self.mod(*args, **kwargs)


def attribute_read(func: object) -> str | None:
    """Return the attribute of `Tensor.shape.__get__` and the like; None for other operations."""
    return getattr(getattr(func, "__self__", None), "__name__", None) if getattr(func, "__name__", "") == "__get__" else None


def find_name_under(value: object, frame: FrameType) -> str | None:
    """Return the last name on the path by which a function's code reaches a value.

    It is a variable, an attribute or an item; none of the user's code runs. For the result of a property or a call it
    is the attribute that was read last.
    """
    code = frame.f_code
    namespace = {n: frame.f_globals[n] for n in code.co_names if n in frame.f_globals} | frame.f_locals
    for _ in range(_STEPS):
        for name, candidate in _with_items(namespace):
            if candidate is value:
                return name
        namespace = {n: x for candidate in namespace.values() for n, x in _members(candidate, code.co_names)}
    attributes = [i.argval for i in dis.get_instructions(code) if i.offset < frame.f_lasti and i.opname == "LOAD_ATTR"]
    return attributes[-1] if attributes else None


_STEPS = 4  # `package.module.Class.tensor`


def _with_items(namespace: Mapping[str, object], depth: int = 3) -> Iterable[tuple[str, object]]:
    for name, value in namespace.items():
        yield name, value
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
        if depth and items:
            yield from _with_items({f"{name}_{n}": x for n, x in items if isinstance(n, (str, int))}, depth - 1)


def _members(value: object, names: Iterable[str]) -> Iterable[tuple[str, object]]:
    holders = (value, *value.__mro__) if isinstance(value, type) else (value, *type(value).__mro__)
    for name in names:
        for holder in holders:
            namespace = getattr(holder, "__dict__", None)
            if namespace is not None and name in namespace:
                yield name, namespace[name]
                break


WHY = "a mask and a score are functions of their arguments: draw before the mod, into a tensor that it reads"


@functools.cache
def _draws(name: str) -> bool:
    """Return True if an operation of PyTorch uses a random generator, by the tags that PyTorch keeps."""
    packet = getattr(torch.ops.aten, name, None)
    overloads = packet.overloads() if packet is not None and hasattr(packet, "overloads") else ()
    return any(torch.Tag.nondeterministic_seeded in getattr(packet, o).tags for o in overloads)


def refuse_random(operation: object) -> None:
    """Raise CuirError X120 for an operation of PyTorch that draws random numbers."""
    name = getattr(operation, "__name__", "")
    if name and _draws(name):
        refuse(f"`{name}` draws random numbers", WHY)


def seeds_now() -> tuple[object, ...]:
    """Return the state of the global generators of Python and NumPy."""
    numpy = sys.modules.get("numpy")
    state = numpy.random.get_state() if numpy is not None else ()
    return random.getstate(), tuple(x.tobytes() if hasattr(x, "tobytes") else x for x in state)


def refuse_drawn(mod: Callable[..., object], state_before: tuple[object, ...]) -> None:
    """Raise CuirError X120 if the mod has drawn from them since `before`."""
    if seeds_now() != state_before:
        raise CuirError.of("X120", "the mod draws random numbers", function_span(mod), WHY)


__all__ = ["WHY", "Outside", "Standin", "attribute_read", "find_name_under", "refuse_drawn", "refuse_random", "seeds_now"]
