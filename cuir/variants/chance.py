"""Mods that draw random numbers: what they compute is no function of their arguments. Owns how that is noticed."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable
from typing import Any

import torch

from ..text.diagnostics import CuirError
from ..text.user_code import function_span
from .refusal import refuse

WHY = "a mask and a score are functions of their arguments: draw before the mod, into a tensor that it reads"


@functools.cache
def _draws(name: str) -> bool:
    """Whether an operation of PyTorch takes numbers from a random generator, by the tags that PyTorch keeps."""
    packet = getattr(torch.ops.aten, name, None)
    overloads = packet.overloads() if packet is not None and hasattr(packet, "overloads") else ()
    return any(torch.Tag.nondeterministic_seeded in getattr(packet, o).tags for o in overloads)


def refuse_random(operation: Any) -> None:
    """Raises CuirError X120 for an operation of PyTorch that draws random numbers."""
    name = getattr(operation, "__name__", "")
    if name and _draws(name):
        refuse(f"`{name}` draws random numbers", WHY)


def seeds_now() -> tuple[Any, ...]:
    """The state of the generators that Python and NumPy share."""
    numpy = sys.modules.get("numpy")
    state = numpy.random.get_state() if numpy is not None else ()
    return random.getstate(), tuple(x.tobytes() if hasattr(x, "tobytes") else x for x in state)


def refuse_drawn(mod: Callable[..., Any], before: tuple[Any, ...]) -> None:
    """Raises CuirError X120 if the mod has drawn from them since."""
    if seeds_now() != before:
        raise CuirError.of("X120", "the mod draws random numbers", function_span(mod), WHY)
