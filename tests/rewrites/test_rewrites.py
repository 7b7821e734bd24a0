"""Rewrites mean the same, to the bit: of a kernel that has a place for each kind, of random kernels, and of the corpus; and what is no rewrite because it would not."""

from __future__ import annotations

import functools
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import corpus
import cuir
from corpus.computes import COMPUTES
from cuir import check, parse, show
from cuir.attn.verification.problems import is_attention
from cuir.checking.checked import Const
from cuir.checking.const_defaults import fill_consts
from cuir.cli.command_inputs import read_program, read_specification
from cuir.explore import explore
from cuir.interp import Schedule, run
from cuir.rewrites import KINDS, Rewrite, apply, chain, rewrites
from cuir.spec.function_specification import AnySpecification
from cuir.syntax.nodes import Program
from cuir.verification.spec_dispatch import AnyCase, make_number_cases, make_schedule_cases, prepare_launch
from tests.rewrites.small import TEXT, Bits, bits, same
from tests.strategies.selection import examples
from tests.strategies.typed import Case, arguments, kernels

LENGTHS = {"M": 150}
SMALL = parse(TEXT)


@functools.cache
def of_small() -> tuple[list[Rewrite], Bits]:
    return rewrites(SMALL), bits(SMALL, LENGTHS)


def reparse(r: Rewrite) -> Program:
    """The program of a rewrite as the parser gives it, after its canonical text was found to be one."""
    text = show(r.program)
    program = parse(text)
    assert show(program) == text, r
    return program


# ---- each kind
@pytest.mark.sweep
@pytest.mark.parametrize("kind", KINDS)
def test_every_rewrite_of_a_kind_gives_the_same_bits(kind: str) -> None:
    actual, expected = of_small()
    some = [r for r in actual if r.kind == kind]
    assert some, f"no place for {kind} in the small kernel"
    for r in some:
        program = reparse(r)
        assert program != SMALL and r.line >= 1 and r.before != r.after
        assert same(bits(program, LENGTHS), expected), r


PROGRAMS = [
    ("commute", "key + q + n", "n + (key + q)"),
    ("commute logic", "n < 7 and first > 0", "first > 0 and n < 7"),
    ("mirror", "a < bound", "bound > a"),
    ("reassociate", "first + half - w", "first + (half - w)"),
    ("group extremum", "max(top, row_max(a), LIMIT)", "max(max(top, row_max(a)), LIMIT)"),
    ("negate choice", "where(kept, a, 0.0)", "where(~kept, 0.0, a)"),
    ("negate choice", "1.0 if limit != half else 2.0", "2.0 if not limit != half else 1.0"),
    ("negate comparison", "key + q + n > limit", "~(key + q + n <= limit)"),
    ("negate comparison", "n < 7", "not n >= 7"),
    ("name", "weight = exp2(min(b, 4.0))", "part = min(b, 4.0)\nweight = exp2(part)"),
    ("name view", "turn[turns % 2].sync()", "view = turn[turns % 2]\nview.sync()"),
    ("copy", "top = bound * weight", "same = bound\ntop = same * weight"),
    ("inline", "y = x * factor\nreturn y + shift, factor + 1.0", "return x * factor + shift, factor + 1.0"),
    ("negate branch", "if n < 7 and first > 0:", "if not (n < 7 and first > 0):"),
    ("split assignment", "turns, top = 0, full(f32, [64, 1], -1.0)", "turns = 0\ntop = full(f32, [64, 1], -1.0)"),
    ("merge assignments", "y = x * factor\nshift = shift + LIMIT", "y, shift = x * factor, shift + LIMIT"),
    ("reorder", "y = x * factor\nshift = shift + LIMIT", "shift = shift + LIMIT\ny = x * factor"),
    ("augment", "turns += 1", "turns = turns + 1"),
    ("rename", "factor", "a_factor"),
    ("rename function", "scaled", "a_scaled"),
    (
        "inline function",
        "a, b = scaled(x, scale, 0.25)",
        "shift_of_scaled = 0.25\ny_of_scaled = x * scale\nshift_of_scaled = shift_of_scaled + LIMIT\na, b = y_of_scaled + shift_of_scaled, scale + 1.0",
    ),
    ("outline function", "first + half - w", "outlined(first, half, w)  # return first + half - w"),
]


@pytest.mark.parametrize(("kind", "before", "after"), PROGRAMS, ids=[f"{k}: {b[:20]}" for k, b, _ in PROGRAMS])
def test_kinds_make_what_they_say(kind: str, before: str, after: str) -> None:
    assert (kind, before, after) in {(r.kind, r.before, r.after) for r in of_small()[0]}


def test_every_kind_is_shown() -> None:
    assert {kind for kind, _, _ in PROGRAMS} == set(KINDS)


# ---- what is no rewrite
def apply_kind(kind: str, body: str, head: str = "") -> set[str]:
    """Apply a kind to the statements of a role, behind a declared scalar and a ring of barriers."""
    lines = "".join(f"        {line}\n" for line in body.split("\n"))
    text = f"""{head}@kernel(arch="sm_90a")
def k(F: Global[f32, M, 64], I: Global[i32, M], n: i32, m: i32, x: f32, *, ON: const = True, SIZE: const = 64):
    s = shared(f16, [2, 64, 64])
    with role("all", warpgroups=1) as w:
{lines}"""
    return {r.after for r in rewrites(parse(text), kinds=[kind])}


UNCHANGED = [
    ("reassociate", "store(F[rows(64), 0], zeros(f32, [64, 1]) + (x + x))"),  # floats
    ("reassociate", "a = n // (m // 2)\nstore(I[0], a)"),
    ("negate comparison", "if x > 1.0:\n    store(I[0], 1)"),  # with a NaN neither holds
    ("commute", "store(I[0], n - m)"),
    ("commute logic", "if n < 3 and I[m] > 0:\n    store(I[0], 1)"),  # an element that need not be there
    ("commute logic", "if n > 0 and m // n > 0:\n    store(I[0], 1)"),  # a divisor of 0
    ("commute logic", "if ON and n > 0:\n    store(I[0], 1)"),
    ("negate branch", "if n > 0:\n    store(I[0], 1)"),
    ("reorder", "a = I[0]\nb = n + 1\nstore(I[0], a)\nstore(I[1], b)"),  # reads memory
    ("reorder", "a = n + 1\nb = a + 1\nstore(I[0], a + b)"),
    ("reorder", "a = n + 1\nb = a + n\na = n + 2\nstore(I[0], a + b)"),
    ("merge assignments", "a = n + 1\nb = a + 1\nstore(I[0], a + b)"),
    ("split assignment", "a = n\na, b = m, a\nstore(I[0], a - b)"),
    ("inline", "a = I[0]\nstore(I[1], a)"),
    ("inline", "a = n + 1\nstore(I[1], 2)\nstore(I[0], a)"),  # an effect lies between
    ("inline", "b = n\na = b + 1\nb = m\nstore(I[0], a + b)\nstore(I[1], b)"),
    ("inline", "a = n + 1\nfor i in range(3):\n    store(I[i], a)"),
    ("name", "store(I[0], n)"),
    ("name", "a = n + 1\nstore(I[0], a)"),  # it has a name
    ("commute", "store(F[n * 64 + m : n * 64 + m + 64, :], load(F[0 : 64, :]))"),  # both ends of a slice are the same text
    ("reassociate", "store(F[n * 64 + m : n * 64 + m + 64, :], load(F[0 : 64, :]))"),
    ("name", "store(F[n * 64 + m : n * 64 + m + 64, :], load(F[0 : 64, :]))"),
]


@pytest.mark.parametrize(("kind", "body"), UNCHANGED)
def test_what_would_not_be_the_same_is_left(kind: str, body: str) -> None:
    assert not apply_kind(kind, body)


def test_what_need_not_be_evaluated_is_not_evaluated_before() -> None:
    result = apply_kind("name", "if n > 0 and m // n > m - 1:\n    store(I[0], 1)")
    assert {f.split("\n")[0] for f in result} == {"part = n > 0 and m // n > m - 1", "part = n > 0", "part = m - 1"}


def test_operands_of_a_product_keep_their_names() -> None:
    body = "a = load(s[0])\nacc = mma_async(a, s[1])\nmma_wait(acc)\nstore(F[rows(64), cols(64)], acc + 1.0)"
    assert {a.split("\n")[1] for a in apply_kind("copy", body)} == {"store(F[rows(64), cols(64)], same + 1.0)"}


def test_a_primitive_keeps_its_name_where_a_value_is_called_like_it() -> None:
    text = PRIMITIVE.replace("NAME", "rows")
    (result,) = [r.program for r in rewrites(parse(text), kinds=["rename"]) if r.before == "rows"]
    assert result == parse(PRIMITIVE.replace("NAME", "a_rows"))


PRIMITIVE = """@kernel(arch="sm_90a")
def k(I: Global[i32, M], n: i32):
    with role("all", warpgroups=1):
        NAME = n + 1
        store(I[NAME + rows(64)], zeros(i32, [64, 1]))
"""


# ---- chains
@pytest.mark.thorough
@given(kernels(), st.integers(0, 2**32))
@examples(0.5)
def test_chains_of_random_kernels_give_the_same_bits(case: Case, seed: int) -> None:
    program = parse(case.text)
    expected = bits(program, {"M": case.M})
    for r in chain(program, random.Random(seed), 4):
        assert same(bits(reparse(r), {"M": case.M}), expected), f"{r}\n{show(r.program)}"


def test_chains_are_the_same_for_the_same_seed() -> None:
    item, second = (chain(SMALL, random.Random(3), 4) for _ in range(2))
    assert [str(r) for r in item] == [str(r) for r in second] and len(item) == 4
    assert apply(SMALL, random.Random(3), 4) == parse(show(item[-1].program)) and apply(SMALL, random.Random(3), 0) == SMALL


def settings_of(name: str, kernel: str) -> dict[str, Const]:
    node = read_program(name).kernels()[kernel]
    consts = fill_consts(node, COMPUTES[name][kernel].small, {"D": 64, **COMPUTES[name][kernel].consts})
    small = {"BM": 128, "BN": 64} if is_attention(node) else {}
    return {n: min(int(v), small[n]) if n in small else v for n, v in consts.items()}


@functools.cache
def of_corpus(name: str, kernel: str) -> tuple[Program, dict[str, Const], AnySpecification, list[AnyCase], list[Bits]]:
    program, consts = read_program(name), settings_of(name, kernel)
    spec = read_specification(COMPUTES[name][kernel].specification, ())
    checked = check(program, kernel, consts)
    cases = [*make_number_cases(checked, spec, [], "quick")[:2], *make_schedule_cases(checked, spec)[:1]]
    return program, consts, spec, cases, outputs(program, kernel, consts, spec, cases)


def outputs(program: Program, kernel: str, consts: dict[str, Const], spec: AnySpecification, cases: list[AnyCase]) -> list[Bits]:
    checked = check(program, kernel, consts)
    results = []
    for case in cases:
        inputs = prepare_launch(program, checked, spec, case)
        run(checked, inputs.arguments(), schedule=Schedule.parse("adversarial:lockstep"))
        results.append({n: x.float() for n, x in inputs.outputs.items()})
    return results


@pytest.mark.sweep(32)
@pytest.mark.parametrize(("name", "kernel"), [(n, k) for n, ks in COMPUTES.items() for k in ks])
def test_chains_of_the_corpus_give_the_same_bits(name: str, kernel: str) -> None:
    program, consts, spec, cases, expected = of_corpus(name, kernel)
    finished = chain(program, random.Random(f"{name} {kernel}"), 4, kernel, consts)
    assert len(finished) == 4
    assert all(map(same, outputs(reparse(finished[-1]), kernel, consts, spec, cases), expected)), [str(r) for r in finished]


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["flash_fwd_sm90", "flash_bwd", "gemm", "decode_paged"])
def test_rewrites_of_the_corpus_check(name: str) -> None:
    """One of each kind, alone."""
    kernel = next(iter(COMPUTES[name]))
    consts = settings_of(name, kernel)
    by_kind: dict[str, list[Rewrite]] = {}
    for r in rewrites(read_program(name), kernel, consts):
        by_kind.setdefault(r.kind, []).append(r)
    assert len(by_kind) >= 12
    for result in by_kind.values():
        for r in random.Random(0).sample(result, 1):
            assert check(reparse(r), kernel, consts).roles


@pytest.mark.parametrize("name", ["clean_pipeline", "clean_product"])
def test_every_schedule_stays_what_it_was(name: str) -> None:
    """The explorer finds the same states: accesses and synchronisation are the same, in the same order."""
    program = cuir.parse(corpus.faulty()[name], name)
    checked = check(program)
    expected = explore(checked, arguments(checked, {"M": 192}), grid=1)
    for r in (chain(program, random.Random(seed), 8)[-1] for seed in range(3)):
        checked = check(reparse(r))
        actual = explore(checked, arguments(checked, {"M": 192}), grid=1)
        assert (actual.verdict, actual.states, actual.transitions, actual.steps) == (
            "clean",
            expected.states,
            expected.transitions,
            expected.steps,
        )


def test_other_kernels_of_the_file_are_left() -> None:
    program = read_program("flash_bwd")
    result = rewrites(program, "delta", settings_of("flash_bwd", "delta"))
    assert Counter(r.kind for r in result)["commute"] > 3
    assert all(r.program.kernels()["flash_bwd"] == program.kernels()["flash_bwd"] for r in result)
