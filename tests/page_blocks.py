"""Code blocks of the pages, run on a CPU. `python -m tests.page_blocks [PAGE ...]` writes the reports and outputs of tutorials anew.

A comment before each block says what it is:

    <!-- file: NAME -->      a file of the reader's folder: Python runs, programs check, `test_*.py` hold tests, which pass
    <!-- python -->          Python that runs from top to bottom
    <!-- gpu: NAME -->       Python for a GPU: runs here with the interpreter in the place of the compiled kernel
    <!-- check: CONSTS -->   a program in CuIR that checks
    <!-- ir: PASS -->        the tile IR of the program above, behind that pass; read and printed, it is the same
    <!-- data: NAME -->      JSON or TOML that the command for it reads (DATA_READERS)
    <!-- diff: NAME -->      a change of a file, for the reports and commands behind it on the page
    <!-- report: NAME -->    the failure of a test file
    <!-- console -->         commands behind `$ `, each with its output, parts of it (around `...`), or nothing of it
    <!-- shell -->           commands: targets, options and files exist, and what a test can (NEEDS) runs without an error
    <!-- nvcc -->            commands that need nvcc, as those of a console
    <!-- step: NAME -->      a step of a worked example, which the test of that page (WORKED_EXAMPLES) takes
    <!-- picture -->         a drawing
    <!-- text: REASON -->    what no program reads

`<!-- undo -->` takes a change back. Python that the page need not show stands in comments of several lines, `<!-- setup` before a block
and `<!-- holds` behind it; a line `...` of a setup is the place of the block. Files of the tutorials lie in one folder, those of another
page in a folder of that page.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import os
import re
import runpy
import shlex
import sys
import textwrap
import tomllib
import types
from collections.abc import Callable, Iterator
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
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(?:^ *<!-- (\w+)(?:: ?([^\n]*?))? ?-->\n)?^( *)```(\w*)\n(.*?)^\3```$", re.S | re.M)
HIDDEN = re.compile(r"^<!-- (setup|holds)\n(.*?)^-->$", re.S | re.M)
LEFT_OUT = re.compile(r"^\.\.\.\n", re.M)
TERMINAL = {"COLUMNS": "110", "LINES": "50", "TERM": "dumb", "TTY_COMPATIBLE": "1"}  # of 110 columns, without colours
SECONDS = re.compile(r"\b\d+\.\d+ s\b")


@dataclass(frozen=True)
class Block:
    """A block of code of a page.

    `change`: the diff that it is about, and the file of that. `span`: of its text in the page. `setup`, `holds`: hidden Python around it.
    """

    page: Path
    kind: str
    name: str
    language: str
    text: str
    span: tuple[int, int]
    change: tuple[str, str] | None = None
    setup: str = ""
    holds: str = ""

    @property
    def title(self) -> str:
        return f"{self.page.name}:{self.kind}:{self.name}{'-changed' if self.change else ''}:{self.span[0]}"

    @property
    def parts(self) -> tuple[str, str, str]:
        """Code to run before the block, the block inside of the set-up that it completes, and assertions to run after it."""
        place = re.search(r"^( *)\.\.\.\n", self.setup, re.M)
        if place is None:
            return self.setup, self.text, self.holds
        return "", self.setup[: place.start()] + textwrap.indent(self.text, place[1]) + self.setup[place.end() :], self.holds


@functools.cache
def read_blocks(page: Path) -> tuple[Block, ...]:
    """Read the fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    results = list(BLOCK.finditer(text))
    ends = [0, *(result.end() for result in results)]
    between = [text[end : result.start()] for end, result in zip(ends, results, strict=False)] + [text[ends[-1] :]]
    hidden = [dict(HIDDEN.findall(part)) for part in between]
    blocks: list[Block] = []
    change = None
    for number, result in enumerate(results):
        kind, name, _, language, body = result.groups()
        body = textwrap.dedent(body)
        change = (name, body) if kind == "diff" else None if "<!-- undo -->" in between[number] else change
        changed = kind in ("report", "console", "nvcc")
        around = hidden[number].get("setup", ""), hidden[number + 1].get("holds", "")
        blocks.append(Block(page, kind or "", name or "", language, body, result.span(5), change if changed else None, *around))
    return tuple(blocks)


def count_fences(page: Path) -> int:
    """Count the lines that open or close a block, indented ones too."""
    return len(re.findall(r"^\s*(?:```|~~~)", page.read_text(encoding="utf-8"), re.M))


def count_hidden(page: Path) -> int:
    """Count the comments of a page that hold Python."""
    return len(re.findall(r"^ *<!-- *(?:setup|holds)\b", page.read_text(encoding="utf-8"), re.M))


def find_indented_code(page: Path) -> list[str]:
    """Return first lines of code without a fence: indented by four behind an empty line, in lists too, where no page has paragraphs."""
    return re.findall(r"\n\n( {4,}(?![*-] |\d+\. |<!--)\S[^\n]*)", BLOCK.sub("", read_visible(page)))


def all_blocks(*kinds: str) -> list[Block]:
    """Return the blocks of all pages, or those of some kinds."""
    return [b for page in PAGES for b in read_blocks(page) if not kinds or b.kind in kinds]


def find_block(page: str, kind: str, name: str = "") -> Block:
    """Return the only block of a page (a path within the project) with this kind and name."""
    (block,) = (b for b in read_blocks(ROOT / page) if (b.kind, b.name) == (kind, name))
    return block


def is_tutorial(page: Path) -> bool:
    return page.parent == FOLDER


def read_visible(page: Path) -> str:
    """Read a page without its comments."""
    return re.sub(r"^<!--.*?-->\n", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)


def files_of(page: Path) -> list[Block]:
    """Return the files of the reader's folder of a page."""
    return [b for b in all_blocks("file") if b.page == page or (is_tutorial(page) and is_tutorial(b.page))]


def apply_diff(text: str, diff: str) -> str:
    """Replace the `-` lines of each hunk, which lie together once in the text, by its `+` lines; `@@` parts hunks."""
    for hunk in diff.split("@@\n"):
        removed, added = ("".join(line[1:] + "\n" for line in hunk.splitlines() if line.startswith(sign)) for sign in "-+")
        assert text.count(removed) == 1, f"{text.count(removed)} places for the diff"
        text = text.replace(removed, added)
    return text


def write_folder(page: Path, folder: Path, change: tuple[str, str] | None = None) -> None:
    """Write all files of a page, one of them with a change, beside a link to the corpus."""
    (folder / "corpus").symlink_to(ROOT / "corpus")
    for block in files_of(page):
        text = apply_diff(block.text, change[1]) if change is not None and change[0] == block.name else block.text
        (folder / block.name).write_text(text, encoding="utf-8")


@contextlib.contextmanager
def reader_folder(page: Path, folder: Path, change: tuple[str, str] | None = None) -> Iterator[None]:
    """A folder with the files of a page, as the current one."""
    write_folder(page, folder, change)
    before = Path.cwd()
    os.chdir(folder)
    sys.path.insert(0, "")
    try:
        with mock.patch.dict(os.environ, {**TERMINAL, "CUIR_CACHE": str(folder / "cache")}):
            yield
    finally:
        sys.path.remove("")
        os.chdir(before)
        for name in [n for n, m in sys.modules.items() if str(getattr(m, "__file__", "")).startswith(str(folder))]:
            del sys.modules[name]


def arguments_of(test: Any) -> list[dict[str, Any]]:
    """Return the keyword arguments of each case of a test, of one `pytest.mark.parametrize` over a single name."""
    marks = [m for m in getattr(test, "pytestmark", []) if m.name == "parametrize"]
    return [{mark.args[0]: value} for mark in marks for value in mark.args[1]] or [{}]


def tests_of(name: str, examples: int | None = None) -> dict[str, Callable[..., object]]:
    """Read the tests of a file, by name. examples: how many of a property at most."""
    text = Path(name).read_text(encoding="utf-8")
    if examples is not None:
        text = re.sub(r"max_examples=\d+", f"max_examples={examples}", text)
    module = types.ModuleType(name.removesuffix(".py"))
    module.__file__ = str(Path(name).absolute())
    exec(compile(text, name, "exec"), module.__dict__)
    return {n: f for n, f in vars(module).items() if n.startswith("test_")}


def run_tests(name: str, examples: int | None = None) -> int:
    """Run the tests of a file; return their number."""
    tests = tests_of(name, examples)
    for test in tests.values():
        for arguments in arguments_of(test):
            test(**arguments)
    return len(tests)


FAILING = re.compile(r"^Failing test case: (\w+)\((.*)\)\n", re.M)


def report_of(block: Block) -> str:
    """Return the report of a test file with a change; of a property, for the failing case that the page names."""
    case = FAILING.search(block.text)
    tests = tests_of(block.name)
    try:
        if case is None:
            for test in tests.values():
                test()
        else:
            arguments = {n: ast.literal_eval(value) for n, value in re.findall(r"(\w+)=('.*?'|[^,]+)", case[2])}
            tests[case[1]].hypothesis.inner_test(**arguments)  # type: ignore[attr-defined]
    except MismatchError as error:
        return f"{error}\n{case[0] if case else ''}"
    raise AssertionError(f"{block.name} passes in spite of the change")


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

    def __init__(self, program: Any, *, consts: dict[str, Any] | None = None, loader: str = "torch"):
        self.checked = program if isinstance(program, cuir.Checked) else cuir.check(program, consts=consts)

    def __call__(self, **arguments: Any) -> Any:
        dims = {d: n for t in self.checked.tensors if t.name in arguments for d, n in zip(t.dims, arguments[t.name].shape, strict=True)}
        outputs = {
            t.name: torch.empty([dims.get(d, d) for d in t.dims], dtype=TORCH[t.dtype])
            for t in self.checked.tensors
            if t.name not in arguments
        }
        cuir.run(self.checked, {**arguments, **outputs})
        return next(iter(outputs.values())) if len(outputs) == 1 else tuple(outputs.values())


SMALL = {
    "M, N, K = 8192, 4096, 4096": "M, N, K = 200, 264, 136",
    "Q_LEN=8192, KV_LEN=8192": "Q_LEN=130, KV_LEN=130",
    "timeit(20)": "timeit(1)",
    '"cuda"': '"cpu"',
    "head_dim=128)": 'head_dim=64, consts={"BM": 64, "BN": 64})',
}
WITH_BACKEND = ("flex_attention", "attention_with_kv_cache", "selected_attention", "varlen_attention")


def run_python(block: Block, smaller: dict[str, str] | None = None) -> str:
    """Run a block from top to bottom, with some of its texts replaced; return what it prints."""
    output = io.StringIO()
    module = types.ModuleType(block.name.removesuffix(".py") or "block")
    sys.modules[module.__name__] = module
    try:
        for part, name in zip(block.parts, ("setup", block.name or block.title, "holds"), strict=True):
            for large, small in (smaller or {}).items():
                part = part.replace(large, small)
            with contextlib.redirect_stdout(output):
                exec(compile(part, name, "exec"), module.__dict__)
    finally:
        del sys.modules[module.__name__]
    return output.getvalue()


def run_on_cpu(block: Block) -> str:
    """Run a block for a GPU with small sizes and the interpreter; return what it prints."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(cuir, "compile", InterpretedKernel))
        for name in WITH_BACKEND:
            stack.enter_context(mock.patch.object(cuir, name, functools.partial(getattr(cuir, name), backend="interpret")))
        return run_python(block, SMALL)


# ---- commands that are read alone
def read_commands(text: str) -> list[str]:
    """Return the commands of a block: lines without their comments, continued ones as one."""
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [c for c in (re.sub(r"(?:^|\s+)# .*", "", line).removeprefix("$ ").strip() for line in lines) if c]


def find_missing_files(page: Path, words: list[str]) -> list[str]:
    """Return the words that name a source (`x.cuir`, `x.py:f`, `folder/x`) which neither the page nor the project has.

    Names that begin with `my_` are the reader's, and those in `out/` are written by commands.
    """
    names = {b.name for b in [*files_of(page), *read_blocks(page)]}
    sources = [w.partition(":")[0] for w in words if re.match(r"[\w./-]+\.(?:cuir|py|sh)(?:$|:)|(?:tests|corpus|examples|benchmarks)/", w)]
    return [
        s for s in sources if s not in names and not s.startswith("out/") and not Path(s).name.startswith("my_") and not (ROOT / s).exists()
    ]


def is_program(path: Path) -> bool:
    return path.with_suffix(".py").exists() or (path / "__main__.py").exists()


def check_command(page: Path, command: str) -> None:
    """Check a command without running it: its program or target, options by the parser of the command, and the files that it reads."""
    words = shlex.split(command)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    program, *arguments = words
    if program == "cuir":
        parse_arguments(arguments)
        assert not find_missing_files(page, arguments), command
    elif program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
        assert {a for a in arguments if "=" not in a} <= set(targets), command
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
        assert {e for names in re.findall(r"\[([\w,]+)\]", command) for e in names.split(",")} <= set(extras), command
    elif program == "python" and arguments[0] == "-m":
        assert arguments[1] in ("pip", "pytest", "http.server") or is_program(ROOT.joinpath(*arguments[1].split("."))), command
        assert not find_missing_files(page, arguments[2:]), command
    elif program == "python":
        assert not find_missing_files(page, arguments[:1]), command
    else:
        assert program in OTHER_PROGRAMS, command


NEEDS = {  # why commands of shell blocks are read alone
    "a GPU": r"--gpu\b(?! ')|--on gpu|--loader pycuda|^cuir bench|^cuir tune (?!.*--(?:dry-run|choice))",
    "the network": r"--model",
    "nvcc": r"--ptx\b",
    "a person": r"--watch",
    "the reader's files": r"\bmy_|\btheirs\b|\b[A-Z]{4}\b|norms\.cuir|rsqrt",
    "a file of a command before": r"--show --out",
    "more than seconds": r"--exhaustive|--level full|^cuir (?:bridge|transfer|port|doctor|mutate)|--replay|--dry-run|--html",
}


def find_need(command: str) -> str | None:
    """Return what a command needs that a test has not, None if it runs."""
    return next((need for need, text in NEEDS.items() if re.search(text, command)), None) if command.startswith("cuir ") else "a shell"


OTHER_PROGRAMS = ("git", "source", ".", "torchrun", "nsys", "ncu", "vllm", "ray")


def parse_arguments(arguments: list[str]) -> None:
    """Parse the arguments of `cuir` by the command's parser; nothing runs."""
    from cuir.cli import _commands

    group: Any = _commands()
    with group.make_context("cuir", list(arguments)) as context:
        while hasattr(group, "commands"):
            name, group, rest = group.resolve_command(context, [*context._protected_args, *context.args])
            context = group.make_context(name, rest, parent=context)
        context.close()


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
            with tempfile.TemporaryDirectory() as folder, reader_folder(page, Path(folder), block.change):
                if block.kind == "console":
                    output = renew_console(block.text)
                else:
                    output = block.text if matches(block.text, report := report_of(block)) else report
            text = text[: block.span[0]] + output + text[block.span[1] :]
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or sorted(map(str, FOLDER.glob("*.md"))):
        renew(Path(chosen))
