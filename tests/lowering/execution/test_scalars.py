"""Scalar expressions of any shape give on a CPU what they mean, wherever the text of a role puts them: as a loop's bounds, a condition, an index, an operand.

The emitted text of every elementwise operation gives what the language says, also where the compiler fuses and instructions are not exact.

Halves lie in pairs in 32-bit registers: nothing reads such a register as if it were a number.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cuir.checking.checker import check
from cuir.lowering import lower
from cuir.runtime.nvcc import compile_cuda
from cuir.syntax.parser import parse
from tests.gpu import test_floats
from tests.gpu.test_expressions import EXPRESSIONS, kernel
from tests.lowering.host import GXX, on_cpu

PLACES = 24  # of each kind in a kernel
HEAD = """
@kernel(arch="sm_90a")
def f(I: Global[i32, 2], Y: Global[i32, {rows}]):
    with role("one", warpgroups=1):
        n, m = I[0], I[1]
"""


class Written:
    """Random expressions of n and m, in the syntax that CuIR and Python share."""

    def __init__(self, seed: int):
        self.rng = random.Random(seed)

    def number(self, depth: int = 3) -> str:
        if depth == 0 or self.rng.random() < 0.15:
            return self.rng.choice(["n", "m", str(self.rng.randint(0, 9))])
        a, b = self.number(depth - 1), self.number(depth - 1)
        kind = self.rng.choice(["+", "-", "*", "//", "%", "&", "|", "^", "min", "max", "if"])
        if kind in ("min", "max"):
            return f"{kind}({a}, {b})"
        if kind == "if":
            return f"({a} if {self.truth(depth - 1)} else {b})"
        return f"({a}) {kind} {self.rng.randint(1, 7)}" if kind in ("//", "%") else f"({a}) {kind} ({b})"

    def truth(self, depth: int = 2) -> str:
        if depth == 0 or self.rng.random() < 0.4:
            return f"{self.number(1)} {self.rng.choice(['<', '<=', '>', '>=', '==', '!='])} {self.number(1)}"
        a, b = self.truth(depth - 1), self.truth(depth - 1)
        return self.rng.choice([f"({a}) and ({b})", f"({a}) or ({b})", f"not ({a})"])

    def make_bound(self) -> str:
        """At most 8, each operator and a choice at the top."""
        a, b = f"({self.number()}) % 5", f"({self.number()}) % 4"
        return self.rng.choice(
            [f"{a} if {self.truth()} else {b}", f"{a} + {b}", f"{a} | {b}", f"{a} ^ {b}", f"{a} & {b}", f"max({a}, {b})"]
        )


def body(seed: int) -> list[str]:
    """Statements, each of which changes total, whose value is stored behind it."""
    w, lines = Written(seed), ["total = 0"]
    for place in range(PLACES):
        kind = place % 4
        if kind == 0:
            lines += [f"for i in range({w.make_bound()}):", f"    total += i + {w.number(1)} % 7"]
        elif kind == 1:
            first = w.rng.randint(0, 2)
            lines += [f"for i in range({first}, {w.make_bound()}, {w.rng.randint(1, 2)}):", "    total += i + 1"]
        elif kind == 2:
            lines += [f"if {w.truth(3)}:", f"    total += ({w.number()}) % 11", "else:", f"    total += {w.number(1)} % 3"]
        else:
            lines += [f"total += ({w.make_bound()}) * ({w.number()}) % 13"]
        lines.append(f"store(Y[{place}], total)")
    return lines


@pytest.mark.sweep(4)
@pytest.mark.skipif(GXX is None, reason="no g++ on the PATH")
@pytest.mark.parametrize("seed", range(4))
def test_they_mean_what_they_say(seed: int, tmp_path: Path) -> None:
    lines = body(seed)
    run = on_cpu(lower(check(parse(HEAD.format(rows=PLACES) + "".join(f"        {line}\n" for line in lines)))), tmp_path)
    for n, m in ((3, 5), (5, 3), (0, 1), (7, 7)):
        y, expected = np.full(PLACES, -1, np.int32), dict[int, int]()
        run(np.array([n, m], np.int32), y)
        names = {"n": n, "m": m, "wanted": expected}
        exec("\n".join(_python(line) for line in lines), names)
        assert y.tolist() == [expected[i] for i in range(PLACES)], (n, m)


def _python(line: str) -> str:
    """A statement as Python: a store is an entry of a dict."""
    return line.replace("store(Y[", "wanted[").replace("], total)", "] = total") if line.startswith("store(") else line


@pytest.mark.sweep
@pytest.mark.skipif(GXX is None, reason="no g++ on the PATH")
@pytest.mark.parametrize(("contract", "noise"), [("off", False), ("fast", True)])
def test_every_operation(tmp_path: Path, contract: str, noise: bool, seeded_quarter: Callable[[list[int]], list[int]]) -> None:
    checked = test_floats.kernel()
    call = on_cpu(lower(checked), tmp_path, contract, noise)
    for seed in seeded_quarter([0, 1, 2, 3]):
        inputs, result = test_floats.inputs(seed), test_floats.outputs()
        arrays: list[np.ndarray | float | int] = []
        for t in checked.tensors:
            x = {**inputs, **result}[t.name]
            arrays += [x, x.shape[1]]
        arrays += [test_floats.NUMBERS[s.name] for s in checked.scalars]
        call(*arrays, *(result["F"].shape[0], result["I"].shape[0], result["SF"].shape[0], result["SI"].shape[0]))
        assert test_floats.wrong(inputs, result) == []


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_pairs_are_unpacked(expression: str, dtype: str) -> None:
    text = lower(kernel(expression, dtype)).source
    pairs = set(re.findall(r"uint32_t (\w+)\[\d+\];", text))
    assert pairs
    for name in pairs:
        # by element (i_) only through unpack; by pair (p_, k_) it is moved, packed into, or an operand
        assert not re.search(rf"\b{name}\[[^\]]*\bi_\b[^\]]*\]", text), name
    assert f"cuir::unpack_{dtype}(" in text


# ---- loops
BOUNDED = """
@kernel(arch="sm_90a")
def f(Y: Global[i32, 64], n: i32, m: i32):
    with role("one", warpgroups=1):
        total = 0
        for i in range({bound}):
            total += i + 1
        store(Y[rows(64)], zeros(i32, [64, 1]) + total)
"""


@pytest.mark.skipif(GXX is None, reason="no g++ on the PATH")
@pytest.mark.parametrize(
    ("bound", "turns"),
    [("n if n < m else 0", lambda n, m: n if n < m else 0), ("min(n, m) + 1", lambda n, m: min(n, m) + 1), ("n ^ m", lambda n, m: n ^ m)],
)
def test_a_loop_ends_where_its_bound_says(bound: str, turns: Callable[[int, int], int], tmp_path: Path) -> None:
    run = on_cpu(lower(check(parse(BOUNDED.format(bound=bound)))), tmp_path)
    for n, m in ((3, 5), (5, 3), (4, 4), (1, 2)):
        y = np.full(64, -1, np.int32)
        run(y, n, m)
        count = turns(n, m)
        assert (y == count * (count + 1) // 2).all(), (n, m)


# ---- the frame
FRAME = """
@kernel(arch="sm_90a")
def k(X: Global[f32, N, 64], Z: Global[f32, N, 64], I: Global[i32, M], n: i32):
    q = (I[0] if M > 0 and I[M - 1] > 3 else n // N) * 64
    with role("all", warpgroups=1):
        store(Z[q : q + 64, :], load(X[0:64, :]))
"""


@pytest.mark.nvcc
def test_branches_of_the_frame_compile() -> None:
    compile_cuda(lower(check(parse(FRAME))))
