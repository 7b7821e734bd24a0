"""CUDA C++ as text: macros, constants, functions and statements, without a compiler.

Comments and inactive conditionals are blanked out in place. Blanking keeps every line and column, so that diagnostics
can point at the source.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from .whole_numbers import evaluate

LITERAL = re.compile(r'//[^\n]*|/\*.*?(?:\*/|\Z)|R"([^()\\\s]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(\w+)((?:[^\n\\]|\\.)*(?:\\\n(?:[^\n\\]|\\.)*)*)", re.M)
CONSTANT = re.compile(r"\bconstexpr\s+(?:static\s+)?(?:unsigned\s+|const\s+)?[\w:]+\s+([A-Za-z_]\w*\s*=[^;]*);")
ENUM = re.compile(r"\benum\b[^{;]*\{([^}]*)\}")
FUNCTION = re.compile(r"([A-Za-z_]\w*)\s*\(")
BRACKET = re.compile(r'"(?:\\.|[^"\\\n])*"|[()\[\]{}]')
CLOSES = {"(": ")", "[": "]", "{": "}"}
KEYWORDS = {
    "if",
    "for",
    "while",
    "switch",
    "return",
    "sizeof",
    "alignas",
    "do",
    "else",
    "__launch_bounds__",
    "__attribute__",
    "defined",
    "static_assert",
    "asm",
}
HEAD = 600  # characters before a function's name: its type and attributes
LIMIT = 1 << 20  # characters of a source


def blank(text: str, keep_strings: bool = True) -> str:
    """Replace comments, and string literals unless kept, by spaces."""

    def spaces(match: re.Match[str]) -> str:
        """Replace all characters but line breaks."""
        piece = match[0]
        return piece if keep_strings and piece[0] in "\"'R" else re.sub(r"[^\n]", " ", piece)

    return LITERAL.sub(spaces, text)


@dataclass(frozen=True)
class Macro:
    """Function-like macro: its parameters, and the range of its body in the text."""

    name: str
    parameters: tuple[str, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Function:
    """Function with a body: its parameters by name, and the range of the body between its braces."""

    name: str
    parameters: tuple[str, ...]
    start: int
    end: int
    kernel: bool
    template: tuple[str, ...] = ()


@dataclass
class CudaText:
    """Parsed CUDA source.

    Attributes:
        text: The source.
        code: The source with comments, directives and inactive branches of `#if` blanked.
        bodies: As `code`, with the bodies of macros.
    """

    text: str
    code: str
    bodies: str  # as `code`, with the bodies of macros still there
    constants: dict[str, int]
    macros: dict[str, Macro] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)

    def line(self, at: int) -> int:
        """Return the line of an offset, from 1."""
        return self.text.count("\n", 0, at) + 1

    def column(self, at: int) -> int:
        """Return the column of an offset, from 1."""
        return at - (self.text.rfind("\n", 0, at) + 1) + 1


def read(text: str, defines: Mapping[str, int] | None = None) -> CudaText:
    """Parse a source as it is compiled with these macros defined."""
    text = text.replace("\r\n", "\n")[:LIMIT]
    bodies = blank(text)
    values: dict[str, int] = dict(defines or {})
    macros: dict[str, Macro] = {}
    bodies = _conditionals(bodies, values, macros)
    code = DIRECTIVE.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), bodies)
    _constants(code, values)
    result = CudaText(text, code, bodies, values, macros)
    result.functions = {f.name: f for f in _functions(code)}
    return result


def constants(text: str, defines: Mapping[str, int] | None = None) -> dict[str, int]:
    """Return the whole-number constants of a source by name: macros, `constexpr` variables, enumerators."""
    return read(text, defines).constants


def _conditionals(code: str, values: dict[str, int], macros: dict[str, Macro]) -> str:
    """Blank what `#if` leaves out, and collect macros.

    A condition that cannot be evaluated keeps both branches.
    """
    out = list(code)
    stack: list[tuple[bool, bool, bool]] = []  # (this branch is active, some branch was, everything around is)
    start = 0

    def drop(begin: int, end: int) -> None:
        """Replace the characters of the output from begin to end by blanks; line ends stay."""
        for i in range(begin, end):
            if out[i] != "\n":
                out[i] = " "

    for directive in DIRECTIVE.finditer(code):
        active = all(branch_active for branch_active, _, _ in stack)
        if not active:
            drop(start, directive.start())
        start = directive.end()
        word, rest = directive[1], re.sub(r"\\\n", " ", directive[2]).strip()
        if word in ("if", "ifdef", "ifndef"):
            holds = (rest in values or rest in macros) == (word == "ifdef") if word != "if" else _condition(rest, values, macros)
            stack.append((holds is not False, holds is True, active))
        elif word in ("elif", "else") and stack:
            _, was, around = stack.pop()
            holds = True if word == "else" else _condition(rest, values, macros)
            stack.append((not was and holds is not False, was or holds is True, around))
        elif word == "endif" and stack:
            stack.pop()
        elif word == "define" and active:
            _define(directive, rest, values, macros, code)
        elif word == "undef" and active:
            values.pop(rest, None)
            macros.pop(rest, None)
        if not active and word not in ("if", "ifdef", "ifndef", "elif", "else", "endif"):
            drop(directive.start(), directive.end())
    return "".join(out)


def _condition(text: str, values: Mapping[str, int], macros: Mapping[str, Macro]) -> bool | None:
    """Evaluate a condition of `#if`; None if it cannot be known."""
    text = re.sub(r"\bdefined\s*\(?\s*(\w+)\s*\)?", lambda m: str(int(m[1] in values or m[1] in macros)), text)
    value = evaluate(text, values)
    return None if value is None else bool(value)


def _define(directive: re.Match[str], rest: str, values: dict[str, int], macros: dict[str, Macro], code: str) -> None:
    """Record a macro: a number in the constants, other bodies in the macros."""
    head = re.match(r"([A-Za-z_]\w*)(\(([^)]*)\))?", rest)
    if head is None:
        return
    if head[2] is not None:
        body = code.index(head[2], directive.start()) + len(head[2])
        macros[head[1]] = Macro(head[1], tuple(p.strip() for p in head[3].split(",") if p.strip()), body, directive.end())
        return
    value = evaluate(rest[head.end() :], values)
    if value is not None and head[1] not in values:  # what the caller defines comes before
        values[head[1]] = value
    elif value is None and rest[head.end() :].strip():
        body = directive.end() - len(directive[2].lstrip()) + head.end()
        macros[head[1]] = Macro(head[1], (), body, directive.end())


def _constants(code: str, values: dict[str, int]) -> None:
    """Collect `constexpr` variables and enumerators."""
    for declaration in CONSTANT.finditer(code):
        for part in arguments(declaration[1]):
            name, _, value = part.partition("=")
            number = evaluate(value, values)
            if number is not None:
                values[name.strip()] = number
    for enum in ENUM.finditer(code):
        following = 0
        for part in arguments(enum[1]):
            name, _, value = part.partition("=")
            number = evaluate(value, values) if value else following
            if number is not None and name.strip().isidentifier():
                values[name.strip()] = number
                following = number + 1


def arguments(text: str) -> list[str]:
    """Split a list at its commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    return [p.strip() for p in parts if p.strip()]


def closing(code: str, at: int) -> int:
    """Return the offset of the bracket that closes the one at `at`; the end of the text if none does."""
    return _pairs(code).get(at, len(code) - 1)


@functools.lru_cache(256)
def _pairs(code: str) -> dict[int, int]:
    """Return each opening bracket's closing one.

    Each kind is matched independently, and string literals are left out.
    """
    open_at: dict[str, list[int]] = {")": [], "]": [], "}": []}
    pairs: dict[int, int] = {}
    for match in BRACKET.finditer(code):
        bracket = match[0]
        if bracket in CLOSES:
            open_at[CLOSES[bracket]].append(match.start())
        elif open_at.get(bracket):
            pairs[open_at[bracket].pop()] = match.start()
    return pairs


def _functions(code: str) -> Iterator[Function]:
    """Yield functions at any level that have a body: `name(parameters) {`."""
    at = 0
    while candidate := FUNCTION.search(code, at):
        at = candidate.end()
        if candidate[1] in KEYWORDS or candidate[1] in ("__launch_bounds__", "__cluster_dims__"):
            continue
        end = closing(code, candidate.end() - 1)
        after = re.compile(r"\s*(?:const\s*|noexcept\s*)*\{").match(code, end + 1)
        if after is None:
            continue
        earliest = max(0, candidate.start() - HEAD)
        before = code[max(earliest, *(code.rfind(c, earliest, candidate.start()) + 1 for c in ";}{")) : candidate.start()]
        if not re.search(r"\w\s*[&*]?\s*$", before) and "__global__" not in before:
            continue  # no type before the name: not a definition
        inside = after.end() - 1
        stop = closing(code, inside)
        template = re.search(r"\btemplate\s*<([^<>]*)>", before)
        template_names = tuple(_parameter(p) for p in arguments(template[1])) if template else ()
        yield Function(
            candidate[1],
            tuple(_parameter(p) for p in arguments(code[candidate.end() : end])),
            inside + 1,
            stop,
            "__global__" in before,
            template_names,
        )
        at = stop


def _parameter(text: str) -> str:
    """Return the name of a parameter: of `float (&s)[N]`, `const T* x`, `int n = 1`."""
    text = text.partition("=")[0]
    array = re.search(r"\(\s*[&*]\s*(\w+)\s*\)", text)
    names = re.findall(r"[A-Za-z_]\w*", text)
    return array[1] if array else names[-1] if names else ""


@dataclass(frozen=True)
class Statement:
    """Statement of CUDA.

    An `if` is followed by its `else` in the list that holds it.

    Attributes:
        kind: if, else, loop, block or plain.
        head: Text of its condition.
        start: Offset of its start.
        end: Offset of its end.
        body: Statements that it governs.
    """

    kind: str
    head: str
    start: int
    end: int
    body: tuple[Statement, ...] = ()


WORD = re.compile(r"\s*(if(?:\s+constexpr)?|else|for|while|do|switch)\b")
DEPTH = 60  # of nested statements


def statements(code: str, start: int, end: int, depth: int = 0) -> tuple[Statement, ...]:
    """Return the statements of a range of code, nested."""
    body: list[Statement] = []
    at = start
    while (at := _skip(code, at, end)) < end:
        statement = _statement(code, at, end, depth)
        body.append(statement)
        at = max(statement.end, at + 1)
    return tuple(body)


def _skip(code: str, at: int, end: int) -> int:
    """Return the offset of the next character that is no space, semicolon or backslash."""
    while at < end and (code[at].isspace() or code[at] in ";\\"):
        at += 1
    return at


def _statement(code: str, at: int, end: int, depth: int) -> Statement:
    """Return the statement at an offset."""
    if depth > DEPTH:
        return Statement("plain", "", at, end)
    if code[at] == "{":
        stop = min(closing(code, at), end)
        return Statement("block", "", at, stop + 1, statements(code, at + 1, stop, depth + 1))
    word = WORD.match(code, at)
    if word is None:
        return Statement("plain", "", at, _semicolon(code, at, end))
    kind, inside = word[1].split()[0], word.end()
    head = ""
    if kind in ("if", "for", "while", "switch"):
        opening = code.find("(", inside, end)
        if opening < 0:
            return Statement("plain", "", at, _semicolon(code, at, end))
        stop = min(closing(code, opening), end)
        head, inside = code[opening + 1 : stop], stop + 1
    inside = _skip_spaces(code, inside, end)
    body = _statement(code, inside, end, depth + 1) if inside < end else Statement("plain", "", inside, end)
    stop = body.end
    if kind == "do":
        stop = _semicolon(code, stop, end)
    name = {"if": "if", "else": "else", "switch": "block"}.get(kind, "loop")
    return Statement(name, head, at, stop, (body,))


def _skip_spaces(code: str, at: int, end: int) -> int:
    """Return the offset of the next character that is no space or backslash."""
    while at < end and (code[at].isspace() or code[at] == "\\"):
        at += 1
    return at


def _semicolon(code: str, at: int, end: int) -> int:
    """Return the end of a plain statement.

    That is after its `;`, brackets and strings skipped; a block directly after a label or a macro ends it too.
    """
    i = at
    while i < end:
        c = code[i]
        if c in "([{":
            i = closing(code, i) + 1
            continue
        if c == '"':
            literal = re.compile(r'"(?:\\.|[^"\\\n])*"').match(code, i)
            i = literal.end() if literal else i + 1
            continue
        if c == ";":
            return i + 1
        if c == "}":
            return i
        i += 1
    return end
