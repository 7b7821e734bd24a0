"""An answer's definitions in the places of those of a program, on ASTs. Owns which definition takes whose place."""

from __future__ import annotations

from dataclasses import replace

from cuir.syntax.nodes import Definition, Kernel, Program
from cuir.text.diagnostics import CuirError
from cuir.variants.splice import alive


def merged(origin: Program, kernel: str, answer: Program) -> Program:
    """`origin` with the definitions of `answer` in the places of its own of the same name; a kernel takes the place of `kernel`, whatever its name.

    New constants come first, other new definitions before the kernel. Functions that the origin used and nothing uses any more are left out.
    Raises CuirError A008 for an answer with several kernels.
    """
    kernels = list(answer.kernels().values())
    if len(kernels) > 1:
        raise CuirError.of("A008", f"the answer holds {len(kernels)} kernels, expected one or none: {', '.join(k.name for k in kernels)}", kernels[1].span,
                           "the kernel of the answer takes the place of the origin's; variants of it are const parameters")  # fmt: skip
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
    return replace(origin, items=tuple(alive([*constants, *items], origin)))
