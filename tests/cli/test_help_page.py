"""Pages of `--help`: they fit a screen, begin with examples, and name every option."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

import pytest

from cuir.cli import _commands
from cuir.cli.app import PANELS
from cuir.cli.help_page import split_examples

COMMANDS = {
    words: command
    for name, found in sorted(_commands().commands.items())
    for words, command in ({f"{name} {n}": c for n, c in found.commands.items()} if hasattr(found, "commands") else {name: found}).items()
}


@pytest.fixture(autouse=True)
def width_of_100(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


@pytest.mark.parametrize("argv", [("--help",), ("-h",), ()], ids=str)
def test_the_list_of_commands_fits_a_screen(cuir: Callable, argv: tuple[str, ...]) -> None:
    lines = cuir(*argv).out.rstrip("\n").split("\n")
    assert 24 <= len(lines) <= 30 and max(map(len, lines)) <= 100
    titles = [line for line in lines if line and not line.startswith(" ")][2:]
    assert titles == [*PANELS, "Options"]
    assert {line.split()[0] for line in lines if line.startswith("  ")} >= {words.split()[0] for words in COMMANDS}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_of_a_command_fits_60_lines(cuir: Callable, command: str) -> None:
    lines = cuir(*command.split(), "--help").out.rstrip("\n").split("\n")
    assert len(lines) <= 60 and max(map(len, lines)) <= 100
    assert lines[0].startswith(f"Usage: cuir {command} [OPTIONS]") and "Examples" in lines
    assert lines.index("Examples") < lines.index("Options") < next(i for i, x in enumerate(lines) if "--help" in x and i > 6)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_visible_option_has_an_entry_and_a_text(cuir: Callable, command: str) -> None:
    text = cuir(*command.split(), "--help").out
    for param in COMMANDS[command].params:
        if param.param_type_name == "option" and not param.hidden:
            names = ", ".join(sorted([*param.opts, *param.secondary_opts], key=lambda n: n.startswith("--")))
            assert re.search(rf"^  {re.escape(names)}\b.*\S", text, re.M), names
            assert param.help, names


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_are_command_lines_of_the_command(command: str) -> None:
    _, examples = split_examples(COMMANDS[command].help)
    assert examples
    for example in examples:
        words = shlex.split(re.split("[|>]", example)[0])
        named = ["cuir", *command.split()]
        assert words[: len(named)] == named
        COMMANDS[command].make_context(command, words[len(named) :], resilient_parsing=True)  # raises for an unknown option


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_pages_follow_the_width(cuir: Callable, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for command in ("verify", "check"):
        lines = cuir(command, "--help").out.split("\n")
        assert max(len(line) for line in lines if not line.startswith("  cuir ")) <= min(columns, 100)
    assert not re.search("[─│╭\x1b]", cuir("--help").out)


@pytest.mark.parametrize(
    ("text", "purpose", "examples"),
    [
        ("Do it.", "Do it.", []),
        ("Do it,\nwell.\n\nExamples:\n    cuir a\n    cuir b -x\n", "Do it, well.", ["cuir a", "cuir b -x"]),
    ],
)
def test_examples_are_split_from_the_purpose(text: str, purpose: str, examples: list[str]) -> None:
    assert split_examples(text) == (purpose, examples)
