"""Argument that a mutant is equivalent: it changes a part of a tuple that nothing reads.

It holds for the consts with which the kernel is checked.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from ..attn.verification.splice_evaluator import Evaluator
from ..checking.checker import check
from ..syntax.nodes import Assign, Call, Func, Kernel, Name, Return, Tuple
from ..text.diagnostics import CuirError
from .mutant_comparison import Trial
from .mutation_sites import Site

_NUMBERS = (*range(24), 63, 64, 1000)  # of other arguments
_REPLACEMENTS = (0, 1, 2, 3, 7, 1000)  # in place of the part
_TUPLES = 8  # drawn values of the other parts


def argue_for_unused_part(t: Trial) -> str | None:
    """Argue for a changed part of the tuple that a function returns.

    Every function that takes the tuple ignores this part. Callers bind the tuple to one name, which is read as an
    argument alone. Functions that take it are enumerated.
    """
    function = next((p for p in (*t.at.parents, t.at.node) if isinstance(p, Func)), None)
    mutant = t.mutant.funcs().get(function.name) if function is not None else None
    if function is None or mutant is None or (changed := _find_changed_parts(function, mutant)) is None:
        return None
    count, parts = changed
    uses = [u for call in _list_calls(t, function.name) for u in _list_uses(t, call)]
    if not uses or None in uses:
        return None
    checked = check(t.program, t.kernel, t.consts)
    consts = {n: v for n, v in checked.consts.items() if isinstance(v, (int, float))}
    try:
        run = Evaluator(t.program, consts)
        if not all(_ignores(run, u, function.name, count, parts) for u in dict.fromkeys(uses) if u is not None):
            return None
    except (CuirError, TypeError, IndexError):
        return None
    takers = ", ".join(f"`{name}`" for name in sorted({u[0] for u in uses if u is not None}))
    names = " and ".join(str(p) for p in parts)
    return f"part {names} of what `{function.name}` returns is ignored by {takers}, which alone take it: other numbers there give the same results with these consts"


def _find_changed_parts(function: Func, mutant: Func) -> tuple[int, tuple[int, ...]] | None:
    """Return the length of the tuple that a function returns, and the parts in which the mutant's differs."""
    old, new = function.body[-1], mutant.body[-1]
    if function.body[:-1] != mutant.body[:-1] or not (isinstance(old, Return) and isinstance(new, Return)):
        return None
    if not (isinstance(old.value, Tuple) and isinstance(new.value, Tuple)) or len(old.value.items) != len(new.value.items):
        return None
    return len(old.value.items), tuple(i for i, (a, b) in enumerate(zip(old.value.items, new.value.items, strict=True)) if a != b)


def _list_calls(t: Trial, name: str) -> list[Site]:
    return [s for s in t.places.sites if isinstance(s.node, Call) and s.node.func == Name(name)]


def _list_uses(t: Trial, call: Site) -> Sequence[tuple[str, int] | None]:
    """Return the functions that take the result of a call, with the place of the argument.

    Any other use is None.
    """
    bound, kernel = call.parents[-1], call.inside(Kernel)
    if not isinstance(bound, Assign) or len(bound.targets) != 1 or bound.value is not call.node or kernel is None:
        return [None]
    uses: list[tuple[str, int] | None] = []
    for s in t.places.sites:
        if s.node != Name(bound.targets[0]) or kernel not in s.parents:
            continue
        taker, funcs = s.parents[-1], t.program.funcs()
        if isinstance(taker, Call) and isinstance(taker.func, Name) and taker.func.id in funcs and s.path[-1][0] == "args":
            uses.append((taker.func.id, s.path[-1][1] or 0))
        else:
            uses.append(None)
    return uses


def _ignores(run: Evaluator, use: tuple[str, int], source: str, count: int, parts: Sequence[int]) -> bool:
    """Return whether the results of a function do not depend on parts of an argument.

    source: the function that makes the tuple; these parts of its result may depend on themselves.
    """
    name, place = use
    rng, params = random.Random(0), len(run.funcs[name].params)
    for other_arguments in itertools.product(_NUMBERS, repeat=min(params - 1, 2)):
        arguments = [*other_arguments, *(1 for _ in range(params - 1 - len(other_arguments)))]
        for _ in range(_TUPLES):
            drawn = [rng.randrange(100) for _ in range(count)]
            results = []
            for number in _REPLACEMENTS:
                value = tuple(number if i in parts else x for i, x in enumerate(drawn))
                result = run.call(name, *arguments[:place], value, *arguments[place:])
                results.append(tuple(x for i, x in enumerate(result) if i not in parts) if name == source else result)
            if any(r != results[0] for r in results):
                return False
    return True


__all__ = ["argue_for_unused_part"]
