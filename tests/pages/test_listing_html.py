"""Lines of program, CUDA and instructions: each points at the statement that it comes from."""

from __future__ import annotations

import re

import cuir
from cuir.pages.listing_html import map_code, render_listing, render_map
from cuir.runtime.machine_code import Instruction
from tests.pages.html_text import assert_well_formed, read_text
from tests.pages.ring_programs import TEXT


def test_cuda_lines_say_whose_statement_they_are() -> None:
    cuda = cuir.lower(cuir.check(cuir.parse(TEXT)))
    code = map_code(cuda)
    assert [line.text for line in (*code.prelude, *code.cuda)] == cuda.source.splitlines()
    comments = [(line, re.match(r"\s*// (\d+): (.*)", line.text)) for line in code.cuda]
    named = [(line.lines, int(m[1]), m[2]) for line, m in comments if m]
    assert len(named) > 8 and all(lines == (number,) for lines, number, _ in named)
    assert all(TEXT.split("\n")[number - 1].strip() == text for _, number, text in named if text[0] != "@")
    assert not any(line.lines for line in code.prelude) and code.program[8].text.strip().startswith("full, empty")


def test_an_instruction_belongs_to_the_innermost_statement() -> None:
    cuda = cuir.lower(cuir.check(cuir.parse(TEXT)))
    (number, span), *_ = cuda.line_map.items()
    sass = map_code(cuda, [Instruction(16, "EXIT <1>", (1, number, number + 1)), Instruction(32, "NOP", (1,))]).sass
    assert [(line.number, line.lines) for line in sass] == [("0010", (span.line,)), ("0020", ())]


def test_listings_keep_their_text() -> None:
    program = cuir.parse(TEXT)
    cuda = cuir.lower(cuir.check(program))
    listing = render_listing(program.kernels()["double"].span.source)
    assert re.findall(r'data-n="(\d+)"', listing) == [str(n) for n in range(1, TEXT.rstrip().count("\n") + 2)]
    page = render_map(map_code(cuda, [Instruction(0, "MOV R1, <2>", (1,))]))
    assert page.count('class="code') == 3 and "MOV R1, <2>" in read_text(page)
    assert "No SASS: no nvdisasm &lt;here&gt;" in render_map(map_code(cuda), "no nvdisasm <here>")
    assert_well_formed(page)
