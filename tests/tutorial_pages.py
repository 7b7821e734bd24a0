"""Blocks of the pages in docs/tutorials, run on a CPU. `python -m tests.tutorial_pages` writes their reports and outputs anew.

A comment before each block says what it is:

    <!-- file: NAME -->      a file of the reader's folder; `test_*.py` hold tests, which pass
    <!-- diff: NAME -->      a change of such a file, for the reports and commands behind it on the page
    <!-- report: NAME -->    the failure of a test file
    <!-- console -->         commands behind `$ `, each with its output, parts of it (around `...`), or nothing of it
    <!-- nvcc -->            commands that need nvcc
    <!-- gpu: NAME -->       Python for a GPU: runs here with the interpreter in the place of the compiled kernel
    <!-- picture -->         a drawing

`<!-- undo -->` takes a change back.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import cuir
from cuir.arguments.binding import TORCH
from cuir.cli import run as run_command
from cuir.testing import MismatchError

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs/tutorials"
BLOCK = re.compile(r"(?:<!-- (\w+)(?:: (.*?))? -->\n)?^(?:```(\w*)\n(.*?)^```$)", re.S | re.M)
LEFT_OUT = re.compile(r"^\.\.\.\n", re.M)
SECONDS = re.compile(r"\b\d+\.\d+ s\b")


@dataclass(frozen=True)
class Block:
    """A block of code of a page. `change`: the diff that it is about, and the file of that; `span`: of its text in the page."""

    page: str
    kind: str
    name: str
    text: str
    span: tuple[int, int]
    change: tuple[str, str] | None = None

    @property
    def title(self) -> str:
        return f"{self.page}:{self.kind}:{self.name}{'-changed' if self.change else ''}:{self.span[0]}"


def read_blocks(page: Path) -> list[Block]:
    blocks: list[Block] = []
    change = None
    text = page.read_text(encoding="utf-8")
    for result in BLOCK.finditer(text):
        kind, name, _, body = result.groups()
        change = (
            (name, body)
            if kind == "diff"
            else None
            if "<!-- undo -->" in text[blocks[-1].span[1] if blocks else 0 : result.start()]
            else change
        )
        changed = kind in ("report", "console")
        blocks.append(Block(page.name, kind or "", name or "", body, result.span(4), change if changed else None))
    return blocks


def all_blocks(*kinds: str) -> list[Block]:
    return [b for page in sorted(FOLDER.glob("*.md")) for b in read_blocks(page) if not kinds or b.kind in kinds]


def apply_diff(text: str, diff: str) -> str:
    """Replace the `-` lines of each hunk, which lie together once in the text, by its `+` lines; `@@` parts hunks."""
    for hunk in diff.split("@@\n"):
        removed, added = ("".join(line[1:] + "\n" for line in hunk.splitlines() if line.startswith(sign)) for sign in "-+")
        assert text.count(removed) == 1, f"{text.count(removed)} places for the diff"
        text = text.replace(removed, added)
    return text


def write_folder(folder: Path, change: tuple[str, str] | None = None) -> None:
    """Write all files of the pages, one of them with a change."""
    for block in all_blocks("file"):
        text = apply_diff(block.text, change[1]) if change is not None and change[0] == block.name else block.text
        (folder / block.name).write_text(text, encoding="utf-8")


@contextlib.contextmanager
def reader_folder(folder: Path, change: tuple[str, str] | None = None) -> Iterator[None]:
    """A folder with the files of the pages, as the current one."""
    write_folder(folder, change)
    before = Path.cwd()
    os.chdir(folder)
    sys.path.insert(0, "")
    try:
        with mock.patch.dict(os.environ, {"COLUMNS": "110", "CUIR_CACHE": str(folder / "cache")}):
            yield
    finally:
        sys.path.remove("")
        os.chdir(before)
        for name in [n for n, m in sys.modules.items() if str(getattr(m, "__file__", "")).startswith(str(folder))]:
            del sys.modules[name]


def run_tests(name: str) -> int:
    """Run the tests of a file; return their number."""
    tests = [f for n, f in runpy.run_path(name).items() if n.startswith("test_")]
    for test in tests:
        test()
    return len(tests)


def report_of(name: str) -> str:
    try:
        run_tests(name)
    except MismatchError as error:
        return f"{error}\n"
    raise AssertionError(f"{name} passes in spite of the change")


def split_commands(text: str) -> list[tuple[str, str]]:
    """Commands of a console, and what stands below each."""
    parts = re.split(r"^\$ (.*)\n", text, flags=re.M)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def matches(display: str, output: str) -> bool:
    """Return whether lines of a page are the output, or its parts in order where `...` stands for others."""
    place, parts = 0, LEFT_OUT.split(display)
    for part in parts:
        place = output.find(part, place) + len(part)
        if place < len(part):
            return False
    return not display or len(parts) > 1 or display == output


def output_of(command: str, code: int | None = None) -> str:
    """Run a command, `cuir ...` or `python FILE`; return its output with seconds left out. code: its exit code."""
    program, *arguments = shlex.split(command)
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        if program == "python":
            try:
                runpy.run_path(arguments[0], run_name="__main__")
            except cuir.CuirError as error:
                print(f"cuir.CuirError: {error}")
        else:
            assert program == "cuir"
            assert run_command(arguments) in ((0, 1) if code is None else (code,)), output.getvalue()
    return (
        SECONDS.sub("... s", "\n".join(line.rstrip() for line in output.getvalue().replace(f"{Path.cwd()}/", "").splitlines())).strip()
        + "\n"
    )


class InterpretedKernel:
    """The interpreter, called as a compiled kernel is: outputs that are left out are allocated and returned."""

    def __init__(self, program: Any, *, consts: dict[str, Any] | None = None):
        self.checked = cuir.check(program, consts=consts)

    def __call__(self, **given: Any) -> Any:
        dims = {d: n for t in self.checked.tensors if t.name in given for d, n in zip(t.dims, given[t.name].shape, strict=True)}
        outputs = {
            t.name: torch.empty([dims.get(d, d) for d in t.dims], dtype=TORCH[t.dtype]) for t in self.checked.tensors if t.name not in given
        }
        cuir.run(self.checked, {**given, **outputs})
        return next(iter(outputs.values())) if len(outputs) == 1 else tuple(outputs.values())


SMALL = {"M, N, K = 8192, 4096, 4096": "M, N, K = 200, 264, 136", "timeit(20)": "timeit(1)", 'device="cuda"': 'device="cpu"'}


def run_on_cpu(block: Block) -> str:
    """Run a block for a GPU with small sizes and the interpreter; return what it prints."""
    text = block.text
    for large, small in SMALL.items():
        text = text.replace(large, small)
    assert '"cuda"' not in text
    output = io.StringIO()
    with contextlib.redirect_stdout(output), mock.patch.object(cuir, "compile", InterpretedKernel):
        exec(compile(text, block.name, "exec"), {"__name__": "__main__"})
    return output.getvalue()


def renew_console(text: str) -> str:
    """Write outputs of commands anew, but for those of which the page shows parts or nothing."""
    display = ""
    for command, below in split_commands(text):
        output = output_of(command)
        if not matches(below, output):
            print(f"{command}\n{output}")
        display += f"$ {command}\n{below if LEFT_OUT.search(below) or not below else output}"
    return display


def renew(page: Path) -> None:
    """Write the reports and outputs of a page anew."""
    import tempfile

    text = page.read_text(encoding="utf-8")
    for block in reversed(read_blocks(page)):
        if block.kind in ("report", "console"):
            with tempfile.TemporaryDirectory() as folder, reader_folder(Path(folder), block.change):
                if block.kind == "console":
                    output = renew_console(block.text)
                else:
                    output = block.text if matches(block.text, report := report_of(block.name)) else report
            text = text[: block.span[0]] + output + text[block.span[1] :]
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or sorted(map(str, FOLDER.glob("*.md"))):
        renew(Path(chosen))
