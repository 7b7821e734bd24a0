"""Arguments that a mutant gives the same result: each holds for a mutant of its kind, and for none that is faulty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

import corpus
from cuir import show
from cuir.bridging import attention_consts
from cuir.cli.command_inputs import read_program, read_variant
from cuir.mutation import Job, judge
from cuir.mutation.equivalence_arguments import other_setting
from cuir.mutation.equivalent_mutants import ARGUMENTS, blocks, columns, free_number, never_equal, predicate, why
from cuir.mutation.mutant_comparison import Trial
from cuir.spec.specification import Lengths
from cuir.syntax.nodes import Program
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from cuir.verification import Case, verify

SPEC = read_variant("causal", ())
ORIGINAL = parse(show(read_program("flash_fwd")))
TEXT = show(ORIGINAL)
EXPERT = show(parse(show(read_program("flash_fwd_sm90"))))
GROWS = "most - top > THRESHOLD"
CONSTS = attention_consts("f16", 64) | {"BM": 64, "BN": 64}


def trial(old: str, new: str, text: str = TEXT) -> Trial:
    assert text.count(old) == 1, old
    return small(parse(text), parse(text.replace(old, new)))


def small(program: Program, mutant: Program) -> Trial:
    """With few problems."""
    result = Trial(program, mutant, SPEC, "flash_fwd", CONSTS, "quick")
    growing, many = Case("growing", Lengths(1, 2, 2, 70, 260), "growing"), Case("many", Lengths(1, 3, 1, 137, 140))
    result.problems = [(growing, None), (Case("more queries", Lengths(1, 1, 1, 100, 40)), None), (many, 1)]
    return result


def swap(first: str, second: str) -> Trial:
    """Two neighbouring lines in the other order."""
    lines = TEXT.split("\n")
    results = [i for i in range(len(lines) - 1) if lines[i].strip().startswith(first) and lines[i + 1].strip().startswith(second)]
    i = results[0]
    lines[i], lines[i + 1] = lines[i + 1], lines[i]
    return small(ORIGINAL, parse("\n".join(lines)))


def find_argument(t: Trial) -> str | None:
    """Return the first argument that holds."""
    return next((a.__name__ for a in ARGUMENTS if a(t) is not None), None)


HOLDS = [
    ("blocks", lambda: trial("m * BM + N - M + 1) // BN", "m * BM + N - M) // BN"), "blocks visited"),
    ("predicate", lambda: trial("keep(b, h, q, k) & (k < N)", "keep(b, h, q, k)"), "for every query"),
    ("argue_for_wider_mask", lambda: trial("i < partial", "i <= partial"), "contract `full`"),
    ("more_order", lambda: swap("q_full.wait", "k_full[s].wait"), "only adds order"),
    ("only_speed", lambda: swap("acc = mma_async(P, sV[u], acc)", "turn[(wg + 1) % WG].arrive()"), "without any use of `turn`"),
    ("free_number", lambda: trial("where(total == 0.0, 0.0, 1.0 / total)", "where(total == 0.0, 5.0, 1.0 / total)"), "multiplied by 0"),
    ("other_setting", lambda: trial(GROWS, "most - top > 0", EXPERT), "THRESHOLD=0"),
    (
        "needless_choice",
        lambda: trial("where(some, where(moves, most, top), top)", "where(moves, most, top)", EXPERT),
        "by the definitions",
    ),
    ("needless_choice", lambda: trial("where(some, exp2(top - new), 1.0)", "exp2(top - new)", EXPERT), "`top` is finite"),
    ("same_value", lambda: trial("k = kv_block(b, h, m, 0) * BN", "k = kv_block(b, h, m, qi - qi) * BN"), "whenever it is needed"),
    ("every_schedule", lambda: trial("k_empty[s].wait(phase ^ 1)", "v_empty[s].wait(phase ^ 1)"), "in any schedule"),
]


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "make", "word"), HOLDS, ids=[name for name, _, _ in HOLDS])
def test_an_argument_holds_and_says_why(name: str, make: Callable[[], Trial], word: str) -> None:
    t = make()
    assert find_argument(t) == name and word in str(why(t)) and t.explored.fault is None


ROWS_OF = {  # by kernel: its specification, and what it calls the lengths M and N
    "flash_bwd_dq_sm80": ("causal_query_gradients", "M", "N"),
    "decode_cache_sm75": ("cached_decode", "M", "LENGTHS[b]"),
    "flash_fwd_varlen_sm80": ("causal_packed", "queries(b)", "keys(b)"),
}


def trial_of(name: str, specification: str, old: str, new: str) -> Trial:
    text = corpus.kernels()[name].read_text(encoding="utf-8")
    assert text.count(old) == 1
    kernel = next(k for k in parse(text).kernels() if k.startswith("flash"))
    return Trial(parse(text), parse(text.replace(old, new)), corpus.specification(specification)(), kernel, {"T": F16, "D": 64}, "quick")


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    "name",
    [
        "decode_cache_sm75",
        *(
            pytest.param(name, marks=pytest.mark.thorough("the same argument in another kernel"))
            for name in ROWS_OF
            if name != "decode_cache_sm75"
        ),
    ],
)
@pytest.mark.parametrize(
    ("old", "new", "holds"),
    [
        ("m * BM + {N} - {M} + 1) // BN", "m * BM + {N} - {M}) // BN", True),  # more blocks are masked
        ("cdiv((m + 1) * BM + {N} - {M}, BN)", "cdiv((m + 2) * BM + {N} - {M}, BN)", True),  # more blocks are visited
        ("m * BM + {N} - {M} + 1) // BN", "m * BM + {N} - {M} + 2) // BN", False),
        ("cdiv((m + 1) * BM + {N} - {M}, BN)", "cdiv(m * BM + {N} - {M}, BN)", False),
    ],
)
def test_contracts_argue_for_blocks_of_keys_without_a_variant(name: str, old: str, new: str, holds: bool) -> None:
    """Kernels of gradients, and those that read the lengths of sequences."""
    specification, M, N = ROWS_OF[name]
    t = trial_of(name, specification, old.format(M=M, N=N), new.format(M=M, N=N))
    assert (blocks(t) is not None) == holds and columns(t) is None


@pytest.mark.parametrize(
    ("condition", "holds"),
    [("keep(b, h, q, k)", True), ("keep(b, h, q, k) & (k <= N)", True), ("keep(b, h, q, k) & (k < M)", False), ("k < N", False)],
)
def test_a_condition_is_enumerated_without_a_variant(condition: str, holds: bool) -> None:
    """The lists of blocks do not matter: a causal query sees no key behind the last one."""
    t = trial_of("selected_fwd_sm90", "causal_selected", "keep(b, h, q, k) & (k < N)", condition)
    assert (predicate(t) is not None) == holds


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("old", "new", "holds"),
    [
        ("j * BN + BN - 1 - (N - M)), BM)", "j * BN + BN - (N - M)), BM)", True),  # more blocks are masked
        ("j * BN + BN - 1 - (N - M)), BM)", "j * BN + BN - 2 - (N - M)), BM)", False),
        pytest.param(  # a block of no queries
            "n = max(0, cdiv(M, BM) - first)",
            "n = max(1, cdiv(M, BM) - first)",
            False,
            marks=pytest.mark.thorough("another fault in the blocks"),
        ),
        ("dX = P * (dP - DL[b, h, q])", "dX = P * dP", False),
    ],
)
def test_contracts_argue_for_blocks_of_queries(old: str, new: str, holds: bool) -> None:
    t = trial_of("flash_bwd_sm75", "causal_key_gradients", old, new)
    assert (columns(t) is not None) == holds and blocks(t) is None


@pytest.mark.thorough
def test_a_number_that_no_run_needs_is_asked_for_with_smaller_tiles() -> None:
    """A window of 128 on both sides: in blocks of 128 every row keeps a key of the first, in blocks of 64 some keep none yet."""
    program = parse(show(read_program("global_sliding_window")))
    spec, consts = read_variant("global_sliding_window", ()), attention_consts("f16", 64) | {"L": 128, "R": 128, "g": 16}
    for old, new, holds in (
        ("where(new == -inf, 0.0, new)", "where(new == -inf, 1.0, new)", True),
        ("0.0, 1.0 / total)", "0.0, 1.5 / total)", False),
    ):
        mutant = parse(show(program).replace(old, new))
        assert mutant != program
        t = Trial(program, mutant, spec, "flash_fwd", consts, "quick")
        t.problems = [(Case("window", Lengths(1, 2, 1, 300, 300)), None), (Case("more queries", Lengths(1, 1, 1, 100, 40)), None)]
        reason = free_number(t)
        assert ("with BN=64 they do" in reason) if holds and reason else reason is None and not holds


def test_another_setting_is_one_that_gives_the_same_bits() -> None:
    assert other_setting(trial(GROWS, "top > top", EXPERT)) is None, "the reference is never raised"
    assert (
        other_setting(
            trial(
                "                    if pending:\n                        u, uphase = ring(vi, STAGES)\n                        v_full[u].wait(uphase)\n                        acc",
                "                    if pending:\n                        u, uphase = ring(vi, 2)\n                        v_full[u].wait(uphase)\n                        acc",
                EXPERT,
            )
        )
        is None
    ), "rings tell nothing by the bits"
    assert other_setting(trial("cdiv(M, BM) - 1 - r // size", "cdiv(M, 64) - 1 - r // size", EXPERT)) is None, (
        "the same at this BM, not by another"
    )


def test_a_comparison_of_floats_is_strict_or_not() -> None:
    text = show(read_program("flash_fwd_sm90"))
    t = trial(GROWS, "most - top >= THRESHOLD", text)
    assert "computed floats" in str(never_equal(t))
    assert never_equal(trial("where(total == 0.0, 0.0, 1.0 / total)", "where(total <= 0.0, 0.0, 1.0 / total)", text)) is None


@pytest.mark.thorough
def test_an_arrival_that_nobody_waits_for() -> None:
    """It arrives once more at the end of the kernel."""
    lines = TEXT.rstrip("\n").split("\n")
    text = "\n".join([*lines, "        k_empty[0].arrive()"])
    t = Trial(
        parse(text), parse(text.replace("        k_empty[0].arrive()", "        k_empty[1].arrive()")), SPEC, "flash_fwd", CONSTS, "quick"
    )
    assert find_argument(t) == "nobody_waits" and "nobody waits for the phase" in str(why(t))


FAULTS = [
    ("acc = acc * alpha", lambda: trial("acc = acc * alpha", "acc = acc * alpha * alpha")),
    ("m * BM + N - M + 1) // BN", lambda: trial("m * BM + N - M + 1) // BN", "m * BM + N - M + 2) // BN")),
    ("i < partial", lambda: trial("i < partial", "i + 1 < partial")),
    ("v_empty[s].wait(phase ^ 1)", lambda: trial("v_empty[s].wait(phase ^ 1)", "k_empty[s].wait(phase ^ 1)")),
    ("v_full[u].wait", lambda: swap("v_full[u].wait", "acc = mma_async")),
    ("mma_wait(S)", lambda: swap("mma_wait(S)", "k_empty[s].arrive()")),
]


@pytest.mark.sweep
@pytest.mark.parametrize("make", [make for _, make in FAULTS], ids=[name for name, _ in FAULTS])
def test_no_argument_holds_for_a_fault(make: Callable[[], Trial]) -> None:
    """Arguments for refused mutants would hide holes."""
    t = make()
    refused = not verify(t.mutant, SPEC, "flash_fwd", CONSTS, shrink=False).ok or t.explored.fault is not None
    assert refused and why(t) is None


@pytest.mark.thorough
def test_a_survivor_is_judged_by_every_schedule_and_by_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(lambda: SPEC, "flash_fwd", CONSTS)
    same = trial("i < partial", "True")
    verdict, stage, _, reason = judge(show(same.mutant), TEXT, SPEC, job)
    assert (verdict, stage) == ("same result", "") and "mask" in reason
    monkeypatch.setattr("cuir.mutation.mutant_judging.verify", lambda *a, **k: type("R", (), {"stages": ()})())  # all stages let it pass
    explored = judge(show(trial("v_empty[s].wait(phase ^ 1)", "k_empty[s].wait(phase ^ 1)").mutant), TEXT, SPEC, job)
    assert explored[:2] == ("killed", "every schedule") and explored[2]
    assert judge(show(FAULTS[0][1]().mutant), TEXT, SPEC, replace(job))[0] == "survived"
