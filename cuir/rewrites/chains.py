"""All rewrites of a program, and random chains of several."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping

from ..checking.checked import Const
from ..checking.checker import pick_kernel
from ..syntax.nodes import Program
from ..syntax.parser import parse
from ..syntax.printer import show
from . import expression_rewrites, function_rewrites, renaming, statements  # noqa: F401 - they enter their kinds
from .facts import Facts
from .rewrites_table import KINDS, Rewrite


def rewrites(
    program: Program, kernel: str | None = None, consts: Mapping[str, Const] | None = None, kinds: Collection[str] = ()
) -> list[Rewrite]:
    """List every rewrite of what a kernel uses, in the order of kinds and of the text.

    Each preserves the meaning for these consts: the same outputs, to the bit, and the same accesses and synchronisation
    in the same order. Lines are those of the canonical text. Empty `kinds` selects all kinds.

    Raises:
        CuirError: the program does not check.
    """
    canonical = parse(show(program))
    facts = Facts(canonical, pick_kernel(canonical, kernel), consts or {})
    return [r for name, make in KINDS.items() if not kinds or name in kinds for r in make(facts)]


def chain(
    program: Program,
    rng: random.Random,
    n: int,
    kernel: str | None = None,
    consts: Mapping[str, Const] | None = None,
    kinds: Collection[str] = (),
) -> list[Rewrite]:
    """Draw n successive rewrites: each time a kind, then a place; fewer if none remains.

    The last one's program contains all of them.
    """
    kernel = pick_kernel(program, kernel).name
    applied: list[Rewrite] = []
    for _ in range(n):
        by_kind: dict[str, list[Rewrite]] = {}
        for r in rewrites(applied[-1].program if applied else program, kernel, consts, kinds):
            by_kind.setdefault(r.kind, []).append(r)
        if not by_kind:
            break
        applied.append(rng.choice(by_kind[rng.choice(sorted(by_kind))]))
    return applied


def apply(
    program: Program,
    rng: random.Random,
    n: int,
    kernel: str | None = None,
    consts: Mapping[str, Const] | None = None,
    kinds: Collection[str] = (),
) -> Program:
    """Return the program after n random rewrites, as the parser gives it."""
    applied = chain(program, rng, n, kernel, consts, kinds)
    return parse(show(applied[-1].program if applied else program))
