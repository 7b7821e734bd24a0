"""The queue of a kernel's units of work, and what travels with them: texts before and after, and the kernels of the corpus."""

from __future__ import annotations

import re

import pytest
from xdsl.utils.exceptions import VerifyException

from cuir.lowering.ir import machine_ops as machine
from cuir.lowering.ir import ops
from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ir_text import parse, show
from cuir.lowering.passes import hoist_work_item_values, multiply_by_inverses
from tests.lowering.kernels import NAMES, corpus_kernel

# ---- texts before and after
HEAD = """tile.kernel "k" arch="sm_90a" cluster=1 cluster_x=1 threads=128 {
  %I = tile.tensor "I" written : !tile.tensor<i32, "M">
  %J = tile.tensor "J" : !tile.tensor<i32, "M">
  %n = tile.parameter "n" : !tile.scalar<i32>
  %M = tile.parameter "M" dim : !tile.scalar<i32>
  %two = tile.constant 2 : !tile.scalar<i32>
  %work = tile.units "work" dynamic(%n) : !tile.units_of_work
"""


def role(body: str, name: str = "one", workers: int = 1, warp: int = 0) -> str:
    lines = "".join(f"      {line}\n" for line in body.strip("\n").split("\n"))
    head = f'  tile.role "{name}" workers={workers} threads=32 registers=0 warpgroup=0 warp={warp} {{\n  ^bb0(%w: !tile.scalar<i32>):\n'
    return head + "    tile.for_units %t in %work {\n" + lines + "      tile.yield()\n    }\n    tile.yield()\n  }\n"


def run(*roles: str, head: str = HEAD) -> ops.Kernel:
    kernel = parse(head + "".join(roles) + "  tile.yield()\n}\n")
    hoist_work_item_values.run(kernel)
    kernel.verify()
    assert show(parse(show(kernel))) == show(kernel)
    return kernel


def use(*values: str) -> str:
    """Stores values to I."""
    return "\n".join(
        f'%place_{v} = tile.at %I[%two] : !tile.element<i32, 0, 0>\ntile.perform "store"(place: %place_{v}, tile: %{v})' for v in values
    )


def apply(name: str, op: str, *args: str) -> str:
    return f'%{name} = tile.apply "{op}"({", ".join("%" + a for a in args)}) : !tile.scalar<i32>\n'


def queue(kernel: ops.Kernel) -> machine.Queue:
    return next(op for op in kernel.body.block.ops if isinstance(op, machine.Queue))


def travel(*bodies: str, **more: int) -> list[str | None]:
    kernel = run(*(role(b, name=f"role{i}", warp=i, **more) for i, b in enumerate(bodies)))
    return [v.name_hint for v in queue(kernel).hand_out.words]


def test_text_before_and_after() -> None:
    result = run(role(apply("a", "//", "t", "n") + apply("b", "+", "a", "two") + use("b", "a")))
    text = show(result)
    assert text[text.index("  %queue") : text.index("      %place_b")] == (
        """\
  %queue = tile.queue %work slots=1 words=4 spare=1 readers=1 ctas=1 ahead=0 dynamic {
    tile.hand_out %unit {
      %a = tile.apply "//"(%unit, %n) : !tile.scalar<i32>
      tile.yield(%a)
    }
  }
  tile.role "one" workers=1 threads=32 registers=0 warpgroup=0 warp=0 {
  ^bb0(%w: !tile.scalar<i32>):
    tile.for_units %t in %queue reading (%a_1 = 1 : !tile.scalar<i32>) {
      %b = tile.apply "+"(%a_1, %two) : !tile.scalar<i32>
"""
    )


def test_a_division_travels_and_a_sum_does_not() -> None:
    assert travel(apply("a", "//", "t", "n") + apply("b", "+", "t", "n") + use("a", "b")) == ["a"]


def test_what_only_travelling_values_read_stays() -> None:
    assert travel(apply("a", "//", "t", "n") + apply("b", "%", "a", "n") + use("b")) == ["b"]


def test_several_that_are_one_step_from_the_same_value_are_made_of_it() -> None:
    steps = apply("a", "//", "t", "n") + apply("b", "+", "a", "two") + apply("c", "*", "a", "two")
    assert travel(steps + use("b", "c")) == ["a"]
    assert travel(steps + use("c")) == ["c"]


def test_what_is_the_same_for_all_units_stays() -> None:
    assert travel(apply("a", "//", "n", "two") + apply("b", "+", "a", "t") + use("a", "b")) == []


def test_equal_values_of_two_roles_are_one_word() -> None:
    kernel = run(role(apply("a", "//", "t", "n") + use("a")), role(apply("x", "//", "t", "n") + use("x"), "two", warp=1))
    assert len(queue(kernel).hand_out.words) == 1
    assert [[w.index for w, _ in loop.reads] for loop in queue(kernel).loops] == [[1], [1]]
    assert show(kernel).count('"//"') == 1


def test_what_is_computed_under_a_condition_does_not_travel_but_meets_one_that_does() -> None:
    condition = '%c = tile.apply "<"(%two, %t) : !tile.scalar<bool>\ntile.if %c {\n'
    rare = condition + apply("a", "//", "t", "n") + use("a") + "\ntile.yield()\n} else {\ntile.yield()\n}"
    assert travel(rare) == []
    assert travel(rare, apply("b", "//", "t", "n") + use("b")) == ["a"]


def test_elements_travel_if_the_kernel_never_writes_the_tensor() -> None:
    read = '%p = tile.at %{}[%t] : !tile.element<i32, 0, 0>\n%a = tile.perform "element"(place: %p) : !tile.scalar<i32>\n' + use("a")
    assert travel(read.format("J")) == ["a"] and travel(read.format("I")) == []


def test_a_choice_is_handed_out_with_its_sides() -> None:
    """One side alone is computed: the other may read outside of a tensor."""
    text = """
%c = tile.apply "<"(%t, %M) : !tile.scalar<bool>
%a = tile.if %c {
  %p = tile.at %J[%t] : !tile.element<i32, 0, 0>
  %e = tile.perform "element"(place: %p) : !tile.scalar<i32>
  tile.yield(%e)
} else {
  tile.yield(%n)
}
"""
    kernel = run(role(text + use("a")))
    hands = show(queue(kernel))
    assert re.search(r"tile.if %c \{\s+%p = .*\s+%e = .*\s+tile.yield\(%e\)\s+\} else \{\s+tile.yield\(%n\)", hands)
    assert "tile.if" not in show(kernel.roles[0])


def test_a_value_that_depends_on_the_worker_travels_for_each() -> None:
    body = apply("s", "+", "t", "w") + apply("a", "//", "s", "n") + apply("b", "//", "t", "n") + use("a", "b")
    kernel = run(role(body, workers=2))
    assert [v.name_hint for v in queue(kernel).hand_out.words] == ["a", "a", "b"]
    ((word, _), (second, _)) = queue(kernel).loops[0].reads
    assert (word.index, word.copies, second.index) == (1, 2, 3)
    assert "reading (%a_2 = 1 of 2 : " in show(kernel)
    assert travel(apply("s", "*", "t", "n") + apply("a", "+", "s", "w") + use("a"), workers=2) == []  # cheap
    assert travel(apply("s", "//", "t", "n") + apply("a", "+", "s", "w") + use("a")) == ["a"]  # a worker alone is no other


def test_a_slot_has_room_for_23_values() -> None:
    body = "".join(f"%c{i} = tile.constant {2 * i + 3} : !tile.scalar<i32>\n" + apply(f"a{i}", "//", "t", f"c{i}") for i in range(40))
    assert len(travel(body + use(*(f"a{i}" for i in range(40))))) == 23


def test_what_nobody_reads_does_not_travel() -> None:
    assert travel(apply("a", "//", "t", "n")) == []


def test_without_a_queue_units_are_static() -> None:
    body = apply("a", "//", "t", "n") + use("a")
    text = show(run(role(body, workers=4), head=HEAD.replace("cluster=1", "cluster=2")))
    assert "tile.queue" not in text and "dynamic(" not in text and "handed out statically" in text


def test_without_mbarriers_dynamic_units_are_ctas() -> None:
    text = show(run(role(apply("a", "//", "t", "n") + use("a")), head=HEAD.replace("sm_90a", "sm_80")))
    assert "tile.queue" not in text and "dynamic(" in text and "each unit of work is a CTA" in text


def test_static_units_need_a_dear_value_for_a_queue() -> None:
    head = HEAD.replace(" dynamic", "")
    assert "tile.queue" not in show(run(role(apply("a", "*", "t", "n") + apply("b", "-", "a", "t") + use("b")), head=head))
    assert "slots=4 words=4 " in show(run(role(apply("a", "//", "t", "n") + use("a")), head=head))


def test_without_a_spare_warp_no_values_travel() -> None:
    body = apply("a", "//", "t", "n") + use("a")
    kernel = run(role(body, workers=4))
    assert queue(kernel).spare.data == -1 and not queue(kernel).hand_out.words
    assert "tile.queue" not in show(run(role(body, workers=4), head=HEAD.replace("cluster=1", "cluster=2")))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (("= 1 :", "= 2 :"), "are no"),
        (("spare=1", "spare=-1"), "travel in slots"),
        (("words=4", "words=1"), "travel in slots"),
    ],
)
def test_the_ir_sees_words_that_do_not_travel(wrong: tuple[str, str], message: str) -> None:
    text = show(run(role(apply("a", "//", "t", "n") + use("a"))))
    with pytest.raises(VerifyException, match=message):
        parse(text.replace(*wrong))


# ---- the corpus
@pytest.mark.sweep(32)
@pytest.mark.parametrize("name", NAMES)
def test_kernels_of_the_corpus_stay_valid(name: str) -> None:
    checked = corpus_kernel(name)
    kernel = build(checked)
    for item in (hoist_work_item_values, multiply_by_inverses):
        item.run(kernel)
        kernel.verify()
        text = show(kernel)
        assert show(parse(text)) == text


def test_what_travels_in_the_flagship() -> None:
    """Batch, head, the first row (m * 128), the number of blocks, the head of K and V, the number of blocks with a mask; nothing else is left to divide."""
    kernel = build(corpus_kernel("flash_fwd_sm90.flash_fwd"))
    hoist_work_item_values.run(kernel)
    result = queue(kernel)
    names = [v.name_hint for v in result.hand_out.words]
    assert [n for n in names if n] == ["b", "h", "n", "hk", "partial"] and len(names) == 6
    (row,) = (v for v in result.hand_out.words if not v.name_hint)
    created = show(result)
    assert re.search(r'%\w+ = tile.apply "\*"\(%m, ', created) and isinstance(row.owner, ops.Apply)
    numbers = {name: result.properties[name].data for name in result.NUMBERS}  # type: ignore[attr-defined]
    assert numbers == {"slots": 2, "words": 8, "spare": 2, "readers": 10, "ctas": 1, "ahead": 2} and result.dynamic is not None
    reads = {loop.parent_op().symbol.data: [w.index for w, _ in loop.reads] for loop in result.loops}  # type: ignore[union-attr]
    assert reads == {"load_k": [1, 2, 3, 4, 5], "load_v": [1, 3, 4], "compute": [1, 2, 3, 5, 6]}
    remaining = [
        op
        for r in kernel.roles
        for op in r.walk()
        if isinstance(op, ops.Apply) and op.op in ("//", "%") and not ops.constant_value(op.arguments[1])
    ]
    assert not remaining
