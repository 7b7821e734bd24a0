"""Instructions that are computed together give the registers that one behind the other gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuir.ptx.isa.instruction_table import UnknownForm, split_opcode
from cuir.ptx.machine import lane_runs
from cuir.ptx.machine.groups import Group, PartRegisters
from cuir.ptx.machine.lane_runs import LaneRun, LaneStep, Uses, bind_meaning, fuse_lane_steps
from cuir.ptx.machine.operands import Reader, RegisterFile
from cuir.ptx.module import FloatNumber

WORDS, BITS, THREADS = 12, 4, 64
FORMS = ("add.f32", "max.f32", "fma.rn.f32", "sub.s32", "cvt.rn.f16x2.f32", "setp.lt.s32", "selp.b32", "ex2.approx.ftz.f32")


def make_reader() -> Reader:
    file = RegisterFile()
    for n in range(WORDS):
        file.add("k", f"%r{n}", "b32")
    for n in range(BITS):
        file.add("k", f"%p{n}", "pred")
    file.add("k", "%h", "b16")
    return Reader("k", file, {})


@st.composite
def draw_instructions(draw: st.DrawFn) -> list[tuple[str, list[object]]]:
    """Draw instructions whose registers often meet, many of one form."""
    forms = draw(st.lists(st.sampled_from(FORMS), min_size=1, max_size=3))
    word, predicate = st.integers(0, WORDS - 1).map("%r{}".format), st.integers(0, BITS - 1).map("%p{}".format)
    found: list[tuple[str, list[object]]] = []
    for _ in range(draw(st.integers(4, 24))):
        form = draw(st.sampled_from(forms))
        number = st.just(FloatNumber(0x3FC00000, 32)) if "f32" in form else st.integers(0, 3)
        source = word | number
        if form == "setp.lt.s32":
            found.append((form, [draw(predicate), draw(word), draw(source)]))
        elif form == "selp.b32":
            found.append((form, [draw(word), draw(source), draw(source), draw(predicate)]))
        else:
            count = {"fma": 3, "ex2": 1}.get(form[:3], 2)
            found.append((form, [draw(word), *(draw(source) for _ in range(count))]))
    return found


def bind(instructions: list[tuple[str, list[object]]]) -> tuple[list[LaneStep], list[Uses]]:
    steps, uses = [], []
    base = make_reader()
    for form, operands in instructions:
        reader = Reader("k", base.file, {})
        step = bind_meaning(split_opcode(form), operands, reader)  # type: ignore[arg-type]
        assert isinstance(step, LaneStep)
        steps.append(step)
        uses.append((frozenset(reader.reads), frozenset(reader.writes)))
    return steps, uses


def make_group(seed: int, part: bool) -> Group:
    """Make a group with numbers of every kind in its registers: zeros of both signs, NaN, infinities."""
    draw = np.random.default_rng(seed)
    numbers = draw.choice([0.0, -0.0, 1.5, -3.0, np.inf, -np.inf, np.nan, 1e-39], (WORDS, THREADS)).astype(np.float32)
    words = np.where(draw.random((WORDS, THREADS)) < 0.5, numbers.view(np.uint32), draw.integers(0, 1 << 32, (WORDS, THREADS), np.uint32))
    whole = [*words, *(draw.random((BITS, THREADS)) < 0.5), np.zeros(THREADS, np.uint16)]
    slots = np.arange(THREADS)[draw.random(THREADS) < 0.7] if part else np.arange(THREADS)
    return Group(None, slots, PartRegisters(whole, slots) if part else list(whole))


@settings(max_examples=80, deadline=None)
@given(draw_instructions(), st.integers(0, 99), st.booleans(), st.frozensets(st.integers(0, WORDS + BITS - 1)))
def test_a_run_gives_what_its_instructions_give_in_turn(
    instructions: list[tuple[str, list[object]]], seed: int, part: bool, needed: frozenset[int]
) -> None:
    steps, uses = bind(instructions)
    one, other = make_group(seed, part), make_group(seed, part)
    with np.errstate(all="ignore"):
        for step in fuse_lane_steps(steps, uses, needed):
            step(one)
        for s in steps:
            s(other)
    for n in needed:
        assert np.array_equal(one.regs[n], other.regs[n]), n


def test_alike_instructions_are_one_call_and_keep_what_others_read() -> None:
    chain: list[tuple[str, list[object]]] = [("add.f32", [f"%r{i + 4}", f"%r{i}", "%r0"]) for i in range(4)]
    chain += [("ex2.approx.ftz.f32", [f"%r{i + 8}", f"%r{i + 4}"]) for i in range(4)]
    steps, uses = bind(chain)
    (run,) = fuse_lane_steps(steps, uses, frozenset({4, 8, 9, 10, 11}))
    assert isinstance(run, LaneRun) and run.count == 2
    first, second = run.items
    assert isinstance(first, lane_runs.Bundle) and isinstance(second, lane_runs.Bundle)
    assert first.kept == [(0, 4)] and [r for _, r in second.kept] == [8, 9, 10, 11]
    assert second.columns == [[(0, 0, 4)]]  # all rows of the first bundle


def test_wide_groups_and_few_instructions_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    instructions: list[tuple[str, list[object]]] = [("add.f32", [f"%r{i + 4}", f"%r{i}", "%r0"]) for i in range(4)]
    steps, uses = bind(instructions)
    assert fuse_lane_steps(steps[:3], uses[:3], frozenset()) == [s.run for s in steps[:3]]
    (run,) = fuse_lane_steps(steps, uses, frozenset())
    monkeypatch.setattr(lane_runs, "WIDEST", THREADS - 1)
    one, other = make_group(0, False), make_group(0, False)
    with np.errstate(all="ignore"):
        run(one)
        for s in steps:
            s(other)
    assert all(np.array_equal(one.regs[n], other.regs[n]) for n in range(WORDS))


def test_registers_of_another_width_are_read_one_by_one() -> None:
    reader = make_reader()
    step = bind_meaning(split_opcode("cvt.rn.f16.f32"), ["%h", "%r0"], reader)
    assert isinstance(step, LaneStep) and step.key is not None
    narrow = bind_meaning(split_opcode("cvt.u32.u16"), ["%r1", "%r0"], reader)
    assert isinstance(narrow, LaneStep) and narrow.key is None
    with pytest.raises(UnknownForm):
        bind_meaning(split_opcode("add.f32"), ["%r1", "%r0"], reader)
