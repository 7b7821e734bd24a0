"""Words of a unit of work that are marked as uniform: those that steer a role of many lanes."""

from __future__ import annotations

from cuir.lowering.ir import ops
from cuir.lowering.ir.ir_text import parse, show
from cuir.lowering.passes import hoist_work_item_values, mark_uniform_words
from tests.lowering.passes.test_hoist_work_item_values import HEAD, apply, queue, role, use

WORDS = apply("a", "//", "t", "n") + apply("b", "%", "t", "n")
BRANCH = '%c = tile.apply "<"(%two, %b) : !tile.scalar<bool>\ntile.if %c {\n' + use("t") + "\ntile.yield()\n} else {\ntile.yield()\n}"
LOOP = "tile.for %i = %two to %b {\n" + use("i") + "\ntile.yield()\n}"


def run(text: str) -> ops.Kernel:
    kernel = parse(text)
    hoist_work_item_values.run(kernel)
    assert "uniform" not in show(kernel)
    mark_uniform_words.run(kernel)
    kernel.verify()
    assert show(parse(show(kernel))) == show(kernel)
    return kernel


def marks(*lines: str) -> list[tuple[int, bool]]:
    (loop,) = queue(run(HEAD + role("\n".join(lines)) + "  tile.yield()\n}\n")).loops
    return [(w.index, w.uniform) for w, _ in loop.reads]


def test_words_that_branches_follow_from_are_marked() -> None:
    assert marks(WORDS + use("a"), BRANCH) == [(1, False), (2, True)]


def test_words_that_bound_a_loop_are_marked() -> None:
    assert marks(WORDS + use("a"), LOOP) == [(1, False), (2, True)]


def test_words_that_a_branch_follows_from_in_the_next_unit_are_marked() -> None:
    """A loop carries the word to the branch."""
    body = HEAD + role(WORDS + use("a") + "\n" + BRANCH.replace("%two, %b", "%two, %before"))
    body = body.replace("%t in %work {", "%t in %work carrying (%before = %two) {")
    body = body.replace("      tile.yield()\n    }\n    tile", "      tile.yield(%b)\n    }\n    tile")
    (loop,) = queue(run(body.replace("    tile.for_units", "    %end = tile.for_units") + "  tile.yield()\n}\n")).loops
    assert [(w.index, w.uniform) for w, _ in loop.reads] == [(1, False), (2, True)]


def test_words_that_are_only_stored_are_not_marked() -> None:
    assert marks(WORDS + use("a", "b")) == [(1, False), (2, False)]
