"""Detection of mods that draw random numbers, and so are no functions of their arguments."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable

import torch

from ...text.diagnostics import CuirError
from ...text.user_code import function_span
from .refusal import refuse

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
