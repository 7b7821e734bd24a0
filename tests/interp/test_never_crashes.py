"""A checked program never fails in the interpreter with a Python exception; a correct one runs clean and alike under every schedule.

The verdict on a program does not hang on luck: a mutant is faulty under every schedule or under none, and then all schedules give the same bits.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import corpus
import cuir
from cuir.arguments.binding import assume_consts
from cuir.checking.checked import Const
from cuir.checking.checker import check
from cuir.interp import Schedule, run
from cuir.syntax.nodes import Program
from cuir.syntax.parser import parse
from cuir.syntax.printer import show
from cuir.text.diagnostics import CuirError
from tests.strategies.selection import examples
from tests.strategies.typed import arguments, kernels, mutants

CORPUS = Path(__file__).parents[2] / "corpus"
CLEAN = [text for name, text in corpus.faulty().items() if name.startswith("clean_")]
PROGRAMS = sorted([*CORPUS.glob("programs/*.cuir"), *CORPUS.glob("kernels/*.cuir")])
DIMS = {"B": 1, "H": 2, "HK": 1, "M": 70, "N": 130, "K": 100, "NP": 4, "MP": 2, "SP": 2, "MT": 2, "MD": 128 * 64}
CONSTS = {"decode": {"G": 2, "PAGE": 64}, "global_sliding_window": {"L": 64, "R": 64, "g": 16}}
schedules = st.one_of(
    st.just(Schedule()),
    st.integers(0, 99).map(Schedule.random),
    st.integers(0, 99).map(Schedule.adversarial),
    st.sampled_from(["engines_first", "workers_first", "reverse"]).map(Schedule.adversarial),
)


def outputs(
    program: Program,
    dims: Mapping[str, int],
    schedule: Schedule,
    lanes: int = 32,
    kernel: str | None = None,
    consts: Mapping[str, Const] | None = None,
) -> dict[str, torch.Tensor]:
    checked = check(program, kernel, consts)
    inputs: dict[str, Any] = arguments(checked, {name: dims.get(name, 3) for name in checked.dims})
    run(checked, inputs, schedule=schedule, lanes=lanes)
    return {t.name: inputs[t.name] for t in checked.tensors if t.written}


def same(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[n].nan_to_num(7.0), b[n].nan_to_num(7.0)) for n in a)


@examples(2)
@given(kernels(), schedules, st.sampled_from([1, 32]))
def test_correct_kernels_run_clean_and_alike_under_every_schedule(case, schedule, lanes):
    program = parse(case.text)
    first = outputs(program, {"M": case.M}, Schedule())
    assert same(first, outputs(program, {"M": case.M}, schedule, lanes))


@examples(2)
@given(kernels(), st.data())
def test_mutants_of_random_kernels_run_or_are_refused(case, data):
    program = data.draw(mutants(parse(case.text)))
    _run_or_refuse(program, case.M, data.draw(schedules))


@examples(4)
@given(st.data())
def test_mutants_of_the_clean_programs_run_or_are_refused(data):
    program = data.draw(mutants(parse(data.draw(st.sampled_from(CLEAN)))))
    _run_or_refuse(program, data.draw(st.sampled_from([0, 1, 64, 200])), data.draw(schedules))


@pytest.mark.thorough
@examples(2)
@given(st.data())
def test_mutants_of_the_corpus_run_or_are_refused(data):
    path = data.draw(st.sampled_from(PROGRAMS))
    program = parse(path.read_text())
    kernel = data.draw(st.sampled_from(sorted(program.kernels())))
    consts = assume_consts(program.kernels()[kernel], {**CONSTS.get(kernel, {}), **CONSTS.get(path.stem, {})})
    schedule, mutant = data.draw(schedules), data.draw(mutants(program))
    try:
        outputs(parse(show(mutant)), DIMS, schedule, kernel=kernel, consts=consts)
    except CuirError as error:
        assert error.diagnostics and str(error)


def _run_or_refuse(program: Program, m: int, schedule: Schedule) -> None:
    try:
        outputs(parse(show(program)), {"M": m}, schedule)
    except CuirError as error:
        assert error.diagnostics and str(error)


MARKS = (".wait(", ".arrive(", ".expect(", "fence_async", "store_wait", "mma_", "copy_async", "store(")
SCHEDULES = [
    Schedule.in_order(),
    *(Schedule.random(s) for s in range(3)),
    *(Schedule.adversarial(s) for s in range(2)),
    Schedule.adversarial("engines_first"),
    Schedule.adversarial("workers_first"),
    Schedule.adversarial("starve", 1),
]


def mutate(lines: list[str], rng: random.Random) -> str:
    """Changes one line that synchronises or touches memory: left out, doubled, moved, its parity turned, or its stage fixed. Returns what was done."""
    marked = [i for i, line in enumerate(lines) if any(m in line for m in MARKS)]
    i = rng.choice(marked)
    line, kind = lines[i], rng.choice(["drop", "double", "move", "parity", "stage"])
    if kind == "drop":
        del lines[i]
    elif kind == "double":
        lines.insert(i, line)
    elif kind == "move":
        j = rng.choice(marked)
        indent = " " * (len(lines[j]) - len(lines[j].lstrip()))
        del lines[i]
        lines.insert(j if j < i else j - 1, indent + line.strip())
    elif kind == "parity":
        lines[i] = line.replace(" ^ 1", "") if " ^ 1" in line else line.replace("% 2)", "% 2 ^ 1)")
    else:
        lines[i] = line.replace("[s]", "[0]", 1)
    return f"{kind} {line.strip()}"


def outcomes(text: str) -> list[tuple[str, torch.Tensor]]:
    """The code and the result of each schedule; nothing for a mutant that does not check."""
    try:
        checked = cuir.check(cuir.parse(text), consts={"R": 64})
    except cuir.CuirError:
        return []
    g = torch.Generator().manual_seed(1)
    x, w = (torch.randn(*shape, generator=g).to(torch.float16) for shape in ((5, 64, 64), (64, 64)))
    results = []
    for schedule in SCHEDULES:
        y, code = torch.zeros(3, 128, 64, dtype=torch.float16), ""
        try:
            run(checked, {"X": x, "W": w, "Y": y}, grid=2, schedule=schedule)
        except cuir.CuirError as error:
            code = error.diagnostics[0].code
        results.append((code, y))
    return results


@pytest.mark.sweep(4)
@pytest.mark.parametrize("seed", range(8))
def test_every_schedule_agrees_on_a_mutant(pipe_text: str, seed: int) -> None:
    rng = random.Random(seed)
    verdicts = []
    for _ in range(8):
        lines = pipe_text.split("\n")
        finished = [mutate(lines, rng) for _ in range(rng.choice([1, 1, 2]))]
        result = outcomes("\n".join(lines))
        codes = {code for code, _ in result}
        assert "" not in codes or codes == {""}, f"{finished}: {codes}"
        if codes == {""}:
            assert all(torch.equal(y, result[0][1]) for _, y in result), finished
        verdicts += list(codes)
    assert any(verdicts), "no mutant was faulty"
