"""Every block of docs/tutorials runs, every fault is reported as the pages show, and sentences are short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import cuir
from tests.tutorial_pages import (
    FOLDER,
    Block,
    all_blocks,
    matches,
    output_of,
    read_blocks,
    reader_folder,
    report_of,
    run_on_cpu,
    run_tests,
    split_commands,
)

PAGES = sorted(FOLDER.glob("*.md"))
KINDS = ("file", "fault", "report", "console", "gpu", "picture")


def of_kind(*kinds: str) -> pytest.MarkDecorator:
    blocks = all_blocks(*kinds)
    return pytest.mark.parametrize("block", blocks, ids=[b.title for b in blocks])


@pytest.mark.parametrize("page", PAGES, ids=[p.name for p in PAGES])
def test_each_block_says_what_it_is(page: Path) -> None:
    assert {b.kind for b in read_blocks(page)} <= set(KINDS)
    assert page.read_text(encoding="utf-8").count("```") == 2 * len(read_blocks(page))


def test_names_of_files_are_unique() -> None:
    names = [b.name for b in all_blocks("file")]
    assert len(names) == len(set(names)) > 5


@of_kind("file")
def test_files_hold(block: Block, tmp_path: Path) -> None:
    with reader_folder(tmp_path):
        if block.name.endswith(".cuir"):
            assert cuir.check(block.name).roles
        elif block.name.startswith("test_"):
            assert run_tests(block.name)
        elif block.name.endswith(".py"):
            compile(block.text, block.name, "exec")


@of_kind("report")
def test_reports_are_those_of_the_page(block: Block, tmp_path: Path) -> None:
    assert block.fault is not None
    with reader_folder(tmp_path, block.fault):
        assert report_of(block.name) == block.text


@pytest.mark.usefixtures("few_problems")
@of_kind("console")
def test_commands_print_what_the_page_shows(block: Block, tmp_path: Path) -> None:
    commands = split_commands(block.text)
    assert commands
    with reader_folder(tmp_path, block.fault):
        for command, shown in commands:
            output = output_of(command, 0 if block.fault is None else None)
            assert matches(shown, output), output


@of_kind("gpu")
def test_code_for_a_gpu_runs_in_the_interpreter(block: Block, tmp_path: Path) -> None:
    with reader_folder(tmp_path):
        assert run_on_cpu(block)


# ---- words
def sentences(page: Path) -> list[str]:
    """Sentences of a page's prose, without code, tables and headings."""
    text = re.sub(r"^(?:```.*?^```|\|.*?|#.*?|<!--.*?-->)$", "\n\n", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    parts = [p for block in re.split(r"\n(?:\s*\n|\s*[*\d]+\.? )", text) for p in re.split(r"(?<=[.?!])\s+(?=\S)", block)]
    return [p for p in parts if p.strip()]


@pytest.mark.parametrize("page", PAGES, ids=[p.name for p in PAGES])
def test_sentences_are_short(page: Path) -> None:
    lengths = [len(s.split()) for s in sentences(page)]
    assert sum(lengths) < 18 * len(lengths)
    assert [s for s in sentences(page) if len(s.split()) > 25] == []


def test_the_pages_have_at_most_6000_words() -> None:
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in PAGES) <= 6000
