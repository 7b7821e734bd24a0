"""What a score_mod detaches: in a traced expression it stands in `detached(..)`, which is constant to a derivative and nothing else. No program has it."""

from __future__ import annotations

from typing import cast

from ..syntax.nodes import Call, Expr, Name
from ..syntax.rewrite import with_children
from ..syntax.walk import Itself

_MARK = Name("detached")


def detached(e: Expr) -> Call:
    return Call(_MARK, (e,))


def is_detached(e: Expr) -> bool:
    return isinstance(e, Call) and e.func == _MARK


def attached(e: Expr) -> Expr:
    """The expression as programs have it; itself where nothing is detached."""
    done: dict[Itself, Expr] = {}  # tracing shares subexpressions

    def plain(e: Expr) -> Expr:
        key = Itself(e)
        if key not in done:
            done[key] = plain(cast(Call, e).args[0]) if is_detached(e) else with_children(e, plain)
        return done[key]

    return plain(e)


__all__ = ["attached", "detached", "is_detached"]
