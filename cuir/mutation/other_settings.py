"""Other values of const parameters, for arguments that a mutant is equivalent.

The mutant is the original at one of them, or shows at one what a number is for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from ..checking.checker import check
from ..syntax.walk import names_read
from ..text.diagnostics import CuirError
from .mutant_comparison import Trial


def other_setting(t: Trial) -> str | None:
    """Argue that the original with another value of a const parameter gives the mutant's bits.

    What changed no longer reads the parameter, which the caller may choose. The bits must differ from the original's: a
    ring of another length gives the same bits, whatever is wrong with its waits.
    """
    consts = check(t.program, t.kernel, t.consts).consts
    for site, replacement in t.expressions():
        for name in sorted((names_read(site.node) - names_read(replacement)) & set(consts)):
            value = consts[name]
            if isinstance(value, bool) or not isinstance(value, int):
                continue
            bits = t.bits(t.mutant)
            if bits is None or t.gives(bits):
                return None
            for setting in (-1, 0, 2 * value + 1, 1000 * value):
                trial = replace(t, consts={**t.consts, name: setting})
                trial.problems = t.problems
                if setting != value and trial.gives(bits):
                    return f"the original with {name}={setting}, a setting that is the caller's to choose, gives the same bits in {t.runs} runs"
            return None
    return None


def make_smaller_tiles(t: Trial) -> Iterator[Trial]:
    """Yield trials with half the keys of a block or half the queries of a tile, where that makes a kernel."""
    consts = check(t.program, t.kernel, t.consts).consts
    for name in ("BN", "BM"):
        value = consts.get(name)
        if isinstance(value, int) and value % 2 == 0:
            smaller = replace(t, consts={**t.consts, name: value // 2})
            with suppress(CuirError):  # no kernel
                if smaller.expected is not None:
                    yield smaller
