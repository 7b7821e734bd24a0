"""A model's answer as a program: extracted from its text, parsed, and merged into the origin.

Parsing is within limits, which hold against any answer; nothing here runs what the text says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from cuir.attn.splicing.splice import drop_unreachable
from cuir.syntax.nodes import Definition, Kernel, Program
from cuir.syntax.parser import parse
from cuir.syntax.printer import show
from cuir.text.diagnostics import CuirError
from cuir.text.source import Source, Span

MAX_CHARS = 120_000  # of an answer; the longest kernel of the corpus has 13,000
MAX_LINES = 2_500  # of a program
MAX_COLUMNS = 1_000
MAX_NESTING = 24  # of brackets
MAX_INDENT = 100  # columns
MAX_CHAIN = 400  # operators and commas of a statement: deep trees are slow to walk
NAME = "answer.cuir"  # what reports call a program that a model wrote

_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([\w+-]*)[^\n]*$")
_STARTS = re.compile(r"^(@kernel|@func)\b", re.MULTILINE)
_LANGUAGES = ("cuir", "python", "py", "")


@dataclass(frozen=True)
class Block:
    """Fenced block: its language tag, its text, and whether it was closed."""

    tag: str
    text: str
    closed: bool


def program_text(answer: str, finish: str = "stop") -> str:
    """Return the text of the only program of an answer.

    That is its block tagged `cuir`, or the only block that holds definitions, or an answer that is nothing but a
    program. Raises CuirError: A001 no program, A002 several, A003 too long, A004 too deep, A005 cut off.
    """
    if len(answer) > MAX_CHARS:
        raise CuirError.of(
            "A003",
            f"the answer has {len(answer):,} characters; at most {MAX_CHARS:,} are read",
            hint="answer with one block that holds the program and nothing else",
        )
    fenced = blocks(answer)
    tagged = [b for b in fenced if b.tag.lower() == "cuir"]
    chosen = tagged or [b for b in fenced if b.tag.lower() in _LANGUAGES and _STARTS.search(b.text)]
    if not chosen and not fenced and _STARTS.search(answer):
        first = next(line for line in answer.split("\n") if line.strip())
        if first.startswith(("@", "#")) or re.match(r"[A-Z]\w* = ", first):
            chosen = [Block("", answer, True)]
    if not chosen:
        cut = "; the answer was cut off at its token limit" if finish == "length" else ""
        raise CuirError.of(
            "A001",
            f"the answer holds no program: expected one block fenced with ```cuir, found {_describe_blocks(fenced)}{cut}",
            hint="answer with ```cuir, the definitions, ```",
        )
    if len(chosen) > 1:
        raise CuirError.of(
            "A002",
            f"the answer holds {len(chosen)} programs, expected one block fenced with ```cuir",
            hint="put all definitions into one block; pieces of code that explain something stand in the text without a fence",
        )
    if finish == "length" or not chosen[0].closed:
        raise CuirError.of(
            "A005",
            "the answer ends in the middle of its program" + (": the token limit cut it off" if finish == "length" else ""),
            hint="answer with the program alone, and with no more of it than has to be said",
        )
    text = chosen[0].text.replace("\r\n", "\n").replace("\t", "    ").strip("\n") + "\n"
    _check_limits(text)
    return text


def blocks(answer: str) -> list[Block]:
    """Return the fenced blocks of a text, in order."""
    fenced: list[Block] = []
    opening, tag, lines = "", "", list[str]()
    for line in answer.replace("\r\n", "\n").split("\n"):
        match = _FENCE.match(line)
        if not opening and match:
            opening, tag, lines = match[1], match[2], []
        elif opening and match and match[1][0] == opening[0] and len(match[1]) >= len(opening) and not match[2]:
            fenced.append(Block(tag, "\n".join(lines), True))
            opening = ""
        elif opening:
            lines.append(line)
    if opening:
        fenced.append(Block(tag, "\n".join(lines), False))
    return fenced


def read(text: str) -> Program:
    """Parse a text that keeps the limits.

    The program is parsed from its canonical form, so that places in reports are places of what is shown and judged.
    Raises CuirError with the codes of the parser, or A001 if there is no definition.
    """
    program = parse(text, NAME)
    if not program.items:
        raise CuirError.of("A001", "the block of the answer holds no definition", hint="answer with ```cuir, the definitions, ```")
    return parse(show(program), NAME)


def _describe_blocks(fenced: list[Block]) -> str:
    """Describe the blocks of an answer without a program, for a message."""
    if not fenced:
        return "text without a block"
    return f"{len(fenced)} block{'s' * (len(fenced) > 1)} without a definition ({', '.join(b.tag or 'no tag' for b in fenced[:4])})"


def _check_limits(text: str) -> None:
    """Check the limits on lines, columns, indents, brackets and operators of a program.

    Larger programs would keep the parser, or what walks its tree, busy for long. Raises CuirError A003, A004.
    """
    lines = text.split("\n")
    if len(lines) > MAX_LINES:
        raise CuirError.of(
            "A003", f"the program has {len(lines):,} lines; at most {MAX_LINES:,} are read", hint="loops and @funcs make programs short"
        )
    source, depth, links = Source(NAME, text), 0, 0
    for number, line in enumerate(lines, 1):
        span = Span(source, number, 1, number, min(len(line), 80) + 1)
        code = line.partition("#")[0]
        if len(line) > MAX_COLUMNS:
            raise CuirError.of(
                "A003", f"a line of {len(line):,} columns; at most {MAX_COLUMNS:,} are read", span, "break the expression into steps"
            )
        if len(line) - len(line.lstrip()) > MAX_INDENT:
            raise CuirError.of(
                "A004",
                f"a line indented by {len(line) - len(line.lstrip())} columns; at most {MAX_INDENT}",
                span,
                "put inner blocks into a @func",
            )
        links = (links if depth > 0 else 0) + len(re.findall(r"[-+*/%,&|^<>=~(\[]|\b(?:and|or|not|if)\b", code))
        if links > MAX_CHAIN:
            raise CuirError.of(
                "A004", f"{links} operators and commas in one statement; at most {MAX_CHAIN}", span, "break the expression into steps"
            )
        for char in code:
            depth += (char in "([{") - (char in ")]}")
            if depth > MAX_NESTING:
                raise CuirError.of("A004", f"brackets nested {depth} deep; at most {MAX_NESTING}", span, "break the expression into steps")


def merge(origin: Program, kernel: str, answer: Program) -> Program:
    """Replace definitions of `origin` by those of `answer` with the same name.

    The answer's kernel replaces `kernel`, whatever its name. New constants come first, other new definitions before the
    kernel. Functions that the origin used and that are unused now are left out. Raises CuirError A008 for an answer
    with several kernels.
    """
    kernels = list(answer.kernels().values())
    if len(kernels) > 1:
        raise CuirError.of(
            "A008",
            f"the answer holds {len(kernels)} kernels, expected one or none: {', '.join(k.name for k in kernels)}",
            kernels[1].span,
            "the kernel of the answer takes the place of the origin's; variants of it are const parameters",
        )
    new: dict[str, Definition] = {item.name: item for item in answer.items if not isinstance(item, Kernel)}
    items: list[Definition] = []
    for item in origin.items:
        if isinstance(item, Kernel):
            items.append(kernels[0] if kernels and item.name == kernel else item)
        else:
            items.append(new.pop(item.name, item))
    place = next(i for i, item in enumerate(items) if isinstance(item, Kernel))
    functions = [item for item in new.values() if item.name in answer.funcs()]
    items[place:place] = functions
    constants = [item for item in new.values() if item.name not in answer.funcs()]
    return replace(origin, items=tuple(drop_unreachable([*constants, *items], origin)))
