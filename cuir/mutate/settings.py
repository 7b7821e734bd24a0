"""An argument that a mutant is no fault: it is the original at another value of a const parameter. Owns which values are tried."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..check import check
from ..walk import names_read

if TYPE_CHECKING:
    from .harmless import Trial


def other_setting(t: Trial) -> str | None:
    """What changed no longer reads a const parameter, and the original with another value of it, the caller's to choose, gives the mutant's bits.

    The bits must differ from the original's own: a ring of another length gives the same ones, whatever is wrong with its waits.
    """
    consts = check(t.program, t.kernel, t.consts).consts
    for site, put in t.expressions():
        for name in sorted((names_read(site.node) - names_read(put)) & set(consts)):
            value = consts[name]
            if isinstance(value, bool) or not isinstance(value, int):
                continue
            found = t.bits(t.mutant)
            if found is None or t.gives(found):
                return None
            for other in (-1, 0, 2 * value + 1, 1000 * value):
                elsewhere = replace(t, consts={**t.consts, name: other})
                elsewhere.problems = t.problems
                if other != value and elsewhere.gives(found):
                    return (
                        f"the original with {name}={other}, a setting that is the caller's to choose, gives the same bits in {t.runs} runs"
                    )
            return None
    return None
