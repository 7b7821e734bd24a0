"""Mutants: other programs than the original that parse and print, of every class, with arguments for the harmless ones that hold.

A fence for tensors that becomes one for shared memory alone.
"""

from __future__ import annotations

import functools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import corpus
from cuir import CuirError, parse, show
from cuir.cli.command_inputs import read_program
from cuir.mutation import FAULTS, Mutant, choose_mutants, mutants
from cuir.mutation.mutation_sites import Places, list_sites, replace_node
from cuir.syntax.nodes import ExprStmt, Func, Name, Program, Return
from cuir.syntax.walk import walk
from tests.explore.programs import check_text, fault
from tests.gpu.test_exchange import EXCHANGE, arguments
from tests.strategies.selection import examples

EXPERT = "flash_fwd_sm90"


@functools.cache
def of(name: str) -> tuple[Program, list[Mutant]]:
    program = read_program(name)
    return program, mutants(program, next(iter(program.kernels())))


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", [EXPERT, "flash_fwd_sm80", "flash_fwd_warps", "gemm"])
def test_mutants_print_and_parse_and_differ(name: str) -> None:
    program, result = of(name)
    original = show(program)
    lines = original.count("\n")
    assert len({m.id for m in result}) == len({m.text for m in result}) == len(result) > 40
    assert all(m.program != program for m in result)
    assert all(isinstance(f.body[-1], Return) for m in result for f in m.program.items if isinstance(f, Func))
    for m in choose_mutants(result, limit=20):
        assert m.diff(original).count("\n") >= 3 and m.description and m.fault in FAULTS
        assert 1 <= m.place[0] <= lines + 40 and m.place[1] >= 1
    assert show(program) == original


def test_every_class_is_there_for_the_expert_kernel() -> None:
    _, result = of(EXPERT)
    counts = Counter(m.fault for m in result if not m.equivalent)
    assert set(counts) == set(FAULTS) and min(counts.values()) >= 3


@pytest.mark.parametrize(
    ("operator", "fault", "description"),
    [
        ("wait at the end", 1, "k_full[s].wait(phase)"),
        ("some workers wait", 10, "v_full[u].wait(uphase)` only if `wg > 0"),
        ("some workers fence", 5, "fence_async()` only if `wg == 0"),
        ("wait in the first trip", 10, "k_empty[s].wait(phase ^ 1)` only if `i == 0"),
        ("rescaled by the inverse", 11, "acc = acc / alpha"),
        ("arguments exchanged", 11, "keep(b, h, k, q)"),
    ],
)
def test_operators_make_what_they_say(operator: str, fault: int, description: str) -> None:
    some = [m for m in of("flash_fwd")[1] if m.operator == operator and description in m.description]
    assert some and all(m.fault == fault and not m.equivalent for m in some)


def test_barriers_that_are_given_to_a_function_are_seen() -> None:
    text = show(of("flash_fwd")[0])
    line = "                v_empty[u].arrive()\n                vi += 1\n            acc, lse"
    assert line in text
    func = "@func\ndef release(done, n):\n    done.arrive()\n    return n + 1\n\n@kernel"
    program = parse(text.replace(line, "                vi = release(v_empty[u], vi)\n            acc, lse").replace("@kernel", func))
    dropped = [m for m in mutants(program) if m.operator == "one worker arrives" or "done.arrive()" in m.description]
    assert Places(program, program.kernels()["flash_fwd"]).passed == {"done": "mbarrier"}
    assert any(m.description == "`done.arrive()` twice" and m.fault == 6 for m in dropped)


def test_a_place_is_that_of_the_faulty_node() -> None:
    program, result = of(EXPERT)
    lines = corpus.kernels()[EXPERT].read_text(encoding="utf-8").split("\n")
    fences = [m for m in result if m.operator == "drop fence_async"]
    assert len(fences) == 1 and lines[fences[0].place[0] - 1][fences[0].place[1] - 1 :].startswith("fence_async()")
    assert [line for line in fences[0].diff(show(program)).split("\n")[2:] if line.startswith(("-", "+"))] == ["-        fence_async()"]


def test_only_the_named_kernel_is_changed() -> None:
    program = read_program("flash_bwd")
    names = list(program.kernels())
    assert len(names) > 1
    for m in mutants(program, names[-1]):
        assert all(m.program.kernels()[second] == program.kernels()[second] for second in names[:-1])
    with pytest.raises(CuirError) as caught:
        mutants(program)
    assert caught.value.diagnostics[0].code == "N109"


# ---- the choice
def test_a_choice_is_the_same_for_a_seed_and_of_all_classes() -> None:
    _, result = of("flash_fwd")
    some = choose_mutants(result, limit=45, seed=3)
    assert (
        [m.id for m in some]
        == [m.id for m in choose_mutants(result, limit=45, seed=3)]
        != [m.id for m in choose_mutants(result, limit=45, seed=4)]
    )
    assert Counter(m.fault for m in some) == dict.fromkeys(FAULTS, 3)
    assert {m.id for m in choose_mutants(result)} == {m.id for m in result}
    assert {m.fault for m in choose_mutants(result, [5, 8])} == {5, 8} and not choose_mutants(result, [5], limit=0)


@examples(0.5)
@given(st.data())
def test_edits_stay_in_their_place(data: st.DataObject) -> None:
    program = of("gemm")[0]
    results = list(list_sites(program))
    assert [s.node for s in results] == list(walk(program))
    site = data.draw(st.sampled_from(results[1:]))
    assert replace_node(program, site.path, site.node) == program
    if isinstance(site.node, Name):
        changed = replace_node(program, site.path, Name("other_name"))
        before, after = [n for n in walk(program) if isinstance(n, Name)], [n for n in walk(changed) if isinstance(n, Name)]
        assert [b for b, a in zip(before, after) if a != b] == [site.node] and len(before) == len(after)
    if isinstance(site.node, ExprStmt) and len(getattr(site.parents[-1], site.path[-1][0])) > 1:
        assert sum(1 for _ in walk(replace_node(program, site.path, ()))) == sum(1 for _ in walk(program)) - sum(1 for _ in walk(site.node))


# ---- harmless ones
def test_harmless_mutants_carry_their_argument() -> None:
    program, result = of("flash_fwd")
    harmless = {m.description: m.equivalent for m in result if m.equivalent}
    assert "nothing is left to wait for" in str(harmless["`store_wait()` twice"])
    assert "retires all products" in str(harmless.get("`mma_wait(S)` waits for `acc`"))
    assert any("may land before the expect" in str(why) for why in harmless.values())
    assert any("registers alone" in str(why) for why in harmless.values())
    places = Places(program, program.kernels()["flash_fwd"])
    assert {"k_full", "v_full", "q_full"} == places.filled and places.parities == {"ring"}
    assert not any(m.equivalent for m in result if m.operator.startswith(("drop", "parity", "wrong bytes", "one arrival")))


def test_a_fence_of_shared_memory_alone() -> None:
    results = [m for m in mutants(parse(EXCHANGE, "k.cuir"), "exchange") if m.operator == "fence of shared memory alone"]
    assert [m.fault for m in results] == [5] and "fence_async()" in results[0].text and not results[0].equivalent
    dims = dict(zip("U", arguments(1, "cpu")["X"].shape))
    assert fault(check_text(results[0].text), "in_order", dims) == "R403"
    assert fault(check_text(EXCHANGE), "in_order", dims) == ""
