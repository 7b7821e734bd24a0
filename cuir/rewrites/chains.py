"""All rewrites of a program, and chains of several drawn at random. Owns the order and the drawing."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping

from ..checking.checked import Const
from ..checking.checker import pick_kernel
from ..syntax.nodes import Program
from ..syntax.parser import parse
from ..syntax.printer import show
from . import expressions, functions, names, statements  # noqa: F401 - they enter their kinds
from .facts import Facts
from .table import KINDS, Rewrite


def rewrites(
    program: Program, kernel: str | None = None, consts: Mapping[str, Const] | None = None, kinds: Collection[str] = ()
) -> list[Rewrite]:
    """Every rewrite of what a kernel uses, in the order of kinds and of the text; of some kinds (none named: of all).

    Each means the same for these consts: the same outputs, to the bit, and the same accesses and synchronisation in the same order. Lines are those of the
    canonical text. Raises CuirError for a program that does not check.
    """
    canonical = parse(show(program))
    of = Facts(canonical, pick_kernel(canonical, kernel), consts or {})
    return [r for name, make in KINDS.items() if not kinds or name in kinds for r in make(of)]


def chain(
    program: Program,
    rng: random.Random,
    n: int,
    kernel: str | None = None,
    consts: Mapping[str, Const] | None = None,
    kinds: Collection[str] = (),
) -> list[Rewrite]:
    """n rewrites after each other, each of a kind drawn first and then of a place; fewer if none is left. The last one's program has all of them."""
    kernel = pick_kernel(program, kernel).name
    done: list[Rewrite] = []
    for _ in range(n):
        by_kind: dict[str, list[Rewrite]] = {}
        for r in rewrites(done[-1].program if done else program, kernel, consts, kinds):
            by_kind.setdefault(r.kind, []).append(r)
        if not by_kind:
            break
        done.append(rng.choice(by_kind[rng.choice(sorted(by_kind))]))
    return done


def apply(
    program: Program,
    rng: random.Random,
    n: int,
    kernel: str | None = None,
    consts: Mapping[str, Const] | None = None,
    kinds: Collection[str] = (),
) -> Program:
    """The program after n rewrites drawn at random, as the parser gives it."""
    done = chain(program, rng, n, kernel, consts, kinds)
    return parse(show(done[-1].program if done else program))
