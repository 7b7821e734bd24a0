"""Every code block of every page runs, or is read by the program that it is for."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

import corpus
import cuir
from cuir.cli.command_inputs import read_consts
from cuir.lowering.ir.ir_text import parse, show
from cuir.lowering.validate import Lowering
from cuir.performance.search import Space
from cuir.runtime.nvcc import compile_cuda, find_nvcc
from llm import settled_differences
from tests.page_blocks import (
    PAGES,
    ROOT,
    Block,
    all_blocks,
    check_command,
    count_fences,
    count_hidden,
    files_of,
    find_indented_code,
    find_need,
    matches,
    output_of,
    read_blocks,
    read_commands,
    reader_folder,
    report_of,
    run_on_cpu,
    run_python,
    run_tests,
    split_commands,
)

KINDS = (
    "file",
    "python",
    "gpu",
    "check",
    "ir",
    "data",
    "diff",
    "report",
    "console",
    "shell",
    "nvcc",
    "step",
    "picture",
    "text",
)
RUN = ("file", "python", "gpu", "check")  # kinds that may have a setup
WORKED_EXAMPLES = {
    "adding_a_primitive.md": "tests/test_adding_a_primitive.py",
    "lowering.md": "tests/test_writing_a_pass.py",
    "models.md": "tests/llm/test_adding_a_pass.py",
    "pycuda.md": "tests/runtime/pycuda_cases.py",
}


def read_space(text: str) -> None:
    """Read a space of settings (docs/tuning.md) for a kernel of the corpus."""
    Space.parse(text, "space").check_names(cuir.load(corpus.kernels()["flash_fwd_sm90"]), None)


def read_settlements(text: str) -> None:
    """Read settlements of `cuir lift --settle` (docs/lifting.md); what they say of a source is not asked."""
    with mock.patch.object(settled_differences, "_check"):
        assert settled_differences.read_settled(write_text("settled.toml", text), mock.Mock())


def write_text(name: str, text: str) -> Path:
    Path(name).write_text(text, encoding="utf-8")
    return Path(name)


DATA_READERS: dict[str, Callable[[str], object]] = {"space": read_space, "settlements": read_settlements}


def of_kind(*kinds: str) -> pytest.MarkDecorator:
    blocks = all_blocks(*kinds)
    return pytest.mark.parametrize("block", blocks, ids=[b.title for b in blocks])


# ---- marks
@pytest.mark.parametrize("page", PAGES, ids=[p.name for p in PAGES])
def test_each_block_says_what_it_is(page: Path) -> None:
    blocks = read_blocks(page)
    assert [b.title for b in blocks if b.kind not in KINDS] == []
    assert count_fences(page) == 2 * len(blocks)
    assert find_indented_code(page) == []


@pytest.mark.parametrize("page", PAGES, ids=[p.name for p in PAGES])
def test_all_hidden_python_runs(page: Path) -> None:
    blocks = [b for b in read_blocks(page) if b.setup or b.holds]
    assert [b.title for b in blocks if b.kind not in RUN or (b.kind == "check" and b.holds)] == []
    assert [b.title for b in blocks if b.kind == "file" and is_run_by_others(b)] == []
    assert count_hidden(page) == sum(bool(b.setup) + bool(b.holds) for b in blocks)


def test_few_blocks_are_not_read() -> None:
    blocks = all_blocks("text")
    assert len(blocks) <= 5
    assert [b.title for b in blocks if len(b.name.split()) < 4] == [], "a reason stands in the mark"


def test_pictures_are_drawings() -> None:
    assert [b.title for b in all_blocks("picture") if b.language or not re.search("[─│┌└▼▲█]|--+>|-+[+]|==", b.text)] == []


@pytest.mark.parametrize("page", PAGES, ids=[p.name for p in PAGES])
def test_names_of_files_are_unique(page: Path) -> None:
    names = [b.name for b in files_of(page)]
    assert all(names) and len(names) == len(set(names))


def test_steps_are_taken_by_the_test_of_their_page() -> None:
    pages = {b.page.name for b in all_blocks("step")}
    assert pages <= set(WORKED_EXAMPLES)
    for page in pages:
        assert page in (ROOT / WORKED_EXAMPLES[page]).read_text(encoding="utf-8")


# ---- Python and programs
def is_run_by_others(block: Block) -> bool:
    """Return whether another file imports a file, or a command of a console names it."""
    stem = block.name.removesuffix(".py")
    texts = [b.text for b in files_of(block.page) if b.name != block.name]
    consoles = [b.text for b in all_blocks("console") if b.page == block.page]
    return any(re.search(rf"^(?:from|import) {stem}\b", t, re.M) for t in texts) or any(block.name in t for t in consoles)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore::FutureWarning")
@of_kind("file")
def test_files_hold(block: Block, tmp_path: Path) -> None:
    with reader_folder(block.page, tmp_path):
        if block.name.endswith(".cuir"):
            assert cuir.check(block.name).roles
        elif block.name.startswith("test_"):
            assert run_tests(block.name, examples=2)
        elif block.name.endswith(".py") and not is_run_by_others(block):
            run_python(block)


@pytest.mark.usefixtures("few_problems")
@of_kind("python")
def test_python_runs(block: Block, tmp_path: Path) -> None:
    with reader_folder(block.page, tmp_path):
        run_python(block)


@pytest.mark.usefixtures("few_problems")
@of_kind("gpu")
def test_code_for_a_gpu_runs_in_the_interpreter(block: Block, tmp_path: Path) -> None:
    with reader_folder(block.page, tmp_path):
        run_on_cpu(block)


@of_kind("check")
def test_programs_check(block: Block) -> None:
    assert cuir.check(cuir.parse(block.parts[1], block.page.name), consts=read_consts(block.name.split())).roles


def test_there_are_programs_in_the_pages() -> None:
    assert {b.page.name for b in all_blocks("check")} >= {"README.md", "language.md"}


@of_kind("ir")
def test_tile_ir_is_that_of_the_program_above(block: Block) -> None:
    (*_, program) = (b for b in read_blocks(block.page) if b.kind == "check" and b.span < block.span)
    stages = Lowering(cuir.check(cuir.parse(program.parts[1]))).stages()
    (text,) = (s.text for s in stages if s.name == block.name and s.text is not None)
    assert show(parse(text)) == block.text == show(parse(block.text))


@of_kind("data")
def test_data_are_read_by_their_command(block: Block, tmp_path: Path) -> None:
    with reader_folder(block.page, tmp_path):
        DATA_READERS[block.name](block.text)


# ---- faults, commands and their outputs
@of_kind("report")
def test_reports_are_those_of_the_page(block: Block, tmp_path: Path) -> None:
    assert block.change is not None
    with reader_folder(block.page, tmp_path, block.change):
        report = report_of(block)
        assert matches(block.text, report), report


@pytest.mark.sweep
@pytest.mark.usefixtures("few_problems")
@of_kind("console")
def test_commands_print_what_the_page_shows(block: Block, tmp_path: Path) -> None:
    commands = split_commands(block.text)
    assert commands
    with reader_folder(block.page, tmp_path, block.change):
        for written, display in commands:
            command = f"{written} -c BM=64,BN=64" if written.startswith("cuir bridge") else written  # fewer and smaller tiles
            output = output_of(command, 0 if block.change is None else None)
            assert matches(display, output), output


@of_kind("shell")
def test_commands_are_understood(block: Block) -> None:
    commands = read_commands(block.text)
    assert commands
    for command in commands:
        check_command(block.page, command)


RUNNABLE = sorted({c: b.page for b in all_blocks("shell") for c in read_commands(b.text) if find_need(c) is None}.items())


@pytest.mark.sweep
@pytest.mark.usefixtures("few_problems")
@pytest.mark.parametrize(("command", "page"), RUNNABLE, ids=[c for c, _ in RUNNABLE])
def test_commands_run(command: str, page: Path, tmp_path: Path) -> None:
    smaller = " -c BM=64,BN=64" if command.startswith("cuir verify") else ""
    with reader_folder(page, tmp_path):
        output_of(command + smaller, 0)


@pytest.mark.nvcc
@of_kind("nvcc")
def test_what_nvcc_compiles(block: Block, tmp_path: Path) -> None:
    with reader_folder(block.page, tmp_path, block.change):
        for command, display in split_commands(block.text):
            if command.startswith("nvcc "):
                subprocess.run([find_nvcc(), *command.split()[1:]], check=True)
            else:
                output = output_of(command, 0 if block.change is None else None)
                assert matches(display, output), output


@pytest.mark.nvcc
@pytest.mark.sweep
@pytest.mark.parametrize("block", [b for b in all_blocks("file") if b.name.endswith(".cuir")], ids=lambda b: b.name)
def test_kernels_compile_without_spills(block: Block, tmp_path: Path) -> None:
    with reader_folder(block.page, tmp_path):
        compiled = compile_cuda(cuir.lower(cuir.check(block.name)))
    assert compiled.cubin and not compiled.resources.spill_stores
