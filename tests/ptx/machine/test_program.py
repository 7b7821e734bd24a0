"""Programs written by hand: forms that nvcc seldom writes, and errors that name an instruction and its line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from cuir.ptx.launch import LoadedModule, Report
from cuir.ptx.machine import lane_machine
from cuir.ptx.module import read_module
from cuir.text.diagnostics import CuirError

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"


def run(body: str, *tensors: torch.Tensor, grid: int = 1, block: int = 32, before: str = "", schedule: str = "together") -> Report:
    """Run a kernel with pointers p0, p1, ... to tensors, in the registers %p0, %p1, ..."""
    parameters = ",\n".join(f".param .u64 p{i}" for i in range(len(tensors)))
    loads = "\n".join(f"ld.param.u64 %p{i}, [p{i}];" for i in range(len(tensors)))
    registers = ".reg .pred %q<9>;\n.reg .b16 %h<9>;\n.reg .b32 %r<30>;\n.reg .b64 %d<20>;\n.reg .b64 %p<9>;\n.reg .f32 %f<9>;\n"
    text = f"{HEAD}{before}\n.visible .entry k(\n{parameters}\n)\n{{\n{registers}{loads}\nmov.u32 %r0, %tid.x;\nmul.wide.u32 %d0, %r0, 4;\n{body}\nret;\n}}\n"
    module = LoadedModule(read_module(text), Path("k.ptx"))
    return module["k"](grid, block, *tensors, schedule=schedule, raises=False)


def store(value: str, pointer: int = 0) -> str:
    return f"add.u64 %d1, %p{pointer}, %d0;\nst.global.b32 [%d1], {value};"


def zeros(count: int = 32) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int32)


def test_an_unknown_instruction_is_named_with_its_line() -> None:
    with pytest.raises(CuirError, match=r"line \d+ of the PTX of `k`: .*`tcgen05.fence`"):
        run("tcgen05.fence;", zeros())
    with pytest.raises(CuirError, match=r"`\.odd` of `add\.odd\.s32`"):
        run("add.odd.s32 %r1, %r0, %r0;", zeros())
    with pytest.raises(CuirError, match="%pm0"):
        run("mov.u32 %r1, %pm0;", zeros())


def test_lanes_that_diverge_in_loops_meet_again() -> None:
    y = zeros()
    body = "mov.u32 %r1, 0;\nmov.u32 %r2, %r0;\nLOOP:\nsetp.eq.u32 %q1, %r2, 0;\n@%q1 bra OUT;\nadd.u32 %r1, %r1, %r2;\nsub.u32 %r2, %r2, 1;\nbra LOOP;\nOUT:\n"
    body += "shfl.sync.idx.b32 %r3, %r1, 31, 31, -1;\nadd.u32 %r1, %r1, %r3;\n" + store("%r1")
    for schedule in ("together", "first", "random:1"):
        assert not run(body, y, schedule=schedule).findings
        assert y.tolist() == [n * (n + 1) // 2 + 31 * 16 for n in range(32)]


def test_predicated_instructions_keep_old_values() -> None:
    y, x = zeros(), torch.arange(32, dtype=torch.int32)
    body = "and.b32 %r1, %r0, 1;\nsetp.eq.u32 %q1, %r1, 0;\nmov.u32 %r2, 7;\n@%q1 add.u32 %r2, %r0, 100;\nadd.u64 %d2, %p1, %d0;\n@!%q1 ld.global.u32 %r2, [%d2];\n"
    run(body + store("%r2"), y, x)
    assert y.tolist() == [n + 100 if n % 2 == 0 else n for n in range(32)]


def test_moves_pack_and_unpack() -> None:
    y = zeros()
    body = "mov.b64 %d2, {%r0, 5};\nmov.b64 {%r1, %r2}, %d2;\nmov.b32 {%h1, %h2}, %r1;\nmov.b32 %r3, {%h2, %h1};\nadd.u32 %r3, %r3, %r2;\n"
    run(body + store("%r3"), y)
    assert y.tolist() == [(n << 16) + 5 for n in range(32)]


def test_generic_addresses_reach_each_space_and_are_told_apart() -> None:
    y = zeros()
    before = ".shared .align 4 .b8 s[128];\n"
    body = "mov.u32 %r1, s;\ncvt.u64.u32 %d2, %r1;\ncvta.shared.u64 %d2, %d2;\nadd.u64 %d2, %d2, %d0;\nst.u32 [%d2], %r0;\nadd.u64 %d3, %p0, %d0;\nsetp.lt.u32 %q2, %r0, 16;\n"
    body += "st.u32 [%d3], 50;\nselp.b64 %d4, %d2, %d3, %q2;\nld.u32 %r2, [%d4];\nisspacep.shared %q1, %d4;\n@%q1 add.u32 %r2, %r2, 1000;\n"
    report = run(body + store("%r2"), y, before=before)
    assert not report.findings and y.tolist() == [n + 1000 if n < 16 else 50 for n in range(32)]


ATOMICS = [
    ("add.u32", lambda v: sum(v) % 2**32),
    ("max.s32", lambda v: max(v)),
    ("min.u32", lambda v: min(v)),
    ("or.b32", lambda v: int(np.bitwise_or.reduce(v))),
    ("exch.b32", None),
    ("inc.u32", None),
]


@pytest.mark.parametrize(("form", "total"), ATOMICS, ids=[a[0] for a in ATOMICS])
def test_atomics_return_values_of_one_order(form: str, total: object) -> None:
    cell, y = zeros(1), zeros(64)
    body = f"atom.global.{form} %r1, [%p0], %r0;\nadd.u64 %d1, %p1, %d0;\nst.global.u32 [%d1], %r1;"
    report = run(body, cell, y, block=64)
    assert not report.findings and y[0] == 0
    if total is not None:
        assert int(cell[0]) == total(list(range(64)))  # type: ignore[operator]
    if form == "add.u32":
        assert sorted(y.tolist()) == [n * (n - 1) // 2 for n in range(64)]
    if form == "exch.b32":
        assert sorted([*y.tolist(), int(cell[0])]) == [0, *range(64)]


def test_a_lock_by_compare_and_swap_is_no_deadlock_and_no_race() -> None:
    lock, total = zeros(1), zeros(1)
    body = "TRY:\natom.acquire.gpu.global.cas.b32 %r1, [%p0], 0, 1;\nsetp.ne.u32 %q1, %r1, 0;\n@%q1 bra TRY;\nld.global.u32 %r2, [%p1];\nadd.u32 %r2, %r2, 1;\nst.global.u32 [%p1], %r2;\natom.release.gpu.global.exch.b32 %r3, [%p0], 0;\n"
    for schedule in ("together", "last", "random:5"):
        lock.zero_(), total.zero_()
        report = run(body, lock, total, grid=3, schedule=schedule)
        assert not report.findings and int(total[0]) == 96, schedule


def test_the_lock_without_its_acquire_is_a_race() -> None:
    lock, total = zeros(1), zeros(1)
    body = "TRY:\natom.relaxed.gpu.global.cas.b32 %r1, [%p0], 0, 1;\nsetp.ne.u32 %q1, %r1, 0;\n@%q1 bra TRY;\nld.global.u32 %r2, [%p1];\nadd.u32 %r2, %r2, 1;\nst.global.u32 [%p1], %r2;\natom.release.gpu.global.exch.b32 %r3, [%p0], 0;\n"
    assert {d.code for d in run(body, lock, total).findings} == {"R402"}


def test_named_barriers_let_producers_go_on() -> None:
    y = zeros(64)
    before = ".shared .align 4 .b8 s[128];\n"
    body = "mov.u32 %r1, s;\nand.b32 %r2, %r0, 31;\nshl.b32 %r3, %r2, 2;\nadd.u32 %r1, %r1, %r3;\nsetp.ge.u32 %q1, %r0, 32;\n@%q1 bra TAKE;\nst.shared.u32 [%r1], %r2;\nbar.arrive 1, 64;\nret;\nTAKE:\nbar.sync 1, 64;\nld.shared.u32 %r4, [%r1];\n"
    for schedule in ("together", "first", "last", "random:2"):
        report = run(body + store("%r4"), y, block=64, before=before, schedule=schedule)
        assert not report.findings and y.tolist() == [0] * 32 + list(range(32))
    wrong = run(body.replace("bar.sync 1, 64;", "") + store("%r4"), y, block=64, before=before)
    assert {d.code for d in wrong.findings} >= {"R401"}


def test_reductions_at_barriers() -> None:
    y = zeros(64)
    body = "setp.lt.u32 %q1, %r0, 40;\nbar.red.popc.u32 %r1, 0, %q1;\nbar.red.and.pred %q2, 0, %q1;\nbar.red.or.pred %q3, 0, %q1;\nselp.b32 %r2, 1000, 0, %q2;\nselp.b32 %r3, 100, 0, %q3;\nadd.u32 %r1, %r1, %r2;\nadd.u32 %r1, %r1, %r3;\n"
    run(body + store("%r1"), y, block=64)
    assert y.tolist() == [140] * 64


def test_threads_that_end_do_not_hold_a_barrier() -> None:
    y = zeros(64)
    report = run("setp.ge.u32 %q1, %r0, 32;\n@%q1 ret;\nbar.sync 0;\n" + store("1"), y, block=64)
    assert not report.findings and y.sum() == 32


def test_an_mbarrier_that_is_not_initialised_is_found() -> None:
    report = run("mov.u32 %r1, s;\nmbarrier.arrive.shared.b64 _, [%r1];", zeros(), before=".shared .align 8 .b8 s[8];\n")
    assert [d.code for d in report.findings] == ["M401", "M401"] and "mbarrier" in report.findings[1].message


def test_a_barrier_that_lacks_an_arrival_is_a_deadlock() -> None:
    body = "mov.u32 %r1, s;\nsetp.ne.u32 %q1, %r0, 0;\n@%q1 bra WAIT;\nmbarrier.init.shared.b64 [%r1], 33;\nWAIT:\nbar.sync 0;\nmbarrier.arrive.shared.b64 _, [%r1];\nAGAIN:\nmbarrier.try_wait.parity.shared.b64 %q2, [%r1], 0;\n@!%q2 bra AGAIN;\n"
    report = run(body, zeros(), before=".shared .align 8 .b8 s[8];\n")
    assert [d.code for d in report.findings] == ["D401"]
    assert not run(body.replace("33", "32"), zeros(), before=".shared .align 8 .b8 s[8];\n").findings


def test_lanes_of_one_store_that_meet_race_unless_they_agree() -> None:
    assert not run("st.global.u32 [%p0], 5;", zeros(1)).findings
    assert {d.code for d in run("st.global.u32 [%p0], %r0;", zeros(1)).findings} == {"R402"}


def test_addresses_must_be_aligned() -> None:
    report = run("ld.global.u64 %d2, [%p0+4];", zeros())
    assert [d.code for d in report.findings] == ["M402"] and "multiple of 8" in report.findings[0].message


def test_carries_and_wide_sums() -> None:
    y = zeros()
    body = "mov.u32 %r1, -1;\nadd.cc.u32 %r2, %r1, %r0;\naddc.u32 %r3, 5, 6;\n"
    run(body + store("%r3"), y)
    assert y.tolist() == [11] + [12] * 31


def test_a_loop_that_never_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_machine, "MOST_STEPS", 300)
    report = run("AGAIN:\nld.volatile.global.u32 %r1, [%p0];\nsetp.eq.u32 %q1, %r1, 0;\n@%q1 bra AGAIN;", zeros())
    assert [d.code for d in report.findings] == ["D402"]


@pytest.mark.parametrize("op", ["trap", "brkpt"])
def test_a_trap_ends_the_run(op: str) -> None:
    assert not run(f"setp.gt.u32 %q1, %r0, 99;\n@%q1 {op};", zeros()).findings
    report = run(f"setp.eq.u32 %q1, %r0, 7;\n@%q1 {op};", zeros())
    assert [d.code for d in report.findings] == ["D402"] and f"executes `{op}`" in report.findings[0].message


def test_an_assertion_that_fails_ends_the_run() -> None:
    declared = ".extern .func __assertfail (.param .b64 __assertfail_param_0);\n"
    call = "{{\n.param .b64 param0;\nst.param.b64 [param0+0], 0;\ncall.uni __assertfail, (param0);\n}}\nPASSED:\n"
    body = "setp.ne.u32 %q1, %r0, {0};\n@%q1 bra PASSED;\n" + call
    assert not run(body.format(99), zeros(), before=declared).findings
    report = run(body.format(7), zeros(), before=declared)
    assert [d.code for d in report.findings] == ["D402"] and "fails an `assert`" in report.findings[0].message


def test_a_flag_orders_two_ctas_under_every_schedule() -> None:
    body = "mov.u32 %r1, %ctaid.x;\nsetp.ne.u32 %q1, %r1, 0;\n@%q1 bra READ;\nst.global.u32 [%p1], 42;\nst.release.gpu.global.u32 [%p0], 1;\nret;\n"
    body += "READ:\nld.acquire.gpu.global.u32 %r2, [%p0];\nsetp.eq.u32 %q2, %r2, 0;\n@%q2 bra READ;\nld.global.u32 %r3, [%p1];\nst.global.u32 [%p2], %r3;"
    for schedule in ("together", "first", "last", "random:3"):
        out = zeros(1)
        assert not run(body, zeros(1), zeros(1), out, grid=2, block=1, schedule=schedule).findings and out[0] == 42
    weak = body.replace("ld.acquire.gpu", "ld.relaxed.gpu")
    assert [d.code for d in run(weak, zeros(1), zeros(1), zeros(1), grid=2, block=1).findings] == ["R402"]


def test_requests_for_registers_change_nothing_and_are_checked() -> None:
    y = zeros()
    assert not run("setmaxnreg.dec.sync.aligned.u32 40;\n" + store("%r0"), y).findings and y.tolist() == list(range(32))
    with pytest.raises(CuirError, match="a request for 41 registers"):
        run("setmaxnreg.dec.sync.aligned.u32 41;", zeros())


@pytest.mark.parametrize("schedule", ["together", "first", "random:1"])
def test_threads_that_store_one_value_by_one_instruction_do_not_race(schedule: str) -> None:
    for value, codes in (("%r1", set()), ("%r0", {"R402"})):
        report = run(f"mov.u32 %r1, 7;\nst.global.b32 [%p0], {value};", zeros(), block=64, schedule=schedule)
        assert {d.code for d in report.findings} == codes
    twice = "mov.u32 %r1, 7;\nst.global.b32 [%p0], %r1;\nst.global.b32 [%p0], %r1;"
    assert {d.code for d in run(twice, zeros(), block=64, schedule="first").findings} == {"R402"}
