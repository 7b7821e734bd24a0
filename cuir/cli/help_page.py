"""Pages of `--help`: plain columns without boxes.

Examples come first; options are grouped by panel, in order of declaration.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from typer.core import TyperCommand, TyperGroup

from .output import make_styled_text, stdout

WIDEST = 100  # columns: longer lines are hard to read
NAMES = 28  # columns at most for the names of options, those above have their text below
WORDS = {  # for options whose text is the parser's
    "--help": "show this page and exit",
    "--install-completion": "install tab completion for this shell; --show-completion prints its script",
}
BLANK = ("\n", "")  # an empty line
Entry = tuple[str, str]  # a name and its text


class Command(TyperCommand):
    """Command whose help is a page of this module."""

    def get_help(self, ctx: Any) -> str:
        """Return the page: usage, purpose, examples, arguments, options."""
        purpose, examples = split_examples(self.help or "")
        sections: dict[str, list[Entry]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            if getattr(param, "hidden", False):
                continue
            panel = getattr(param, "rich_help_panel", None)
            panel = panel or ("Arguments" if param.param_type_name == "argument" else "Options")
            sections.setdefault(panel, []).append((spell(param), describe(param)))
        arguments = " ".join(spell_argument(p) for p in self.params if p.param_type_name == "argument")
        page = _Page()
        page.usage(f"{ctx.command_path} [OPTIONS] {arguments}".rstrip())
        page.paragraph(purpose)
        if examples:
            page.lines("Examples", examples)
        filled = {title: entries for title, entries in sections.items() if entries}
        column = measure(name for entries in filled.values() for name, _ in entries)
        for title, entries in filled.items():
            if page.parts[-1] != BLANK:
                page.parts.append(BLANK)
            page.section(title, entries, column)
        return page.render()


class Group(TyperGroup):
    """Command with subcommands, which its help lists by panel."""

    def get_help(self, ctx: Any) -> str:
        """Return the page: usage, purpose, the commands by panel, options."""
        sections: dict[str, list[Entry]] = {}
        for name, command in self.commands.items():
            if not command.hidden:
                panel = getattr(command, "rich_help_panel", None) or "Commands"
                sections.setdefault(panel, []).append((name, command.short_help or split_examples(command.help or "")[0]))
        hidden = {
            p.name for p in self.get_params(ctx) if getattr(p, "hidden", False) or p.name == "show_completion"
        }  # in one line with the other
        sections["Options"] = [(spell(p), describe(p)) for p in self.get_params(ctx) if p.name not in hidden]
        page = _Page()
        page.usage(f"{ctx.command_path} COMMAND [OPTIONS]     ({ctx.command_path} COMMAND --help: examples and options of one)")
        page.paragraph(self.help or "", spaced=False)  # a screen holds all
        column = measure(name for entries in sections.values() for name, _ in entries)
        for title, entries in sections.items():
            page.section(title, entries, column)
        return page.render()


def split_examples(text: str) -> tuple[str, list[str]]:
    """Split the docstring of a command into its purpose and the command lines of its section `Examples`."""
    purpose, _, examples = text.partition("Examples:")
    return " ".join(purpose.split()), [line.strip() for line in examples.splitlines() if line.strip()]


def spell_argument(param: Any) -> str:
    """Return an argument as the usage has it.

    Brackets stand where it may be left out, dots where several are possible.
    """
    name = (param.metavar or param.name).upper() + ("..." if param.nargs == -1 else "")
    return name if param.required else f"[{name}]"


def spell(param: Any) -> str:
    """Return a parameter as help shows it: an option's names and metavariable, or an argument's name."""
    if param.param_type_name == "argument":
        return spell_argument(param)
    names = ", ".join(sorted([*param.opts, *param.secondary_opts], key=lambda name: name.startswith("--")))
    if param.is_flag:
        return names
    longest = max(param.opts, key=len)
    return f"{names} {param.metavar or longest.lstrip('-').replace('-', '_').upper()}"


def describe(param: Any) -> str:
    """Return the text of an option, with its default."""
    text = next((words for name, words in WORDS.items() if name in param.opts), param.help or "")
    shows_default = getattr(param, "show_default", False)
    if isinstance(shows_default, str):
        return f"{text} (default: {shows_default})"
    if not shows_default or param.default in (None, False, ()) or param.is_eager:
        return text
    default = f"{param.default:g}" if isinstance(param.default, float) else param.default
    return f"{text} (default: {default})"


def measure(names: Iterable[str]) -> int:
    """Return the width of the column of names."""
    return max((len(name) for name in names if len(name) <= NAMES), default=NAMES)


class _Page:
    """Lines of a page, each as styled parts."""

    def __init__(self) -> None:
        self.width = max(40, min(WIDEST, shutil.get_terminal_size((WIDEST, 30)).columns))
        self.parts: list[tuple[str, str]] = []

    def usage(self, text: str) -> None:
        """Add the usage."""
        self.parts.append(("Usage: ", "bold"))
        self.parts.append((textwrap.fill(text, self.width, initial_indent=" " * 7, subsequent_indent=" " * 7).lstrip() + "\n", ""))

    def paragraph(self, text: str, spaced: bool = True) -> None:
        """Add text; between blank lines, if spaced."""
        blank = [BLANK] if spaced else []
        self.parts += [*blank, (textwrap.fill(" ".join(text.split()), self.width) + "\n", ""), *blank]

    def lines(self, title: str, lines: Iterable[str]) -> None:
        """Add lines as they are."""
        self.parts.append((title + "\n", "bold"))
        self.parts += [(f"  {line}\n", "") for line in lines]

    def section(self, title: str, entries: Iterable[Entry], column: int) -> None:
        """Add a titled list of two columns."""
        self.parts.append((title + "\n", "bold"))
        for name, text in entries:
            self.parts += self._entry(name, text, column)

    def _entry(self, name: str, text: str, column: int) -> Iterator[tuple[str, str]]:
        indent = " " * (column + 4)
        wrapped = textwrap.wrap(text, max(20, self.width - len(indent)), break_on_hyphens=False) or [""]
        yield "  ", ""
        yield name, "cyan"
        if len(name) > column:
            yield "\n" + indent, ""
        else:
            yield " " * (column + 2 - len(name)), ""
        yield wrapped[0] + "\n", ""
        yield from ((f"{indent}{line}\n", "") for line in wrapped[1:])

    def render(self) -> str:
        """Return the page, coloured where standard output is a terminal that has colours."""
        console = stdout()
        if not console.is_terminal:
            return "".join(text for text, _ in self.parts).rstrip("\n")
        with console.capture() as capture:
            console.print(make_styled_text(*self.parts), soft_wrap=True)
        return capture.get().rstrip("\n")
