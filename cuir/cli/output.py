"""Output of commands: text for people through rich, one JSON object with --json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..text.codes import CODES
from ..text.diagnostics import Diagnostic
from ..text.jsontext import to_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from .judged_kernel import JudgedKernel


def stdout() -> Console:
    """Return a console on standard output: text wraps on a terminal alone."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    console.soft_wrap = not console.is_terminal
    return console


def stderr() -> Console:
    """Return a console on standard error: text wraps on a terminal alone."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    console.soft_wrap = not console.is_terminal
    return console


def make_styled_text(*parts: str | tuple[str, str]) -> Text:
    """Return text from strings and pairs of a string and its style.

    Brackets in strings are kept: no output is markup.
    """
    from rich.text import Text

    return Text.assemble(*parts)


def exit_code(diagnostics: Iterable[Diagnostic]) -> int:
    """Return 2 if the call is to blame, 1 if the program is.

    The call is a file, an option, an argument, or the installation.
    """
    errors = list(diagnostics)
    return 2 if errors and all(d.code in CODES and CODES[d.code].call for d in errors) else 1


def print_errors(diagnostics: Iterable[Diagnostic], as_json: bool, judged: JudgedKernel | None = None) -> None:
    """Print errors to stderr for people, or as the one JSON object on stdout.

    judged: the kernel that is wrong; the object has it and its consts, and so has the text if the program is to blame.
    """
    errors = list(diagnostics)
    if as_json:
        print_json({"ok": False, "diagnostics": [d.as_json() for d in errors], **(judged.as_json() if judged is not None else {})})
        return
    from rich.text import Text

    console = stderr()
    for d in errors:
        console.print(colour(d), soft_wrap=True)
        console.print(Text(f"     = more: cuir explain {d.code}\n", style="dim") if d.code in CODES else Text(""), soft_wrap=True)
    if judged is not None and judged.consts and exit_code(errors) == 1:
        console.print(f"kernel {judged}", style="dim", soft_wrap=True)


def colour(d: Diagnostic) -> Any:
    """Return the text of a diagnostic with its head, carets and hints coloured."""
    from rich.text import Text

    text = Text()
    for line in d.render().split("\n"):
        style = ""
        if f"{d.severity}[{d.code}]" in line:
            style = "bold red" if d.severity == "error" else "bold yellow"
        elif line.startswith("      | "):
            style = "red"
        elif line.startswith("     = "):
            style = "cyan"
        elif ": note: " in line:
            style = "bold"
        text.append(line + "\n", style=style)
    text.rstrip()
    return text


def print_json(value: Mapping[str, Any]) -> None:
    """Print the JSON object of a command."""
    from .standard_output import get_json_stream

    print(to_json(value), file=get_json_stream(), flush=True)
