"""The verdict on a program does not hang on luck: a mutant is faulty under every schedule or under none, and then all schedules give the same bits."""

from __future__ import annotations

import random

import pytest
import torch

import cuir
from cuir.interp import Schedule, run

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
