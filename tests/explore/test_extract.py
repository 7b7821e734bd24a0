"""Skeletons of programs: steps, regions, and values that must follow from the arguments alone."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cuir.explore import explore
from cuir.explore.extract import extract_skeletons
from cuir.explore.skeleton import Touch
from cuir.explore.state_intervals import compute_box_coordinates, compute_box_intervals, compute_element_intervals
from cuir.text.diagnostics import CuirError
from tests.explore.programs import check_text, tensors

HEAD = '@kernel(arch="sm_90a")\ndef k(X: Global[f32, 64, 64], I: Global[i32, 8], Y: Global[f32, 64, 64]):\n'


def explore_body(body: str, **replacements: torch.Tensor) -> tuple[str, str]:
    """Verdict, and the code of the fault or of the refusal."""
    checked = check_text(HEAD + body)
    try:
        exploration = explore(checked, tensors(checked) | replacements)
    except CuirError as error:
        return "refused", error.diagnostics[0].code
    return exploration.verdict, exploration.diagnostics[0].code if exploration.diagnostics else ""


FROM_AN_INPUT = """\
    done = mbarrier(1)
    with role("a", warps=1):
        if I[0] > 0:
            done.arrive()
        store(Y[I[1] + rows(16), cols(16)], full(f32, [16, 16], 1.0))
    with role("b", warps=1):
        done.wait(0)
"""


def test_control_flow_may_follow_from_inputs() -> None:
    assert explore_body(FROM_AN_INPUT, I=torch.ones(8, dtype=torch.int32)) == ("clean", "")
    assert explore_body(FROM_AN_INPUT) == ("faulty", "D401")


@pytest.mark.parametrize(
    "body",
    [
        # a scalar of a tensor that the kernel writes
        '    with role("a", warps=1):\n        store(I[0], 1)\n        if I[1] > 0:\n            store(Y[0 : 16, 0 : 16], full(f32, [16, 16], 1.0))\n',
        # a place computed from shared memory, directly and through names
        '    sX = shared(i32, [16, 16])\n    with role("a", warps=1):\n        store(sX, full(i32, [16, 16], 0))\n        at = load(sX)\n        to = at + rows(16)\n'
        "        store(Y[to, cols(16)], full(f32, [16, 16], 1.0))\n",
        # a mask computed from a tensor that the kernel writes
        '    with role("a", warps=1):\n        y = load(Y[0 : 16, 0 : 16])\n        store(Y[rows(16), cols(16)], y, mask=y > 0.0)\n',
    ],
)
def test_what_depends_on_who_ran_first_is_refused(body: str) -> None:
    assert explore_body(body) == ("refused", "V202")


@pytest.mark.parametrize(("first", "verdict"), [(16, ("clean", "")), (8, ("faulty", "R402"))])
def test_a_name_of_two_roles_has_the_definitions_of_each(first: int, verdict: tuple[str, str]) -> None:
    body = f"""\
    with role("a", warps=1):
        at = rows(16)
        store(Y[at, cols(16)], full(f32, [16, 16], 1.0))
    with role("b", warps=1):
        behind = {first} + rows(16)
        at = behind
        store(Y[at, cols(16)], full(f32, [16, 16], 2.0))
"""
    assert explore_body(body) == verdict


def test_masks_and_index_tiles_of_inputs_count_exactly() -> None:
    """Two warps store to the same box under masks that share no element; with another mask they do."""
    body = """\
    with role("a", warps=2) as w:
        q = rows(16) + cols(16)
        store(Y[0 : 16, 0 : 16], full(f32, [16, 16], 1.0), mask=q % 2 == w)
"""
    assert explore_body(body) == ("clean", "")
    assert explore_body(body.replace("q % 2 == w", "q % 3 >= w"))[1] == "R402"
    scattered = body.replace("Y[0 : 16, 0 : 16]", "Y[rows(16), cols(16)]")
    assert explore_body(scattered) == ("clean", "")
    assert explore_body(scattered.replace("q % 2 == w", "q % 3 >= w"))[1] == "R402"


def test_clusters_never_share_an_element() -> None:
    body = """\
    work = tiles(4)
    with role("a", warps=1):
        for t in work:
            store(Y[t * STEP : t * STEP + 16, 0 : 16], full(f32, [16, 16], 1.0))
"""
    assert explore_body(body.replace("STEP", "16")) == ("clean", "")
    assert explore_body(body.replace("STEP", "8")) == ("faulty", "R402")  # two units of one CTA here, of two in another launch


def test_an_alias_makes_what_lay_there_undefined() -> None:
    body = """\
    sX = shared(f32, [16, 32])
    sO = shared(f32, [16, 32], over=sX)
    with role("a", warps=1):
        store(sX, full(f32, [16, 32], 1.0))
        store(sO, full(f32, [16, 32], 2.0))
        store(Y[0 : 16, 0 : 32], load(WHICH))
"""
    assert explore_body(body.replace("WHICH", "sO")) == ("clean", "")
    assert explore_body(body.replace("WHICH", "sX")) == ("faulty", "M401")


def test_a_launch_that_is_not_small_is_refused() -> None:
    body = '    b = mbarrier(1)\n    with role("a", warps=1):\n        for i in range(1000000):\n            b.arrive()\n'
    assert explore_body(body) == ("refused", "V203")


def test_steps_are_the_points_of_a_worker() -> None:
    body = """\
    sX = shared(f32, [64, 64])
    b = mbarrier(1)
    with role("a", warps=1):
        b.expect(nbytes(sX))
        copy_async(X[0 : 64, :], sX, b)
    with role("c", warpgroups=1):
        b.wait(0)
        x = load(sX)
        store(sX, x + load(sX))
        fence_async()
        store_async(sX, Y[0 : 64, :])
        store_wait()
        sync_b = 0
"""
    checked = check_text(HEAD + body)
    (skeleton,) = extract_skeletons(checked, tensors(checked))
    a, c = skeleton.workers
    assert [s.kind for s in a.steps] == ["arrive", "copy"] and a.steps[0].value == 64 * 64 * 4
    assert [s.kind for s in c.steps] == ["wait", "point", "point"]
    assert [(t.mode, t.operation) for t in c.steps[0].locals if isinstance(t, Touch)] == [("read", ""), ("read", ""), ("write", "")]
    assert len(skeleton.landings) == 1 and skeleton.size == 6
    assert skeleton.regions[0].intervals == ((0, 64 * 64 * 4),)


SHAPES = st.lists(st.integers(1, 6), min_size=1, max_size=4)


@given(SHAPES, st.data())
def test_boxes_as_intervals(shape: list[int], data: st.DataObject) -> None:
    """The intervals are the elements of the box that lie inside, and as few as there can be."""
    starts = [data.draw(st.integers(-3, n + 1)) for n in shape]
    sizes = [data.draw(st.integers(1, 5)) for _ in shape]
    result = compute_box_intervals(shape, starts, sizes)
    mark = torch.zeros(shape, dtype=torch.bool)
    mark[tuple(slice(max(0, s), max(0, s + n)) for s, n in zip(starts, sizes))] = True
    covered = [x for lo, hi in result for x in range(lo, hi)]
    assert covered == torch.nonzero(mark.reshape(-1)).reshape(-1).tolist()
    assert all(a[1] < b[0] for a, b in itertools.pairwise(result))
    assert result == compute_element_intervals(shape, compute_box_coordinates(starts, sizes), None)
