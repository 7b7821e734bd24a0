"""Answers, friendly and hostile: what is read as the program of one, and what is refused with which words."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import corpus
from cuir.syntax.parser import parse
from cuir.syntax.printer import show
from cuir.text.diagnostics import CuirError
from llm import answer as limits
from llm.answer import blocks, program_text, read

PROGRAM = "@func\ndef keep(b, h, q, k):\n    return k <= q\n"
BLOCK = f"```cuir\n{PROGRAM}```"


def read_refusal(text: str, finish: str = "stop") -> str:
    with pytest.raises(CuirError) as error:
        read(program_text(text, finish))
    assert all(d.hint for d in error.value.diagnostics), "a model is told what to do"
    return error.value.diagnostics[0].code


@pytest.mark.parametrize(
    "text",
    [
        BLOCK,
        f"The mask changes.\n\n{BLOCK}\n\nDone.",
        f"```\n{PROGRAM}```",
        f"```python\n{PROGRAM}```",
        f"In short `keep` changes:\n```text\nkeep\n```\n{BLOCK}",
        f"```python\nx = reference(q)\n```\n{BLOCK}",
        f"````cuir\n{PROGRAM}````",
        f"~~~cuir\n{PROGRAM}~~~",
        BLOCK.replace("\n", "\r\n"),
        PROGRAM,
        f"  ```cuir\n{PROGRAM}  ```",
    ],
)
def test_the_program_of_an_answer(text: str) -> None:
    assert show(read(program_text(text))) == show(parse(PROGRAM))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "A001"),
        ("I cannot help with that.", "A001"),
        ("```cuir\n```" + "\n```diff\n+x\n```", "A001"),
        ("```json\n{}\n```", "A001"),
        ("run `rm -rf /`, then use @func", "A001"),
        (f"{BLOCK}\nor\n{BLOCK}", "A002"),
        (f"```python\n{PROGRAM}```\n```\n{PROGRAM}```", "A002"),
        (f"```cuir\n{PROGRAM}", "A005"),
        ("```cuir\n" + "# x\n" * (limits.MAX_LINES + 1) + "```", "A003"),
        ("x" * (limits.MAX_CHARS + 1), "A003"),
        (f"```cuir\n{PROGRAM}# {'x' * limits.MAX_COLUMNS}\n```", "A003"),
        ("```cuir\n@func\ndef f(x):\n    return " + "(" * 60 + "x" + ")" * 60 + "\n```", "A004"),
        ("```cuir\n@func\ndef f(x):\n    return (x\n" + "        + x\n" * 1000 + "    )\n```", "A004"),
        (
            "```cuir\n@func\ndef f(x):\n"
            + "".join(" " * 4 * (i + 1) + "if x:\n" for i in range(40))
            + " " * 164
            + "y = 1\n    return x\n```",
            "A004",
        ),
        ("```cuir\nimport os\n" + PROGRAM + "```", "P005"),
        ("```cuir\n@func\ndef keep(b, h, q, k):\n    return (lambda: k)()\n```", "P006"),
        ('```cuir\nNAME = open("f").read()\n```', "P017"),
    ],
)
def test_hostile_answers(text: str, code: str) -> None:
    assert read_refusal(text) == code


def test_a_cut_answer_says_so() -> None:
    assert read_refusal("Let me think about", "length") == "A001"
    assert read_refusal(BLOCK, "length") == "A005"


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    for whole in (text, f"```cuir\n{text}\n```", f"```cuir\n@func\ndef f(x):\n    return {text}\n```"):
        try:
            read(program_text(whole))
        except CuirError as error:
            assert error.diagnostics


@given(st.lists(st.sampled_from(["```", "```cuir", "~~~", "````", "@func", "x", "", "  ```", "@kernel"]), max_size=12))
def test_blocks_hold_no_fence_that_ends_them(lines: list[str]) -> None:
    result = blocks("\n".join(lines))
    assert all(b.closed for b in result[:-1])
    assert sum(len(b.text.split("\n")) for b in result if b.text) <= len(lines)


@pytest.mark.thorough
def test_the_longest_kernel_is_within_the_limits() -> None:
    for place in (*corpus.kernels().values(), *corpus.programs().values()):
        text = place.read_text(encoding="utf-8")
        assert show(read(program_text(f"```cuir\n{text}```"))) == show(parse(text))


def test_the_largest_answers_are_refused_quickly() -> None:
    begin = time.process_time()
    read_refusal("`" * limits.MAX_CHARS)
    read_refusal("```cuir\n" + "((((((((\n" * 2000 + "```")
    read_refusal("```\n" * (limits.MAX_CHARS // 4))
    read_refusal("```cuir\n" + "x = 1\n" * 2000 + "```")
    assert time.process_time() - begin < 3
