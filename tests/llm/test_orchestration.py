"""A program's orchestration beside its CUDA source's: what agrees is silent, and each single fault, on either side, is found by name."""

from __future__ import annotations

import functools

import pytest

import corpus
from cuir import check, parse
from cuir.syntax.types import DTYPES
from cuir.text.diagnostics import Diagnostic
from llm.cuda_source import annotate
from llm.orchestration import Orchestration, compare, words
from llm.orchestration_of_program import of_program
from llm.orchestration_of_source import of_source

PROGRAM = {"flash_fwd_sm90": "flash_fwd", "flash_fwd_sm80": "flash_fwd_warps"}


@functools.cache
def program_text(name: str) -> str:
    return corpus.programs()[PROGRAM[name]].read_text(encoding="utf-8")


def differences(
    name: str, source: tuple[str, str] = ("", ""), program: tuple[str, str] = ("", ""), dim: int = 128, **consts: int
) -> tuple[Diagnostic, ...]:
    """List the differences after a text is replaced in the source, or in the program."""
    cuda = corpus.cuda()[name].read_text(encoding="utf-8")
    text = program_text(name)
    assert source[0] in cuda and program[0] in text
    changed = text.replace(*program) if program[0] else text
    checked = check(parse(changed, "lifted.cuir"), None, {"T": DTYPES["f16"], "D": dim, **consts})
    facts = of_source(annotate(cuda.replace(*source) if source[0] else cuda, f"{name}.cu", {"HEAD_DIM": dim}))
    return compare(facts, of_program(checked), checked.origin.span)


@pytest.mark.parametrize("dim", [64, 128])
def test_equal_orchestrations_give_no_difference(dim: int) -> None:
    assert differences("flash_fwd_sm90", dim=dim) == ()


def test_other_tiles_and_other_overlap_are_all_that_differs_for_sm80() -> None:
    result = differences("flash_fwd_sm80")
    assert [(d.code, d.message.split(" must")[0]) for d in result[:1]] == [("O108", "shared array `sQ` (the source's `q`)")]
    assert [d.code for d in result] == ["O108", "O109"]
    assert [d.code for d in differences("flash_fwd_sm80", BM=64)] == ["O109"]


FAULTS_OF_THE_PROGRAM = [
    (
        "O104",
        "k_empty",
        (
            "k_full, k_empty = mbarrier(1, stages=STAGES), mbarrier(WG, stages=STAGES)",
            "k_full, k_empty = mbarrier(1, stages=STAGES), mbarrier(1, stages=STAGES)",
        ),
    ),
    ("O104", "q_full", ("q_full, q_empty = mbarrier(1)", "q_full, q_empty = mbarrier(2)")),
    ("O104", "turn", ("named_barrier(2, stages=WG)", "named_barrier(1, stages=WG)")),
    ("O105", "turn", ("named_barrier(2, stages=WG)", "named_barrier(2, stages=3)")),
    ("O110", "registers=240", ("registers=240", "registers=232")),
    ("O101", "role `load` must have 1 warp", ('role("load", warps=1', 'role("load", warps=2')),
    ("O108", "65,536", ("sQ, sO = shared(T, [BM, D]), shared(T, [BM, D])", "sQ, sO = shared(T, [BM, D]), shared(T, [2 * BM, D])")),
    ("O109", "at most 0", ("                    mma_wait(S)                              # PV", "                    mma_wait(S, acc)  #")),
    ("O109", "`bulk store` in flight, of the program at most 1", ("store_wait()", "store_wait(1)")),
    (
        "O107",
        "stores by the copy engine",
        (
            "store_async(sO[wg * 64 : wg * 64 + 64], O[b, h, m * BM + wg * 64 : m * BM + wg * 64 + 64, :])",
            "store(O[b, h, m * BM + wg * 64 : m * BM + wg * 64 + 64, :], cast(acc, T))",
        ),
    ),
    ("O103", "barrier `spare`, which the source lacks", ("    turn = named", "    spare = mbarrier(1)\n    turn = named")),
]


@pytest.mark.sweep(4)
@pytest.mark.parametrize(("code", "name", "change"), FAULTS_OF_THE_PROGRAM)
def test_one_fault_of_the_program_is_found_by_name(code: str, name: str, change: tuple[str, str]) -> None:
    result = differences("flash_fwd_sm90", program=change)
    assert [d.code for d in result] == [code] and name in result[0].message
    assert result[0].span is not None and result[0].span.source.name == "lifted.cuir"


FAULTS_OF_THE_SOURCE = [
    ("O104", "k_empty", "init", ("Barrier::init(&sh.k_empty[s], 4 * CONSUMERS)", "Barrier::init(&sh.k_empty[s], 4)")),
    ("O104", "turn", "sync(128", ("NamedBarrier::sync(256, TURN + w)", "NamedBarrier::sync(128, TURN + w)")),
    ("O110", "232", "reg_alloc", ("warpgroup_reg_alloc<240>", "warpgroup_reg_alloc<232>")),
    ("O109", "leaves 2", "wait<2>", ("warpgroup_wait<1>", "warpgroup_wait<2>")),
    ("O106", "load", "q_empty", ("Barrier::wait(&sh.q_empty, qi % 2 ^ 1)", "")),
]


@pytest.mark.parametrize(("code", "name", "line", "change"), FAULTS_OF_THE_SOURCE)
def test_one_fault_of_the_source_is_found_with_its_line(code: str, name: str, line: str, change: tuple[str, str]) -> None:
    result = differences("flash_fwd_sm90", source=change)
    assert code in [d.code for d in result] and any(name in d.message for d in result)
    places = [n.span for d in result for n in d.notes if n.span is not None]
    assert any(line in p.source.line(p.line) for p in places)


def test_stages_of_the_source_are_compared_with_the_programs() -> None:
    result = differences("flash_fwd_sm90", STAGES=1)
    assert {d.code for d in result} == {"O105", "O108"} and sum(d.code == "O105" for d in result) == 4


def test_a_missing_role_is_named() -> None:
    facts = of_source(annotate(corpus.cuda()["flash_fwd_sm90"].read_text(encoding="utf-8"), "x.cu"))
    checked = check(parse(program_text("flash_fwd_sm90"), "lifted.cuir"), None, {"T": DTYPES["f16"], "D": 128})
    ours = of_program(checked)
    without = Orchestration(ours.roles[1:], ours.barriers, ours.memory, ours.groups)
    assert any(d.code == "O102" and "role load" in d.message for d in compare(facts, without, checked.origin.span))
    assert any(d.code == "O102" and "role load" in d.message for d in compare(without, ours, checked.origin.span))


@pytest.mark.parametrize(("item", "second"), [("sK", "k"), ("kFull", "full_k"), ("smem_q", "sQ"), ("bar_k_empty", "kEmpty")])
def test_names_are_compared_by_their_words(item: str, second: str) -> None:
    assert words(item) == words(second)
