"""Exit of a CTA from its cluster: not while another may still arrive at its barriers."""

from __future__ import annotations

import pytest

import corpus
from cuir import check, parse
from cuir.checking.checked import Checked
from cuir.lowering import lower
from cuir.lowering.analyses.remote_signals import awaits_all_signals
from cuir.lowering.ir.build_ir import build
from cuir.syntax.types import F16

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
