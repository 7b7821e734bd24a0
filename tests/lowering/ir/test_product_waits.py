"""Waits for products that the builder decides: on no path is a product in flight behind a wait for it."""

from __future__ import annotations

import random
from collections.abc import Iterator

from hypothesis import example, given
from hypothesis import strategies as st
from xdsl.dialects.builtin import FileLineColLoc

from cuir.lowering.ir import ops
from cuir.lowering.ir.build_ir import build, build_for_analyses
from cuir.lowering.ir.ir_text import show
from cuir.lowering.ir.ir_walk import every
from cuir.syntax.nodes import Name
from cuir.syntax.walk import IdentityKey, walk
from tests.lowering.conftest import kernel

NAMES = ("a", "b", "c")
FIRST = [f"{name} = zeros(f32, [64, 64])" for name in NAMES]
Statement = tuple[object, ...]
name = st.sampled_from(NAMES)
simple = st.one_of(
    st.tuples(st.just("issue"), name),
    st.tuples(st.just("issue"), name),
    st.tuples(st.just("copy"), name, name),
    st.tuples(st.just("wait"), name),
)


def block_of(statement: st.SearchStrategy[Statement]) -> st.SearchStrategy[list[Statement]]:
    return st.lists(statement, min_size=1, max_size=5)


def nest(inner: st.SearchStrategy[Statement]) -> st.SearchStrategy[Statement]:
    return st.one_of(st.tuples(st.just("if"), block_of(inner), block_of(inner)), st.tuples(st.just("for"), block_of(inner)))


programs = block_of(st.recursive(simple, nest, max_leaves=6))


class Listing:
    """The text of a program, and the line of each wait."""

    def __init__(self, program: list[Statement]):
        self.lines, self.waits, self.loops = list(FIRST), dict[int, int](), 0
        self.write(program, "")

    def write(self, block: list[Statement], indent: str) -> None:
        for statement in block:
            match statement:
                case ("issue", x):
                    self.lines.append(f"{indent}{x} = mma_async(s[0], s[1])")
                case ("copy", x, y):
                    self.lines.append(f"{indent}{x} = {y}")
                case ("wait", x):
                    self.lines.append(f"{indent}mma_wait({x})")
                    self.waits[id(statement)] = len(self.lines) + 7  # the body's first line is the 8th
                case ("if", then, orelse):
                    self.lines.append(f"{indent}if n > 0:")
                    self.write(then, indent + "    ")  # type: ignore[arg-type]
                    self.lines.append(f"{indent}else:")
                    self.write(orelse, indent + "    ")  # type: ignore[arg-type]
                case ("for", body):
                    self.loops += 1
                    self.lines.append(f"{indent}for i{self.loops} in range(n):")
                    self.write(body, indent + "    ")  # type: ignore[arg-type]


def take_path(block: list[Statement], choose: random.Random) -> Iterator[Statement]:
    for statement in block:
        match statement:
            case ("if", then, orelse):
                yield from take_path(choose.choice((then, orelse)), choose)  # type: ignore[arg-type]
            case ("for", body):
                for _ in range(choose.randrange(4)):
                    yield from take_path(body, choose)  # type: ignore[arg-type]
            case _:
                yield statement


@example([("issue", "a"), ("copy", "b", "a"), ("if", [("issue", "a")], [("copy", "c", "c")]), ("wait", "b")], random.Random(0))
@given(programs, st.randoms(use_true_random=False))
def test_no_product_that_was_waited_for_is_in_flight(program: list[Statement], choose: random.Random) -> None:
    listing = Listing(program)
    pending: dict[int, int] = {}
    for op in every(build(kernel("\n".join(listing.lines)))):
        if isinstance(op, ops.Perform) and op.op == "mma_wait":
            assert isinstance(op.location, FileLineColLoc)
            pending[op.location.line.data] = op.const("pending")
    is_straight = not any(s[0] in ("if", "for") for s in program)
    for _ in range(1 if is_straight else 8):
        products: dict[object, int | None] = dict.fromkeys(NAMES)
        in_flight, issued = list[int](), 0
        for statement in take_path(program, choose):
            match statement:
                case ("issue", x):
                    issued += 1
                    products[x] = issued
                    in_flight.append(issued)
                case ("copy", x, y):
                    products[x] = products[y]
                case ("wait", x):
                    line, product = listing.waits[id(statement)], products[x]
                    if is_straight:
                        expected = issued - product if product in in_flight else None  # type: ignore[operator]
                        assert pending.get(line) == (expected if expected is None else min(expected, 7))
                    if line in pending:
                        in_flight = in_flight[max(0, len(in_flight) - pending[line]) :]
                    assert product not in in_flight


def test_a_tile_that_a_wait_in_a_branch_does_not_finish_passes_by_the_branch() -> None:
    """The builder lets `b` through the wait for `a`, and takes that back: readers of `b` have the product itself."""
    checked = kernel(
        "a = mma_async(s[0], s[1])\nb = mma_async(s[0], s[1])\nif n > 0:\n    mma_wait(a)\nmma_wait(b)\nstore(Z[0 : 64, :], b)"
    )
    built = build_for_analyses(checked)
    waits = [op for op in every(built.kernel) if isinstance(op, ops.Perform) and op.op == "mma_wait"]
    products = [op for op in every(built.kernel) if isinstance(op, ops.Perform) and op.op == "mma_async"]
    assert [w.const("pending") for w in waits] == [1, 0] and list(waits[0].arguments) == [products[0].outputs[0]]
    assert products[1].outputs[0] in waits[1].arguments
    *_, read = [
        built.values[k]
        for stmt in checked.roles[0].body
        for e in walk(stmt)
        if isinstance(e, Name) and (k := IdentityKey(e)) in built.values
    ]
    assert read in waits[1].outputs and "pending=0" in show(built.kernel)
