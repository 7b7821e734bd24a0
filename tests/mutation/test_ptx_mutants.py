"""Mutants of PTX: what is changed, and that the machine refuses those of a small kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cuir.cuda import KernelCall, LoadedModule, load
from cuir.mutation.ptx_mutants import KINDS, change_statement, choose_ptx_mutants, list_ptx_mutants
from cuir.ptx.launch.kernel_launch import KernelRun
from cuir.ptx.module import read_module
from cuir.text.diagnostics import CuirError

FAULTS = Path(__file__).parent.parent / "ptx" / "faults"


def changes(statement: str) -> list[str]:
    op, _, operands = statement.partition(" ")
    return [new for _, _, new in change_statement("", op, operands)]


def test_a_wait_is_left_out_or_keeps_a_group_more() -> None:
    assert changes("cp.async.wait_group 1") == [" ", "cp.async.wait_group 2;"]
    assert changes("wgmma.wait_group.sync.aligned 0") == [" ", "wgmma.wait_group.sync.aligned 1;"]
    assert changes("cp.async.wait_all ") == [" "]


def test_a_wait_for_a_phase_succeeds_or_takes_the_other_parity() -> None:
    done, flipped = changes("mbarrier.try_wait.parity.shared::cta.b64 p, [%r1], %r2, %r3")
    assert done == "setp.eq.u32 p, 0, 0;"
    assert "xor.b32 flipped_parity, %r2, 1;" in flipped and "p, [%r1], flipped_parity, %r3;" in flipped


def test_counts_and_bytes_are_off() -> None:
    assert "add.s32 changed_number, %r2, 1;" in changes("mbarrier.init.shared::cta.b64 [%r1], %r2")[0]
    _, more, less = changes("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 256")
    assert "add.s32 changed_number, 256, 16;" in more and "add.s32 changed_number, 256, -16;" in less
    assert any("add.s32 changed_number, %r2, 32;" in new for new in changes("bar.sync %r1, %r2"))


def test_what_only_ends_or_reads_a_barrier_is_kept() -> None:
    assert not changes("mbarrier.inval.shared::cta.b64 [%r1]") and not changes("mbarrier.pending_count.b64 %r1, %rd1")


def test_comments_are_no_statements() -> None:
    assert not list(list_ptx_mutants("\t// bar.sync 0;\n"))
    (first, *_) = list_ptx_mutants("\tcp.async.wait_group 0;\n\t// comes before\n\tbar.sync 0;\n")
    assert (first.line, first.old) == (1, "cp.async.wait_group 0;")


def test_a_wait_changes_places_with_the_barrier_behind_it() -> None:
    text = "\tcp.async.wait_group 0;\n\t.loc 1 2 3\n\tbar.sync 0;\n"
    (moved,) = (m for m in list_ptx_mutants(text) if "behind" in m.change)
    assert moved.apply(text).split() == ["bar.sync", "0;", ".loc", "1", "2", "3", "cp.async.wait_group", "0;"]


@pytest.mark.nvcc
def test_the_choice_is_the_same_each_time_and_takes_all_kinds_in_turn() -> None:
    text = load(FAULTS / "tilelang_2613.cu", arch="sm_90a", defines={"FIXED": ""}).module.text
    lines = range(text.count("\n") + 1)
    chosen = choose_ptx_mutants(text, lines, 6)
    assert chosen == choose_ptx_mutants(text, lines, 6) and len(chosen) == 6
    assert {m.kind for m in chosen} == {m.kind for m in list_ptx_mutants(text)} <= set(KINDS)
    assert not choose_ptx_mutants(text, (), 6)


@pytest.mark.nvcc
def test_mutants_of_a_small_ring_are_refused() -> None:
    module = load(FAULTS / "flashinfer_2623.cu", arch="sm_90a", defines={"FIXED": ""})
    text, x = module.module.text, torch.randn(6, 64, generator=torch.Generator().manual_seed(0))
    expected = (x.reshape(2, 3, 64) * torch.tensor([[[2.0], [2], [1]]])).sum(1)

    def survives(changed: str) -> bool:
        for schedule in ("together", "last", "random:1", "random:2"):
            y = torch.zeros(2, 64)
            try:
                report = LoadedModule(read_module(changed), module.path)["flashinfer_2623"](
                    1, 96, x, torch.full((6, 64), 2.0), y, 2, 3, schedule=schedule, raises=False
                )
            except CuirError:
                return False
            if report.findings or not torch.allclose(y, expected):
                return False
        return True

    run = KernelRun(module["flashinfer_2623"], KernelCall(1, 96, x, torch.full((6, 64), 2.0), torch.zeros(2, 64), 2, 3))
    run.execute()
    ran = {run.program.instructions[i][0].line for i in run.list_ran()}
    assert survives(text)
    mutants = choose_ptx_mutants(text, ran, 20)
    assert len(mutants) == 20
    survivors = [m.old for m in mutants if survives(m.apply(text))]
    assert survivors == ["fence.mbarrier_init.release.cluster;"]  # no other CTA uses the barriers, and __syncthreads orders their own
