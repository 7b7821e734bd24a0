"""The cost of other spellings: rows beyond the limit are marked, and no kind is left out in silence."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import rewrites as tool
from benchmarks.recorded import read_rows
from benchmarks.rewrites import SPELLINGS, Draw, Measured, Row, Subject
from benchmarks.shown import markdown
from cuir import check, lower, parse, show
from cuir.cli.command_inputs import read_program
from cuir.rewrites import KINDS, chain, rewrites
from cuir.runtime import nvcc as compiling
from cuir.runtime.machine_code import parse_functions
from cuir.text.diagnostics import CuirError
from tests.lowering.conftest import one_file
from tests.rewrites.small import TEXT

needs_nvcc = pytest.mark.nvcc
ORIGINAL = Measured(1000, (200, 300), 168, 0)
ROW = Row("k f16", "commute", 7, "a + b", "b + a", False, ORIGINAL, ORIGINAL)

COST = {"turned comparison"}  # true for a NaN, so that no thread can vote by its own elements: 2.7 % more instructions a turn


# ---- rows and tables
@pytest.mark.parametrize(
    ("now", "beyond"),
    [
        (ORIGINAL, False),
        (replace(ORIGINAL, instructions=1020), False),
        (replace(ORIGINAL, instructions=979), True),
        (replace(ORIGINAL, turns=(200, 307)), True),
        (replace(ORIGINAL, turns=(300,)), True),
        (replace(ORIGINAL, registers=172), True),
        (replace(ORIGINAL, spills=4), True),
        (None, True),
    ],
)
def test_rows_beyond_the_limit_are_marked(now: Measured | None, beyond: bool) -> None:
    row = replace(ROW, now=now, refused="" if now else "L002 no")
    assert row.beyond == beyond and tool.line_of(row).startswith("*" if beyond else " ")


def test_the_table_names_every_kind(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    results = [
        ROW,
        replace(ROW, kind="name", now=replace(ORIGINAL, turns=(200, 320))),
        replace(ROW, kind="copy", now=None, refused="L002 no"),
    ]
    path.write_text("".join(tool.json.dumps(tool.as_json(r)) + "\n" for r in results))
    assert tool.read(path) == results
    lines = tool.table(results)
    assert all(any(line.startswith(f"{kind} ") for line in lines) for kind in KINDS)
    assert sum("not measured" in line for line in lines) == len(KINDS) - 3
    assert lines[-1] == "3 rows, 2 beyond 2%; kinds that hold: commute; that do not: name, copy"
    page = markdown(read_rows(path))
    assert lines[-1] in page and page.count("refused: L002 no") == 1


def test_subjects_are_the_corpus_in_all_settings() -> None:
    results = list(tool.subjects(["flash_fwd_sm90", "gemm", "flash_bwd", "variant:alibi"], ["f16", "bf16"], [64, 128]))
    assert len({s.name for s in results}) == len(results) == 4 + 2 + 8 + 6
    assert set(tool.list_subjects()) > {"flash_fwd_sm90", "decode_paged", "variant:causal"}
    for s in results[:1] + results[-1:]:
        assert check(s.program, s.kernel, s.consts).consts["T"] == s.consts["T"]


def test_spellings_are_those_of_the_lazy_rescale() -> None:
    subject = next(tool.subjects(["flash_fwd_sm90"], ["f16"], [64]))
    results = list(tool.spell_rescales(subject))
    assert len(results) == len(SPELLINGS) and len({show(program) for _, program, _, _ in results}) == len(results)
    assert all(check(program, subject.kernel, subject.consts).roles for _, program, _, _ in results)
    assert not list(tool.spell_rescales(replace(subject, program=read_program("gemm"), kernel="gemm")))


def test_what_the_compiler_refuses_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    program = parse(TEXT)

    def measure(inputs: object, of: Subject) -> tuple[str, Measured]:
        if inputs is program:
            return "text", ORIGINAL
        raise CuirError.of("L002", "not lowered")

    monkeypatch.setattr(tool, "measure_program", measure)
    subject = Subject("small", program, "k", {})
    results = list(tool.rows(subject, Draw(chains=1, length=3)))
    assert {r.kind for r in results} == {*KINDS, tool.CHAIN}
    assert all(r.beyond and r.refused == "L002 not lowered" for r in results)
    results = list(tool.rows(subject, Draw(count=99, chains=0, within=("scaled",))))
    assert len(results) > 9 and all(r.line in range(3, 8) for r in results)


# ---- compiled
def program_of(mangled: str) -> int:
    """The number of the program that a function is of, in a file of several."""
    length = re.match(r"_ZN(\d+)", mangled)
    assert length
    return int(mangled[length.end() :][: int(length[1])].removeprefix("program_"))


@needs_nvcc
@pytest.mark.thorough("compiles a file of twenty kernels")
def test_other_spellings_of_a_small_kernel_cost_nothing() -> None:
    """One rewrite of each kind, and a chain, beside the original in one file: what each costs."""
    program = parse(TEXT)
    first = {r.kind: r for r in reversed(rewrites(program))}
    assert set(first) == set(KINDS)
    texts = {"original": program} | {kind: parse(show(r.program)) for kind, r in first.items()}
    texts[tool.CHAIN] = parse(show(chain(program, tool.random.Random(1), 5)[-1].program))
    cuda = {name: lower(check(p)) for name, p in texts.items()}
    whole = replace(cuda["original"], source=one_file([c.source for c in cuda.values()]))
    cubin, log = compiling.Nvcc()(whole, compiling.find_nvcc())
    measured: dict[int, Measured] = {}
    for f in parse_functions(cubin):
        registers = re.search(rf"Compiling entry function '{f.name}'.*?Used (\d+) registers", log, re.S)
        assert registers
        measured[program_of(f.name)] = Measured(f.instructions, f.shortest_turns, int(registers[1]), 0)
    assert len(measured) == len(texts)
    rows = [replace(ROW, kind=name, original=measured[0], now=measured[i]) for i, name in enumerate(texts)]
    assert {r.kind for r in rows if r.beyond} == set(), "\n".join(map(tool.line_of, rows))


@needs_nvcc
@pytest.mark.thorough("compiles the expert kernel three times")
def test_spellings_of_the_lazy_rescale_that_cost_nothing() -> None:
    """Each thread votes by its own elements, whichever way the rule is written. Two spellings whose text is another one are compiled, too."""
    subject = next(tool.subjects(["flash_fwd_sm90"], ["f16"], [64]))
    source, original = tool.measure_program(subject.program, subject)
    assert len(original.turns) >= 2 and 100 < original.turns[0] < original.turns[-1] < original.instructions
    spellings = {kind.removeprefix(f"{tool.SPELLING}: "): rest for kind, *rest in tool.spell_rescales(subject)}
    votes = {
        name: lower(check(program, subject.kernel, subject.consts)).source.count("cuir::row_bound(")
        for name, (program, *_) in spellings.items()
    }
    assert {name for name, count in votes.items() if count != source.count("cuir::row_bound(")} == COST < set(SPELLINGS)
    for name in ("not strict", "a maximum of both"):
        program, before, after = spellings[name]
        text, now = tool.measure_program(program, subject)
        row = Row(subject.name, name, 1, before, after, text == source, original, now)
        assert text != source and not row.beyond, tool.line_of(row)
