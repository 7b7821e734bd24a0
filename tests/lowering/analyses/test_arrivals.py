"""Arrivals that a fence must come before: those that a path reaches from an ordinary read of what an engine writes, and no others.

Exit of a CTA from its cluster: not while another may still arrive at its barriers.
"""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import corpus
from cuir import check, parse
from cuir.checking.checked import Checked
from cuir.lowering import lower
from cuir.lowering.analyses.arrivals import awaits_all_signals, find_fenced_arrivals
from cuir.lowering.ir.build_ir import build
from cuir.syntax.types import F16
from tests.lowering.tile_ir import clean, program

FRAME = """
@kernel(arch="sm_90a")
def f(X: Global[f32, 64, 64], Y: Global[f32, 64, 64], n: i32):
    a, own = shared(f32, [64, 64]), shared(f32, [64, 64])
    over = shared(f32, [64, 64], over=a)
    full, empty = mbarrier(1), mbarrier(1)
    with role("load", warps=1):
        for i in range(n):
            empty.wait(i % 2 ^ 1)
            full.expect(nbytes(a))
            copy_async(X[0:64, :], a, full)
    with role("one", warpgroups=1):
        y = zeros(f32, [64, 64])
"""


def find_fences(*lines: str) -> list[bool]:
    """Return for the arrival of each line whether a fence must come before it."""
    kernel = clean(program(FRAME + "\n".join(f"        {line}" for line in lines) + "\n        store(Y[0:64, :], y)\n"))
    first = len(FRAME.splitlines()) + 1
    reached = {op.location.line.data for op in find_fenced_arrivals(kernel.roles[1])}  # type: ignore[union-attr]
    return [first + i in reached for i in range(len(lines))]


@pytest.mark.parametrize(
    ("lines", "position"),
    [
        (("y = y + load(a)", "empty.arrive()"), [False, True]),
        (("y = y + load(over)", "empty.arrive()"), [False, True]),  # the same memory
        (("y = y + load(own)", "empty.arrive()"), [False, False]),  # no engine writes there
        (("y = y + load(a)", "fence_async()", "empty.arrive()"), [False, False, False]),  # the program has one
        (("fence_async()", "y = y + load(a)", "empty.arrive()"), [False, False, True]),  # before the read
        (("store(own, y)", "empty.arrive()"), [False, False]),
        (("y = y + a[3, 5]", "empty.arrive()"), [False, True]),  # one element
        (("if n > 3:", "    y = y + load(a)", "empty.arrive()"), [False, False, True]),
        (("y = y + load(a)", "if n > 3:", "    fence_async()", "empty.arrive()"), [False, False, False, True]),
        (("for i in range(n):", "    empty.arrive()", "    y = y + load(a)"), [False, True, False]),  # of the time before
        (("for i in range(n):", "    empty.arrive()", "    y = y + load(a)", "    fence_async()"), [False] * 4),
        (("for i in range(n):", "    y = y + load(a)", "    fence_async()", "empty.arrive()"), [False] * 4),
        (("for i in range(n):", "    fence_async()", "y = y + load(a)", "for j in range(n):", "    empty.arrive()"), [False] * 4 + [True]),
    ],
)
def test_where(lines: tuple[str, ...], position: list[bool]) -> None:
    assert find_fences(*lines) == position


LOOPS = 5  # at most: each may be entered or not, and all ways are tried


@given(st.lists(st.sampled_from(["read", "fence", "arrive", "loop", "end"]), max_size=10))
@settings(max_examples=120, deadline=None)
def test_every_path_from_a_read_has_a_fence(steps: list[str]) -> None:
    """Against runs of the statements, the first loops entered up to three times, each later one twice or not at all."""
    lines, depth = list[str](), 0
    for number, step in enumerate(steps):
        if step == "end":
            depth = max(0, depth - 1)
            continue
        if step == "loop" and sum(line.lstrip().startswith("for") for line in lines) == LOOPS:
            continue
        words = {"read": "y = y + load(a)", "fence": "fence_async()", "arrive": "empty.arrive()", "loop": f"for i{number} in range(n):"}[
            step
        ]
        lines.append("    " * depth + words)
        if step == "loop":
            depth += 1
            lines.append("    " * depth + "y = y + 1.0")
    expected = [False] * len(lines)
    loops = [i for i, line in enumerate(lines) if line.lstrip().startswith("for")]
    for counts in itertools.product(*(range(4) if n < 3 else (0, 2) for n in range(len(loops)))):
        times = dict(zip(loops, counts, strict=True))
        _run(lines, 0, len(lines), 0, times, [False], expected)
    assert find_fences(*lines, "y = y * 2.0")[:-1] == expected


def _run(lines: list[str], begin: int, end: int, depth: int, times: dict[int, int], unfenced: list[bool], expected: list[bool]) -> None:
    at = begin
    while at < end:
        line = lines[at].strip()
        if line.startswith("for"):
            last = next((j for j in range(at + 1, end) if len(lines[j]) - len(lines[j].lstrip()) <= 4 * depth), end)
            for _ in range(times[at]):
                _run(lines, at + 1, last, depth + 1, times, unfenced, expected)
            at = last
            continue
        if "load" in line:
            unfenced[0] = True
        elif "fence" in line:
            unfenced[0] = False
        elif "arrive" in line:
            expected[at] |= unfenced[0]
        at += 1


def test_the_text_has_them() -> None:
    text = FRAME + "        full.wait(0)\n        y = y + load(a)\n        empty.arrive()\n        store(Y[0:64, :], y)\n"
    fence = r"fence_view_async_shared\(\);\s+cuir::arrive"
    assert re.search(fence, lower(program(text)).source)
    assert not re.search(fence, lower(program(text.replace("load(a)", "load(own)"))).source)


TEXT = """\
@kernel(arch="sm_90a", cluster=2)
def halves(X: Global[f32, M, 64], Y: Global[f32, M, 64], PARTS: Scratch[f32, 2, M, 64]):
    done = mbarrier(4)
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=2) as wg:
        i = 0
        for t in work:
            r, c = t * 64 + rows(64), cols(64)
            store(PARTS[cta_rank(), r, c], X[r, c] * cast(wg, f32))
            done.arrive(cluster=True)
            done.wait(i % 2)
            store(Y[r, c], PARTS[1 - cta_rank(), r, c])
            i += 1
"""


def ir(text: str) -> bool:
    return awaits_all_signals(build(check(parse(text))))


def test_all_that_arrive_and_wait_together_may_leave() -> None:
    assert ir(TEXT)


@pytest.mark.parametrize(
    "change",
    [
        (
            "            done.wait(i % 2)\n",
            "            store(Y[r, c], X[r, c])\n            done.wait(i % 2)\n",
        ),  # may take as long as it likes
        ("            done.wait(i % 2)\n", ""),
        ("mbarrier(4)", "mbarrier(2)"),  # a phase without the others
        ("cluster=True", 'cluster="x"'),
        ("            i += 1\n", "            i += 1\n            done.arrive()\n"),  # phases end without the others
    ],
    ids=["something between", "no wait", "fewer are counted", "a line alone", "arrivals at its own"],
)
def test_who_may_be_signalled_later_stays(change: tuple[str, str]) -> None:
    assert change[0] in TEXT and not ir(TEXT.replace(*change))


def decoding(cluster: int, dynamic: bool) -> Checked:
    program = parse(corpus.kernels()["decode_sm90"].read_text(encoding="utf-8"))
    return check(program, None, {"T": F16, "D": 64, "DV": 64, "CLUSTER": cluster, "DYNAMIC": dynamic})


@pytest.mark.parametrize(("dynamic", "stays"), [(False, False), (True, True)])
def test_units_that_are_drawn_for_others_are_told_to_them(dynamic: bool, stays: bool) -> None:
    assert ("cute::cluster_sync();" in lower(decoding(2, dynamic)).source) == stays
    assert "cluster_sync" not in lower(decoding(1, dynamic)).source


@pytest.mark.parametrize("name", ["flash_fwd_cluster", "gemm_clusters"])
def test_copies_to_others_keep_them(name: str) -> None:
    program = parse(corpus.programs()[name].read_text(encoding="utf-8"))
    (kernel,) = program.kernels()
    consts = {"T": F16, "D": 64} if name.startswith("flash") else {"T": F16}
    assert not awaits_all_signals(build(check(program, kernel, consts)))
