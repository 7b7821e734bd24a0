"""The page of a transfer by a model: conversations, then the program; a wrong one is shown and not run."""

from __future__ import annotations

import pytest

import cuir
from cuir.pages import resources_section
from cuir.pages.evaluation_page import Exchange
from cuir.pages.transfer_page import render_transfer_page
from cuir.text.diagnostics import CuirError
from cuir.verification.spec_dispatch import prepare_specification
from tests.pages.html_text import OUTSIDE, assert_well_formed, read_section
from tests.pages.ring_programs import TEXT

ORIGIN, ADAPTED = cuir.parse(TEXT), cuir.parse(TEXT.replace("x * 2.0", "x * 3.0"))
EXCHANGES = [Exchange(1, "triple <it>", "no", "answer", ["A001: no program"], 7), Exchange(2, "again", "```cuir\n1\n```", "passed", [], 9)]


def triple(x):
    return 3 * x


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(cuda: object) -> None:
        raise CuirError.of("U503", "no nvcc")

    monkeypatch.setattr(resources_section, "compile_cuda", refuse)


@pytest.mark.parametrize("right", [("double", {}), None])
def test_conversations_then_the_program(right: tuple[str, dict] | None) -> None:
    spec = prepare_specification(triple, ORIGIN.kernels()["double"])
    page = render_transfer_page("double to triple", "passed", {"Conversation 1": EXCHANGES}, ORIGIN, ADAPTED, spec, right)
    section = read_section(page, "conversation-1")
    assert all(words in section for words in ("triple <it>", "A001: no program", "Attempt 2: passed"))
    assert "x * 3.0" in read_section(page, "beside-the-origin") and "return 3 * x" in read_section(page, "variant")
    assert ("Workers over time" in page) == (right is not None) == ("compute[0]" in page)
    assert not OUTSIDE.search(page)
    assert_well_formed(page)


def test_without_an_answer_there_is_no_program() -> None:
    spec = prepare_specification(triple, ORIGIN.kernels()["double"])
    page = render_transfer_page("t", "no answer", {"Conversation 1": []}, ORIGIN, None, spec, None)
    assert "No answer." in page and "Beside the origin" not in page
