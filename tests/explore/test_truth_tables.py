"""One truth table for each rule of synchronisation: lines of a small program that may stand or not, all subsets of them, and the one formula that says when the
program is right. The exploration must agree with it; runs of the interpreter must find a fault under some schedule whenever the formula is false, and never else."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import pytest

from tests.explore.programs import TRIED, check_text, explore_program, fault

HEAD = '@kernel(arch="sm_90a")\ndef k(X: Global[f16, 192, 64], Y: Global[f16, 192, 64], C: Global[f32, 64, 64]):\n'

FENCE_OF_ONE_WORKER = """\
    sX = shared(f16, [64, 64])
    with role("w", warpgroups=1):
        fence_async()  #a
        store(sX, load(X[0 : 64, :]))
        fence_async()  #b
        store_async(sX, Y[0 : 64, :])
        fence_async()  #c
"""
FENCE_OF_TWO_WORKERS = """\
    sX = shared(f16, [64, 64])
    ready = mbarrier(1)
    with role("writer", warpgroups=1):
        fence_async()  #a
        store(sX, load(X[0 : 64, :]))
        fence_async()  #b
        ready.arrive()
        fence_async()  #c
    with role("sender", warpgroups=1):
        fence_async()  #d
        ready.wait(0)
        fence_async()  #e
        store_async(sX, Y[0 : 64, :])
"""
WAIT_FOR_A_COPY = """\
    sX = shared(f16, [64, 64])
    full, empty = mbarrier(1), mbarrier(1)
    with role("load", warps=1):
        full.expect(nbytes(sX))
        copy_async(X[0 : 64, :], sX, full)
        empty.wait(0)  #a
        full.expect(nbytes(sX))
        copy_async(X[64 : 128, :], sX, full)
    with role("use", warpgroups=1):
        full.wait(0)  #b
        x = load(sX)
        full.wait(0)  #c
        empty.arrive()
        full.wait(1)  #d
        store(Y[0 : 64, :], x + load(sX))
"""
WAIT_FOR_A_PRODUCT = """\
    sA, sB = shared(f16, [64, 64]), shared(f16, [64, 64])
    a_full, b_full, a_empty, b_empty = mbarrier(1), mbarrier(1), mbarrier(1), mbarrier(1)
    with role("load", warps=1):
        a_full.expect(nbytes(sA))
        copy_async(X[0 : 64, :], sA, a_full)
        b_full.expect(nbytes(sB))
        copy_async(X[0 : 64, :], sB, b_full)
        a_empty.wait(0)
        a_full.expect(nbytes(sA))
        copy_async(X[64 : 128, :], sA, a_full)
        b_empty.wait(0)
        b_full.expect(nbytes(sB))
        copy_async(X[64 : 128, :], sB, b_full)
        a_full.wait(1)
        b_full.wait(1)
    with role("use", warpgroups=1):
        a_full.wait(0)
        b_full.wait(0)
        s = mma_async(sA, sA)
        r = mma_async(sB, sB)
        mma_wait(s)  #a
        mma_wait(r)  #b
        a_empty.arrive()
        mma_wait(r)  #c
        b_empty.arrive()
        mma_wait(r)
        store(C[0 : 64, :], r)
"""
COMMIT_AND_WAIT = """\
    sX = shared(f16, [2, 64, 64])
    with role("w", warpgroups=1):
        copy_async(X[0 : 64, :], sX[0])
        copy_commit()  #a
        copy_async(X[64 : 128, :], sX[1])
        copy_commit()  #b
        copy_wait(1)  #c
        copy_wait(0)  #e
        x = load(sX[0])
        copy_wait(0)  #d
        store(Y[0 : 64, :], x + load(sX[1]))
"""
ARRIVALS = """\
    sX = shared(f16, [3, 64, 64])
    ready = mbarrier(COUNT)
    with role("fill", warpgroups=3) as w:
        store(sX[w], load(X[w * 64 : w * 64 + 64, :]))
        if w == 0:
            w = w
            ready.arrive()  #a
        if w == 1:
            w = w
            ready.arrive()  #b
        if w == 2:
            w = w
            ready.arrive()  #c
    with role("use", warpgroups=1):
        ready.wait(0)
        store(Y[0 : 64, :], load(sX[0]))
"""
BYTES = """\
    sX = shared(f16, [2, 64, 64])
    full = mbarrier(1)
    with role("load", warps=1):
        n = 0
        n += nbytes(sX[0])  #a
        n += nbytes(sX[0])  #b
        n += 2 * nbytes(sX[0])  #c
        full.expect(n)
        copy_async(X[0 : 64, :], sX[0], full)  #d
        copy_async(X[64 : 128, :], sX[1], full)  #e
    with role("use", warpgroups=1):
        full.wait(0)
"""
WAIT_FOR_A_STORE = """\
    sX = shared(f16, [64, 64])
    with role("w", warpgroups=1):
        store_wait()  #a
        store(sX, load(X[0 : 64, :]))
        fence_async()
        store_async(sX, Y[0 : 64, :])
        store_wait()  #b
        store(sX, load(X[64 : 128, :]))
        store_wait()  #c
"""
Formula = Callable[[set[str]], bool]
TABLES: dict[str, tuple[str, Formula]] = {
    "fence of one worker": (FENCE_OF_ONE_WORKER, lambda s: "b" in s),
    "fence of two workers": (FENCE_OF_TWO_WORKERS, lambda s: "b" in s),
    "wait for a copy": (WAIT_FOR_A_COPY, lambda s: {"a", "b", "d"} <= s),
    "wait for a product": (WAIT_FOR_A_PRODUCT, lambda s: bool(s & {"a", "b"}) and bool(s & {"b", "c"})),
    "commit and wait": (COMMIT_AND_WAIT, lambda s: "b" in s and ("e" in s or {"a", "c", "d"} <= s)),
    "two arrivals": (ARRIVALS.replace("COUNT", "2"), lambda s: "a" in s and len(s) == 2),
    "three arrivals": (ARRIVALS.replace("COUNT", "3"), lambda s: len(s) == 3),
    "bytes": (BYTES, lambda s: ("a" in s) + ("b" in s) + 2 * ("c" in s) == ("d" in s) + ("e" in s)),
    "wait for a store": (WAIT_FOR_A_STORE, lambda s: "b" in s),
}


def subsets(text: str) -> list[tuple[set[str], str]]:
    """Each subset of the marked lines, and the text with these alone."""
    marks = re.findall(r"  #(\w)$", text, re.MULTILINE)
    results = []
    for chosen in itertools.chain.from_iterable(itertools.combinations(marks, n) for n in range(len(marks) + 1)):
        lines = [line for line in text.split("\n") if not re.search(r"  #\w$", line) or line[-1] in chosen]
        results.append((set(chosen), HEAD + "\n".join(re.sub(r"  #\w$", "", line) for line in lines)))
    return results


@pytest.mark.parametrize("rule", TABLES)
def test_rule(rule: str) -> None:
    text, formula = TABLES[rule]
    table = subsets(text)
    assert len(table) == 2 ** text.count("  #") and {formula(s) for s, _ in table} == {True, False}
    wrong = []
    for chosen, program in table:
        right = formula(chosen)
        checked = check_text(program)
        result = explore_program(checked)
        code = next((c for schedule in TRIED if (c := fault(checked, schedule))), "")
        if result.ok != right or (not code) != right:
            wrong.append((sorted(chosen), right, result.summary(), code))
    assert not wrong
