"""Hypothesis strategies for random kernels that check, run without a fault, and mean the same under every schedule; and for mutants of them.

A kernel is a loader role, which feeds a ring of stages through mbarriers, and a compute role of one or two warpgroups, which reads the
stages, multiplies them on the tensor core, and stores what it made of them. What is random: the number of stages and blocks, which
buffers there are, and all arithmetic, branches and loops in between.

Tensors for the kernels of `typed.py` and of `corpus/faulty`, from their checked signatures.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st

from cuir.arguments.binding import TORCH
from cuir.checking.checked import Checked
from cuir.syntax.nodes import Binary, Call, For, Func, If, Kernel, Literal, Name, Node, Program, Stmt, With
from cuir.syntax.walk import rewrite, walk

ROWS, COLS = 64, 64
WARPS = 4  # of a kernel for older GPUs
SHAPES = [(ROWS, COLS), (ROWS, 1), (1, COLS), (ROWS, 8), (1, 1)]
Tile = tuple[str, int, int]  # dtype, rows, columns


@dataclass(frozen=True)
class Case:
    """A program's text and the length of its run-time dim `M`."""

    text: str
    M: int


class Writer:
    """Writes statements that are well typed and cannot fail; keeps what names are in scope."""

    def __init__(self, draw: st.DrawFn):
        self.draw = draw
        self.lines: list[str] = []
        self.depth = 0
        self.count = 0
        self.tiles: dict[str, Tile] = {}
        self.scalars: dict[str, str] = {"n": "i32", "M": "i32", "scale": "f32"}
        self.frozen: set[str] = set()  # names that a product in flight uses

    def pick(self, options: Any) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def chance(self, percent: int) -> bool:
        return self.draw(st.integers(0, 99)) < percent

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def fresh(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    @contextlib.contextmanager
    def block(self, header: str) -> Iterator[None]:
        """An indented block; names first bound in it are out of scope behind it."""
        self.line(header)
        before = dict(self.tiles), dict(self.scalars)
        self.depth += 1
        yield
        self.depth -= 1
        self.tiles, self.scalars = before

    # ---- scalars
    def scalar(self, dtype: str, depth: int = 2) -> str:
        names = [n for n, d in self.scalars.items() if d == dtype]
        if dtype == "bool":
            kind = self.pick(["compare", "not", "and"] if depth else ["compare"])
            if kind == "not":
                return f"not ({self.scalar('bool', depth - 1)})"
            if kind == "and":
                return f"({self.scalar('bool', depth - 1)}) {self.pick(['and', 'or'])} ({self.scalar('bool', depth - 1)})"
            of = self.pick(["i32", "f32"])
            return f"{self.scalar(of, depth and depth - 1)} {self.pick(['<', '<=', '==', '!=', '>', '>='])} {self.scalar(of, depth and depth - 1)}"
        if not depth or self.chance(30):
            literal = str(self.pick([0, 1, 2, 3, 7, 63, -5])) if dtype == "i32" else self.pick(["0.5", "-2.0", "1.25"])
            return self.pick(names) if names and self.chance(70) else f"({literal})"
        a, b = self.scalar(dtype, depth - 1), self.scalar(dtype, depth - 1)
        kind = self.pick(["sum", "min", "choice"] + (["divide", "element"] if dtype == "i32" else ["divide"]))
        if kind == "sum":
            return f"({a} {self.pick('+-*')} {b})"
        if kind == "min":
            return f"{self.pick(['min', 'max'])}({a}, {b})"
        if kind == "choice":
            return f"({a} if {self.scalar('bool', depth - 1)} else {b})"
        if kind == "element":
            return f"I[max(0, min({a}, M - 1))]"
        return f"({a} {self.pick(['//', '%'])} {self.pick([1, 2, 3, 64])})" if dtype == "i32" else f"({a} / {self.pick(['2.0', '0.5'])})"

    # ---- tiles
    def tile(self, dtype: str, rows: int, cols: int, depth: int = 2) -> str:
        expected_values = [n for n, t in self.tiles.items() if t == (dtype, rows, cols)]
        if not depth or self.chance(20):
            if expected_values and self.chance(80):
                return str(self.pick(expected_values))
            if dtype == "i32" and cols == 1:
                return f"rows({rows})"
            if dtype == "i32" and rows == 1:
                return f"cols({cols})"
            return (
                f"(full(f32, [{rows}, {cols}], {self.scalar('f32', 0)}) > 0.0)" if dtype == "bool" else f"zeros({dtype}, [{rows}, {cols}])"
            )
        if dtype == "bool":
            kind = self.pick(["compare", "logic", "invert"])
            if kind == "invert":
                return f"~{self.tile('bool', rows, cols, depth - 1)}"
            if kind == "logic":
                return f"({self.tile('bool', rows, cols, depth - 1)} {self.pick('&|')} {self.tile('bool', rows, cols, depth - 1)})"
            of = self.pick(["f16", "f32", "i32"])
            return f"({self.operands(of, rows, cols, depth, self.pick(['<', '<=', '==', '!=', '>', '>=']))})"
        kinds = ["arithmetic", "minimum", "where", "cast", "gather"]
        kinds += ["function"] if dtype == "f32" else []
        kinds += ["reduce", "reduce"] if dtype == "f32" and cols == 1 else []
        kinds += ["reduce columns"] if dtype == "f32" and rows == 1 else []
        kinds += ["divide"] if dtype == "i32" else []
        kind = self.pick(kinds)
        if kind == "arithmetic":
            return f"({self.operands(dtype, rows, cols, depth, self.pick('+-*'))})"
        if kind == "divide":
            return f"({self.tile(dtype, rows, cols, depth - 1)} {self.pick(['//', '%'])} {self.pick([1, 3, 64])})"
        if kind == "minimum":
            return f"{self.pick(['min', 'max'])}({self.operands(dtype, rows, cols, depth, ',').replace(' ,', ',')})"
        if kind == "where":
            return f"where({self.tile('bool', rows, cols, depth - 1)}, {self.operands(dtype, rows, cols, depth, ',').replace(' ,', ',')})"
        if kind == "cast":
            return f"cast({self.tile(self.pick(['f16', 'f32', 'i32']), rows, cols, depth - 1)}, {dtype})"
        if kind == "function":
            return f"{self.pick(['exp2', 'tanh', 'abs'])}({self.tile('f32', rows, cols, depth - 1)})"
        if kind == "reduce columns":
            return f"{self.pick(['col_max', 'col_sum'])}({self.tile('f32', ROWS, cols, depth - 1)})"
        if kind == "reduce":
            return f"{self.pick(['row_max', 'row_sum'])}({self.tile('f32', rows, COLS, depth - 1)})"
        row, col = self.tile("i32", rows, 1, depth - 1), self.tile("i32", 1, cols, depth - 1)
        return f"{'X' if dtype == 'f16' else 'F'}[{row}, {col}]" if dtype != "i32" else f"I[({row} + {col})]"

    def operands(self, dtype: str, rows: int, cols: int, depth: int, op: str) -> str:
        """Two operands that broadcast to the shape; one may be a scalar."""
        a = self.tile(dtype, rows, cols, depth - 1)
        if dtype != "f16" and self.chance(25):
            b = self.scalar(dtype, 1)
        else:
            b = self.tile(dtype, self.pick([rows, 1]), self.pick([cols, 1]), depth - 1)
        return f"{a} {op} {b}" if op == "," or self.chance(50) else f"{b} {op} {a}"

    # ---- statements
    def work(self, most: int = 3, nested: int = 2) -> None:
        """Some statements of arithmetic, branches and loops."""
        for _ in range(self.draw(st.integers(1, most))):
            kind = self.pick(["tile", "tile", "scalar", "again", "if", "for"] if nested else ["tile", "scalar", "again"])
            if kind == "again" and not self.rebindable():
                kind = "tile"
            if kind == "tile":
                dtype, (rows, cols) = self.pick(["f16", "f32", "f32", "i32"]), self.pick(SHAPES)
                text, name = self.tile(dtype, rows, cols), self.fresh("x")
                self.line(f"{name} = {text}")
                self.tiles[name] = (dtype, rows, cols)
            elif kind == "scalar":
                dtype = self.pick(["i32", "f32"])
                text, name = self.scalar(dtype), self.fresh("a")
                self.line(f"{name} = {text}")
                self.scalars[name] = dtype
            elif kind == "again":
                name = self.pick(self.rebindable())
                self.line(f"{name} = {self.tile(*self.tiles[name])}")
            elif kind == "if":
                with self.block(f"if {self.scalar('bool')}:"):
                    self.work(2, nested - 1)
                if self.chance(50):
                    with self.block("else:"):
                        self.work(2, nested - 1)
            else:
                name, bound = self.fresh("i"), self.pick(["2", "3", "min(n, 3)", "0", "1, 3"])
                with self.block(f"for {name} in range({bound}):"):
                    self.scalars[name] = "i32"
                    self.work(2, nested - 1)

    def rebindable(self) -> list[str]:
        return [x for x in self.tiles if x.startswith("x") and x not in self.frozen]


@st.composite
def kernels(draw: st.DrawFn) -> Case:
    """A kernel that checks, and runs without a fault on tensors of `arguments`."""
    w = Writer(draw)
    groups, stages, blocks = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(0, 4))
    transposed, chained, bulk = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    w.line('@kernel(arch="sm_90a")')
    w.line("def k(X: Global[f16, M, 64], F: Global[f32, M, 64], I: Global[i32, M], Y: Global[f32, 2, M, 64], Z: Global[f16, 2, M, 64],")
    w.line(f"      n: i32, scale: f32, *, STAGES: const = {stages}, WG: const = {groups}):")
    w.depth = 1
    w.line("sX, sT = shared(f16, [STAGES, 64, 64]), shared(f16, [WG, 64, 64])")
    w.line("full, empty = mbarrier(1, stages=STAGES), mbarrier(WG, stages=STAGES)")
    w.line(f"work = tiles({draw(st.integers(1, 3))}{', dynamic=True' if draw(st.booleans()) else ''})")
    ring = "s, phase = it % STAGES, it // STAGES % 2"
    with w.block('with role("load", warps=1, registers=24):'):
        w.line("it = 0")
        with w.block("for t in work:"), w.block(f"for j in range({blocks}):"):
            w.line(ring)
            w.line("empty[s].wait(phase ^ 1)")
            w.line("full[s].expect(nbytes(sX[s]))")
            w.line("copy_async(X[j * 64 : j * 64 + 64, :], sX[s], full[s])")
            w.line("it += 1")
    with w.block('with role("compute", warpgroups=WG, registers=232) as wg:'):
        w.scalars["wg"] = "i32"
        w.line("it = 0")
        with w.block("for t in work:"):
            w.scalars["t"] = "i32"
            w.line("acc = zeros(f32, [64, 64])")
            with w.block(f"for j in range({blocks}):"):
                w.scalars["j"] = "i32"
                w.line(ring)
                w.line("full[s].wait(phase)")
                if w.chance(60):
                    w.line("x0 = load(sX[s])")
                    w.tiles["x0"] = ("f16", ROWS, COLS)
                    w.work()
                _product(w, transposed, chained)
                w.line("empty[s].arrive()")
                w.tiles["acc"] = ("f32", ROWS, COLS)
                w.work(2)
                w.line("it += 1")
            w.tiles["acc"] = ("f32", ROWS, COLS)
            w.work()
            with w.block("if t == 0:"):
                if bulk:
                    w.line("store_wait()")
                    w.line(f"store(sT[wg], {w.tile('f16', ROWS, COLS)})")
                    w.line("fence_async()")
                    w.line("store_async(sT[wg], Z[wg, 0 : 64, :])")
                w.line(f"store(Y[wg, rows(64) + 64, cols(64)], {w.tile('f32', ROWS, COLS)})")
                w.line(f"store(Y[wg, rows(64), cols(64)], acc, mask={w.tile('bool', ROWS, COLS)})")
    return Case("\n".join(w.lines) + "\n", draw(st.sampled_from([1, 40, 64, 130])))


@st.composite
def older_kernels(draw: st.DrawFn, arch: str) -> Case:
    """A kernel for sm_75 or sm_80, whose warps meet at barriers; it runs without a fault on tensors of `arguments`."""
    w = Writer(draw)
    blocks, transposed = draw(st.integers(0, 3)), draw(st.booleans())
    w.line(f'@kernel(arch="{arch}")')
    w.line("def k(X: Global[f16, M, 64], F: Global[f32, M, 64], I: Global[i32, M], Y: Global[f32, 2, M, 64], n: i32, scale: f32):")
    w.depth = 1
    w.line("sX = shared(f16, [4, 64, 64])")
    w.line(f"work = tiles({draw(st.integers(1, 3))}{', dynamic=True' if draw(st.booleans()) else ''})")
    with w.block(f'with role("all", warps={WARPS}) as w:'):
        w.scalars["w"] = "i32"
        with w.block("for t in work:"):
            w.scalars["t"] = "i32"
            w.line("acc = zeros(f32, [64, 64])")
            with w.block(f"for j in range({blocks}):"):
                w.scalars["j"] = "i32"
                w.line("sync()")
                w.line("store(sX[w], load(X[j * 64 : j * 64 + 64, :]))")
                w.line("sync()")
                w.line("x0 = load(sX[3 - w])")
                w.tiles["x0"] = ("f16", ROWS, COLS)
                w.work()
                w.line(f"acc = mma(sX[w], sX[3 - w]{'.T' if transposed else ''}, acc)")
                w.tiles["acc"] = ("f32", ROWS, COLS)
                w.work(2)
            w.tiles["acc"] = ("f32", ROWS, COLS)
            w.work()
            with w.block("if t == 0 and w < 2:"):
                w.line(f"store(Y[w, rows(64), cols(64)], acc + {w.tile('f32', ROWS, COLS)})")
                w.line(f"store(Y[w, rows(64) + 64, cols(64)], {w.tile('f32', ROWS, COLS)}, mask={w.tile('bool', ROWS, COLS)})")
    return Case("\n".join(w.lines) + "\n", draw(st.sampled_from([40, 64, 130])))


def _product(w: Writer, transposed: bool, chained: bool) -> None:
    """One or two products of a stage, with work while they are in flight."""
    a, b = ("sX[s].T" if transposed else "sX[s]"), "sX[s]"
    halves = [n for n, t in w.tiles.items() if t == ("f16", ROWS, COLS)]
    if halves and w.chance(50):
        a = w.pick(halves)
        w.frozen.add(a)
    w.tiles.pop("acc", None)
    w.line(f"acc = mma_async({a}, {b}, acc)" if w.chance(70) else f"acc = mma_async({a}, {b})")
    if chained:
        w.line(f"acc = mma_async(sX[s], {b}, acc)")
    if w.chance(50):
        w.work(2)
    w.line("mma_wait(acc)")
    w.frozen.clear()


# ---- mutants
@st.composite
def mutants(draw: st.DrawFn, program: Program) -> Program:
    """The program with up to three faults: statements dropped, doubled or swapped; integers, names, operators or arguments changed."""
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["drop", "double", "swap", "integer", "name", "operator", "argument"]))
        program = _change_block(program, draw, kind) if kind in ("drop", "double", "swap") else _change_expression(program, draw, kind)
    return program


def _change_expression(program: Program, draw: st.DrawFn, kind: str) -> Program:
    expected = {"integer": Literal, "name": Name, "operator": Binary, "argument": Call}[kind]
    actual = [n for n in walk(program) if isinstance(n, expected) and (kind != "integer" or (isinstance(n, Literal) and n.kind == "int"))]
    if not actual:
        return program
    chosen = actual[draw(st.integers(0, 1000)) % len(actual)]
    new: Node = chosen
    if isinstance(chosen, Literal):
        new = replace(chosen, value=draw(st.sampled_from([0, 1, 2, 3, 5, 8, 16, 63, 64, 65, 128])))
    elif isinstance(chosen, Name):
        new = replace(chosen, id=draw(st.sampled_from(sorted({n.id for n in actual if isinstance(n, Name)}))))
    elif isinstance(chosen, Binary):
        new = replace(chosen, op=draw(st.sampled_from(["+", "-", "*", "/", "//", "%", "&", "|", "^", "<", "==", ">=", "and", "or"])))
    elif isinstance(chosen, Call):
        args = chosen.args[1:] if draw(st.booleans()) else chosen.args[::-1] if draw(st.booleans()) else chosen.args + chosen.args[-1:]
        new = replace(chosen, args=args)
    return rewrite(program, lambda node: new if node is chosen else node)  # type: ignore[no-any-return]


def _change_block(program: Program, draw: st.DrawFn, kind: str) -> Program:
    blocks = [n for n in walk(program) if isinstance(n, For | If | With | Kernel | Func)]
    blocks = [n for n in blocks if len(n.body) > 1]
    if not blocks:
        return program
    chosen = blocks[draw(st.integers(0, 1000)) % len(blocks)]
    body: list[Stmt] = list(chosen.body)
    i = draw(st.integers(0, 1000)) % (len(body) - 1)  # the last one of a @func is its return
    if kind == "drop":
        del body[i]
    elif kind == "double":
        body.insert(i, body[i])
    elif i + 1 < len(body) - isinstance(chosen, Func):
        body[i], body[i + 1] = body[i + 1], body[i]
    new = replace(chosen, body=tuple(body))
    return rewrite(program, lambda node: new if node is chosen else node)  # type: ignore[no-any-return]


def arguments(checked: Checked, dims: Mapping[str, int], seed: int = 0) -> dict[str, Any]:
    """By name: normal floats, small integers, NaN where the kernel writes; `n` is 2 and `scale` 0.75."""
    g = torch.Generator().manual_seed(seed)
    result: dict[str, Any] = {s.name: 2 if s.dtype.name == "i32" else 0.75 for s in checked.scalars}
    for t in checked.tensors:
        shape = [dims[d] if isinstance(d, str) else d for d in t.dims]
        if t.dtype.name == "i32":
            result[t.name] = torch.randint(-3, 4, shape, generator=g, dtype=torch.int32)
        elif t.written:
            result[t.name] = torch.full(shape, float("nan"), dtype=TORCH[t.dtype])
        else:
            result[t.name] = torch.randn(shape, generator=g).to(TORCH[t.dtype])
    return result
