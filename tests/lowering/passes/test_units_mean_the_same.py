"""Random scalars of loops over units give the same values before and after units come by a queue and divisions are by inverses."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from xdsl.ir import Block, SSAValue

from cuir.checking.checker import check
from cuir.lowering.ir import machine_ops as machine
from cuir.lowering.ir import ops
from cuir.lowering.ir.build_ir import build
from cuir.lowering.passes import hoist_work_item_values, multiply_by_inverses
from cuir.syntax.parser import parse

HEAD = """\
@kernel(arch="sm_90a")
def k(I: Global[i32, M], n: i32, *, DYNAMIC: const = True):
    work = tiles(n, dynamic=DYNAMIC)
"""


@st.composite
def bodies(draw: st.DrawFn) -> str:
    names = ["a", "b", "c"]
    lines: list[str] = ["a, b, c = t, n, t // 3"]

    def atom() -> str:
        return draw(st.sampled_from([*names, "t", "w", "n", "M", "2", "5"]))

    def value() -> str:
        op = draw(st.sampled_from(["+", "-", "*", "//", "%", "//", "cdiv", "min", "max", "copy", "choice", "lazy"]))
        x, y = atom(), atom()
        if op == "copy":
            return x
        if op == "choice":
            return f"{x} if {y} < {atom()} else {atom()}"
        if op == "lazy":
            return f"{x} // {y} if {y} > 0 else {atom()}"
        if op in ("//", "%"):
            return f"{x} {op} {draw(st.sampled_from(['3', '4', 'M', 'max(1, M - 2)', f'max({y}, 1)']))}"
        if op == "cdiv":
            return f"cdiv({x}, {draw(st.sampled_from(['3', '4', 'M']))})"
        return f"{op}({x}, {y})" if op in ("min", "max") else f"{x} {op} {y}"

    def block(depth: int, indent: str) -> None:
        for _ in range(draw(st.integers(1, 4))):
            kind = draw(st.sampled_from(["assign", "assign", "assign", "if", "for"])) if depth else "assign"
            if kind == "assign":
                lines.append(f"{indent}{draw(st.sampled_from(names))} = {value()}")
            elif kind == "if":
                lines.append(f"{indent}if {atom()} < {atom()}:")
                block(depth - 1, indent + "    ")
                if draw(st.booleans()):
                    lines.append(f"{indent}else:")
                    block(depth - 1, indent + "    ")
            else:
                lines.append(f"{indent}for i in range({draw(st.integers(0, 3))}):")
                block(depth - 1, indent + "    ")

    block(2, "")
    return "\n".join([*lines, "store(I[0], a)", "store(I[1], b)", "store(I[2], c)"])


class Run:
    """Stores of the one role of a kernel, for one worker and some units."""

    def __init__(self, kernel: ops.Kernel, parameters: dict[str, int], worker: int):
        self.kernel, self.parameters, self.worker = kernel, parameters, worker
        self.values: dict[SSAValue, Any] = {}
        self.stored: list[Any] = []
        self.block(kernel.body.block)

    def block(self, block: Block) -> list[Any]:
        """Run a block; return the values that it yields."""
        for op in block.ops:
            if isinstance(op, ops.Yield):
                return [self.values[v] for v in op.values]
            self.operation(op)
        return []

    def operation(self, op: Any) -> None:
        expected_values = self.values
        if isinstance(op, ops.Parameter):
            expected_values[op.result] = self.parameters[op.symbol.data]
        elif isinstance(op, ops.Constant):
            expected_values[op.result] = op.value
        elif isinstance(op, ops.Apply):
            assert op.entry.evaluate is not None
            expected_values[op.result] = op.entry.evaluate(*(expected_values[a] for a in op.arguments))
        elif isinstance(op, ops.Perform):
            self.stored.append(expected_values[op.arg("tile")])
        elif isinstance(op, ops.If):
            expected_values.update(
                zip(op.outputs, self.block((op.then if expected_values[op.condition] else op.orelse).block), strict=True)
            )
        elif isinstance(op, ops.For):
            self.loop(op, range(expected_values[op.start], expected_values[op.stop], op.step.data))
        elif isinstance(op, ops.Role):
            expected_values[op.body.block.args[0]] = self.worker
            self.block(op.body.block)
        elif isinstance(op, ops.ForUnits):
            self.loop(op, range(3))
        elif isinstance(op, machine.Queue):
            self.block(op.body.block)
        elif hasattr(op, "evaluate"):
            expected_values.update(zip(op.results, op.evaluate(None, [expected_values[v] for v in op.operands]), strict=True))

    def loop(self, op: ops.For | ops.ForUnits, turns: range) -> None:
        carried = [self.values[v] for v in op.carried]
        for turn in turns:
            self.values.update(zip(op.inner, carried, strict=True))
            self.values[op.turn] = turn
            if isinstance(op, ops.ForUnits) and (queue := machine.queue_of(op)):
                self.values[queue.hand_out.unit] = turn
                words = self.block(queue.hand_out.body.block)
                for word, inside in op.reads:
                    self.values[inside] = words[word.index - 1 + (self.worker if word.copies > 1 else 0)]
            carried = self.block(op.body.block)
        self.values.update(zip(op.outputs, carried, strict=True))


@given(bodies(), st.integers(0, 2), st.integers(-5, 50), st.integers(1, 9))
def test_what_is_stored_stays(body: str, worker: int, n: int, M: int) -> None:
    lines = "".join(f"            {line}\n" for line in body.split("\n"))
    kernel = build(check(parse(HEAD + f'    with role("one", warps=3) as w:\n        for t in work:\n{lines}')))
    parameters = {"n": n, "M": M}
    before = Run(kernel, parameters, worker).stored
    hoist_work_item_values.run(kernel)
    kernel.verify()
    assert any(isinstance(op, machine.Queue) for op in kernel.body.block.ops)
    assert Run(kernel, parameters, worker).stored == before
    multiply_by_inverses.run(kernel)
    kernel.verify()
    assert Run(kernel, parameters, worker).stored == before and len(before) == 9
