"""The argument for another order of the units of work: they are the same ones, each once."""

from __future__ import annotations

import random

import numpy as np

from ..attn.verification.splice_evaluator import Evaluator
from ..checking.checker import check
from ..ops.expressions import traits
from ..syntax.nodes import Assign, Call, Expr, For, Func, Name
from ..text.diagnostics import CuirError
from ..verification.tile_steps import align_heads
from .mutant_comparison import Trial

_PROBLEMS = 60
_LONGEST = 17  # binary exponent of the largest length
_UNITS = 20_000  # the largest number of units that is enumerated


def same_units(t: Trial) -> str | None:
    """Argue for a change of the function that says which unit of work has which number.

    The function is called with numbers of units alone, and over all of them it gives the same results, in another order.
    That is enumerated; schedules of the mutant have shown no fault by then.
    """
    function = next((p for p in (*t.at.parents, t.at.node) if isinstance(p, Func)), None)
    if function is None or len(function.params) != 1 or (count := _find_count(t, function.name)) is None:
        return None
    checked, rng, problems, units = check(t.program, t.kernel, t.consts), random.Random(0), 0, 0
    consts = {n: v for n, v in checked.consts.items() if isinstance(v, (int, float))}
    try:
        for _ in range(50 * _PROBLEMS):
            sizes = align_heads({d: int(2 ** rng.uniform(0, _LONGEST if d not in ("B", "H", "HK") else 5)) for d in checked.dims})
            evaluators = [Evaluator(p, {**consts, **sizes}) for p in (t.program, t.mutant)]
            number = int(evaluators[0].evaluate_expr(count, {}))
            if not 0 < number <= _UNITS:
                continue
            original, mutated = (_enumerate_units(e, function.name, number) for e in evaluators)
            if not np.array_equal(original, mutated):
                return None
            problems, units = problems + 1, units + number
            if problems == _PROBLEMS:
                return f"`{function.name}` gives the same {units:,} units of work in {problems} problems, in another order, which is free"
    except CuirError:
        pass
    return None


def _find_count(t: Trial, name: str) -> Expr | None:
    """Return the number of units of work, if a function is called with numbers of units alone."""
    counts: set[Expr] = set()
    calls = [s for s in t.places.sites if isinstance(s.node, Call) and s.node.func == Name(name)]
    for call in calls:
        loops = {p.target: p.iter for p in call.parents if isinstance(p, For)}
        assert isinstance(call.node, Call)
        argument = call.node.args[0] if len(call.node.args) == 1 and not call.node.keywords else None
        source = loops.get(argument.id) if isinstance(argument, Name) else None
        bound = [
            s.node.value
            for s in t.places.sites
            if isinstance(s.node, Assign) and isinstance(source, Name) and s.node.targets == (source.id,) and isinstance(s.node.value, Call)
        ]
        if len(bound) != 1 or traits(bound[0]).makes != "units" or len(bound[0].args) != 1:
            return None
        counts.add(bound[0].args[0])
    return counts.pop() if len(counts) == 1 else None


def _enumerate_units(evaluator: Evaluator, name: str, number: int) -> np.ndarray:
    """Return the results of a function for all numbers of units, a row each, sorted."""
    result = evaluator.call(name, np.arange(number))
    parts = result if isinstance(result, tuple) else (result,)
    table = np.stack([np.broadcast_to(np.asarray(x), (number,)) for x in parts])
    return table[:, np.lexsort(table)]


__all__ = ["same_units"]
