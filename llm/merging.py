"""Merging of an answer's definitions into a program, on ASTs."""

from __future__ import annotations

from dataclasses import replace

from cuir.attn.splicing.splice import drop_unreachable
from cuir.syntax.nodes import Definition, Kernel, Program
from cuir.text.diagnostics import CuirError


def merged(origin: Program, kernel: str, answer: Program) -> Program:
    """Replace definitions of `origin` by those of `answer` with the same name.

    The answer's kernel replaces `kernel`, whatever its name. New constants come first, other new definitions before the
    kernel. Functions that the origin used and that are unused now are left out. Raises CuirError A008 for an answer
    with several kernels.
    """
    kernels = list(answer.kernels().values())
    if len(kernels) > 1:
        raise CuirError.of(
            "A008",
            f"the answer holds {len(kernels)} kernels, expected one or none: {', '.join(k.name for k in kernels)}",
            kernels[1].span,
            "the kernel of the answer takes the place of the origin's; variants of it are const parameters",
        )
    new: dict[str, Definition] = {item.name: item for item in answer.items if not isinstance(item, Kernel)}
    items: list[Definition] = []
    for item in origin.items:
        if isinstance(item, Kernel):
            items.append(kernels[0] if kernels and item.name == kernel else item)
        else:
            items.append(new.pop(item.name, item))
    place = next(i for i, item in enumerate(items) if isinstance(item, Kernel))
    functions = [item for item in new.values() if item.name in answer.funcs()]
    items[place:place] = functions
    constants = [item for item in new.values() if item.name not in answer.funcs()]
    return replace(origin, items=tuple(drop_unreachable([*constants, *items], origin)))
