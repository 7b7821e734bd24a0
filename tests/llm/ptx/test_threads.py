"""Values of registers in each thread, and the threads of each block: elections, loops, rings, shuffles."""

from __future__ import annotations

import pytest

from llm.ptx.threads import Threads
from tests.llm.ptx.kernels import entry

RING = "mov.u32 %i, 0;\nmov.u32 %s, 0;\nld.param.u32 %n, [p];\n$T:\nadd.s32 %a, %s, 0;\nst.shared.u32 [%a], %i;\n{next}\nadd.s32 %i, %i, 1;\nsetp.lt.s32 %p, %i, %n;\n@%p bra $T;\nret;"


def solve(body: str) -> Threads:
    """A kernel of 128 threads, with what it stores where, and joins, worked out."""
    threads = Threads(entry(body), (128, 1, 1))
    threads.solve([o for x in threads.instructions if x.op.startswith(("st.", "bar.")) for o in x.operands])
    return threads


def find_index(threads: Threads, op: str) -> int:
    return next(i for i, x in enumerate(threads.instructions) if x.op == op)


def values(threads: Threads, op: str, operand: int = 0) -> tuple[dict[int, int], bool]:
    """Return each value of an instruction's operand with its number of threads, and whether others are possible."""
    i = find_index(threads, op)
    result, second = threads.of_threads(i, threads.instructions[i].operands[operand])
    return {int(v): int(m.sum()) for v, m in result}, second


@pytest.mark.parametrize(
    ("condition", "threads"),
    [
        ("and.b32 %a, %t, 31;\nsetp.ne.s32 %p, %a, 0;", 4),  # one lane of each warp
        ("shr.u32 %a, %t, 5;\nsetp.ne.s32 %p, %a, 2;", 32),  # warp 2
        ("setp.ge.u32 %p, %t, 64;", 64),
        ("shr.u32 %a, %t, 5;\nshfl.sync.idx.b32 %b|%q, %a, 0, 31, -1;\nsetp.ne.s32 %p, %b, 3;", 32),
        ("elect.sync %a|%e, -1;\nnot.pred %p, %e;", 4),
        ("ld.param.u32 %a, [p];\nsetp.ne.s32 %p, %a, 0;", 128),  # data: either way
        ("mov.u32 %a, 1;\nsetp.eq.s32 %p, %a, 1;", 0),
    ],
)
def test_the_threads_that_a_branch_lets_on(condition: str, threads: int) -> None:
    result = solve(f"mov.u32 %t, %tid.x;\n{condition}\n@%p bra $E;\nbrkpt;\n$E:\nret;")
    assert int(result.at(find_index(result, "brkpt")).sum()) == threads


@pytest.mark.parametrize("stages", [2, 3, 4, 7])
@pytest.mark.parametrize(
    "next_stage",
    [
        "add.s32 %u, %s, 1;\nsetp.eq.s32 %w, %u, {n};\nselp.b32 %s, 0, %u, %w;",
        "add.s32 %s, %s, 1;\nsetp.ne.s32 %w, %s, {n};\n@%w bra $K;\nmov.u32 %s, 0;\n$K:",
        "add.s32 %u, %i, 1;\nrem.u32 %s, %u, {n};",
    ],
)
def test_a_stage_goes_round(stages: int, next_stage: str) -> None:
    result = solve(RING.replace("{next}", next_stage.replace("{n}", str(stages))))
    assert sorted(values(result, "st.shared.u32")[0]) == list(range(stages))


def test_a_loop_of_constants_ends() -> None:
    """And what steps beside its counter ends with it."""
    body = "mov.u32 %i, 0;\nmov.u32 %a, 1024;\n$T:\nst.shared.u32 [%a], 0;\nadd.s32 %a, %a, 16;\nadd.s32 %i, %i, 1;\nsetp.lt.s32 %p, %i, 5;\n@%p bra $T;\nmembar.cta;\nret;"
    result = solve(body)
    assert values(result, "st.shared.u32") == ({1024 + 16 * i: 128 for i in range(5)}, False)
    assert result.at(find_index(result, "membar.cta")).all()


def test_the_remainder_by_a_product_with_an_inverse_has_few_values() -> None:
    body = "ld.param.u32 %x, [p];\nmul.hi.u32 %q, %x, -1431655765;\nshr.u32 %q, %q, 1;\nmul.lo.s32 %m, %q, 3;\nsub.s32 %r, %x, %m;\nst.shared.u32 [%r], 0;\nret;"
    assert sorted(values(solve(body), "st.shared.u32")[0]) == [0, 1, 2]


def test_a_register_of_two_roles_is_each_ones_own() -> None:
    body = "mov.u32 %t, %tid.x;\nsetp.lt.u32 %p, %t, 32;\n@%p bra $L;\nmov.u32 %b, 9;\nbra $E;\n$L:\nmov.u32 %b, 8;\n$E:\nbar.sync %b, 64;\nret;"
    assert values(solve(body), "bar.sync") == ({8: 32, 9: 96}, False)


def test_an_endless_counter_lets_its_loop_end() -> None:
    body = "mov.u32 %i, 0;\n$T:\nadd.s32 %i, %i, 1;\nsetp.lt.s32 %p, %i, 100000;\n@%p bra $T;\nmembar.cta;\nret;"
    result = solve(body)
    assert result.at(find_index(result, "membar.cta")).all()
