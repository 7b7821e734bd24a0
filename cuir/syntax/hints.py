"""Messages of syntax errors: the texts, and patterns that recognise common slips."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from ..text.diagnostics import Diagnostic, Note
from ..text.source import Span

MakeSpan = Callable[[int, int, int, int], Span]


@dataclass(frozen=True)
class Hint:
    """A common slip, recognised by the text at the error and before it.

    `before` is matched at the end of the text before the error, within the line.
    """

    code: str
    message: str
    hint: str
    at: str
    before: str = ""
    example: str = ""  # a text that shows the slip; each is tried by a test


_STATEMENT = r"(?:^|[:;])\s*"
HINTS = (
    Hint("P005", "there is no `while`", "write `for i in range(...)`; the trip count is known before the loop", r"while\b", example="while x:"),
    Hint("P005", "there is no `break`: loops run to their end", "give `range` the right bounds, or guard the body with `if`", r"break\b", example="break"),
    Hint("P005", "there is no `continue`: loops run to their end", "put the rest of the body under an `if`", r"continue\b", example="continue"),
    Hint("P005", "there is no `import`: a program is one text", "write the @func into this file", r"(?:import|from)\b", example="import x"),
    Hint("P005", "there are no classes", "pass values as tuples", r"class\b", example="class A:"),
    Hint("P005", "there is no `async` or `await`", "asynchronous work is started by calls such as `copy_async` and `mma_async`", r"(?:async|await)\b", example="async x"),
    Hint("P005", "there are no exceptions", "leave it out: errors are found by the checker and the interpreter", r"(?:try|except|finally|raise)\b", example="try:"),
    Hint("P005", "there is no `assert`", "state it as a comment", r"assert\b", example="assert x"),
    Hint("P005", "there is no `global` or `nonlocal`", "free names of a @func are parameters of the kernel", r"(?:global|nonlocal)\b", example="global x"),
    Hint("P005", "there is no `pass`", "leave the line out; a branch or a loop that would have no other line is left out whole", r"pass\b", example="pass"),
    Hint("P005", "there is no `del`", "leave it out", r"del\b", example="del x"),
    Hint("P005", "there are no generators", "return a tuple", r"yield\b", example="yield x"),
    Hint("P006", "there is no `lambda`", "write a @func and call it by name", r"lambda\b", example="x = lambda a: a"),
    Hint("P006", "there is no `is`", "compare with `==` or `!=`", r"is\b", example="x = a is b"),
    Hint("P006", "there is no `in` but in `for`", "compare with `==`, joined by `or`", r"(?:not\s+)?in\b", r"[\w)\]]\s*", "x = a in b"),
    Hint("P006", "there is no `None`", "leave the argument out", r"None\b", example="x = None"),
    Hint("P006", "there are no comprehensions", "write a loop", r"(?:for|async)\b", r"[\w)\]]\s*", "x = [a for a in b]"),
    Hint("P006", "there is no power operator `**`", "multiply; for x > 0 `exp2(y * log2(x))`", r"\*", r"\*", "x = a ** b"),
    Hint("P006", "there is no `@` operator", "write `mma(a, b)` or `mma_async(a, b)`", r"@", r"[\w)\]]\s*", "x = a @ b"),
    Hint("P006", "there are no shifts", "multiply or divide (`//`) by a power of two", r"[<>]", r"([<>])(?=$)", "x = a << b"),
    Hint("P006", "there is no `:=`", "assign in a statement of its own", r":=|=", r"(?::|\w\s*)", "x = (a := b)"),
    Hint("P006", "there are no formatted, raw or byte strings", "a string is only the name of a role, an arch or a hint", r"\w+[\"']", example='x = f"a"'),
    Hint("P006", "a string has no backslashes and ends on its line", "a string is only the name of a role, an arch or a hint", r"[\"']", example='x = "a'),
    Hint("P006", "there are no dicts or sets", "use a tuple `(a, b)`", r"[{}]", example="x = {a}"),
    Hint("P006", "there are no `*args` or `**kwargs`", "write the arguments out", r"\*", r"[(,]\s*", "x = a(*b)"),
    Hint("P005", "one statement per line, found `;`", "put the next statement on its own line", r";", example="x = a; y = b"),
    Hint("P005", "lines are not continued with a backslash", "put the expression in parentheses", r"\\", example="x = a + \\"),
    Hint("P005", "a @func has no return annotation", "leave out `-> ...`", r"->|>", r"(?:\)\s*|-)", "@func\ndef f(x) -> f32:"),
    Hint("P005", "there is no `!`", "write `not` for scalars, `~` for tiles", r"!", example="x = !a"),
    Hint("P005", "there is no `&&` or `||`", "write `and`, `or` for scalars, `&`, `|` for tiles", r"[&|]", r"[&|]", "x = a && b"),
    Hint("P005", "there is no `++` or `--`", "write `x += 1`", r"\n", r"(?:\+\+|--)", "x++"),
    Hint("P009", "there is no such augmented assignment", "write it out: `x = x & y` for `x &= y`; there are += -= *= /= //= %=", r"=", r"[&|^@]", "x &= b"),
    Hint("P009", "names are not annotated in a body", "leave out the annotation", r":", _STATEMENT + r"\w+\s*", "x: f32 = a"),
    Hint("P017", "numbers are decimal: no hexadecimal, no suffix", "write the number out", r"[A-Za-z_]\w*", r"(?<![\w.])[0-9][0-9_.]*", "x = 0x10"),
    Hint("P003", "`else` and `elif` belong to an `if` of the same indentation", "line it up with its `if`", r"(?:else|elif)\b", r"^\s*", "else:"),
)  # fmt: skip

_WORDS = {
    "_NEWLINE": "the end of the line", "_INDENT": "an indented block", "_DEDENT": "the end of the block", "$END": "the end of the text",
    "NAME": "a name", "INT": "a number", "COLON": "`:`", "COMMA": "`,`", "LPAR": "`(`", "RPAR": "`)`", "LSQB": "`[`", "RSQB": "`]`",
    "DEF": "`def`", "IN": "`in`", "ELSE": "`else`", "ASSIGN": "`=`", "DOT": "`.`", "AS": "`as`", "AT": "`@`", "STAR": "`*`",
}  # fmt: skip
_EXPRESSION = {"NAME", "INT", "FLOAT", "STRING", "LONG_STRING", "TRUE", "FALSE", "LPAR", "LSQB", "NOT", "MINUS", "TILDE", "PLUS"}
_OPERATORS = {
    "PLUS",
    "MINUS",
    "STAR",
    "SLASH",
    "DSLASH",
    "PERCENT",
    "AMPERSAND",
    "PIPE",
    "CARET",
    "COMPARE",
    "AND",
    "OR",
    "IF",
    "DOT",
    "LPAR",
    "LSQB",
}
_HEADER = re.compile(r"\s*(?:if|elif|else|for|with|def)\b")
_SCAN = re.compile(r'"{3}[^\\]*?"{3}|\'{3}[^\\]*?\'{3}|"[^"\\\n]*"|\'[^\'\\\n]*\'|#[^\n]*|[()\[\]]')


def explain(error: UnexpectedInput, text: str, span: MakeSpan) -> tuple[Diagnostic, int]:
    """Return the diagnostic for a syntax error of Lark in `text`, and the line at which parsing stopped."""
    at = len(text) if _is_at_end(error) or error.pos_in_stream is None else min(error.pos_in_stream, len(text))
    newline = isinstance(error, UnexpectedToken) and error.token.type in ("_NEWLINE", "_INDENT", "_DEDENT")
    if isinstance(error, UnexpectedToken) and error.token.type in ("_INDENT", "_DEDENT"):
        at = _skip_layout(text, at)
    if at == len(text):
        at = len(text.rstrip())
    line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
    token = _describe_token(text, at)
    width = max(1, len(token.strip("`")) if token.startswith("`") else 1)
    error_span = span(line, column, line, column + width)
    make = _find_special(error, text, at, newline, error_span, span)
    if make is None:
        expected = _describe_expected(error)
        make = Diagnostic("P001", f"expected {expected}, found {token}" if expected else f"{token} cannot stand here", error_span)
    return make, line


def _is_at_end(error: UnexpectedInput) -> bool:
    return isinstance(error, UnexpectedToken) and error.token.type == "$END"


def _skip_layout(text: str, at: int) -> int:
    """Return the start of the next line of code after the line break at `at`."""
    match = re.compile(r"(?:\n[ ]*(?:#[^\n]*)?)*").match(text, at)
    return match.end() if match else at


def _describe_token(text: str, at: int) -> str:
    rest = text[at:]
    if not rest.strip():
        return "the end of the text"
    if rest[0] == "\n" or rest.lstrip(" ").startswith(("#", "\n")):
        return "the end of the line"
    match = re.match(r"[A-Za-z_]\w*|[0-9][0-9_.]*|//=?|[-+*/%=!<>]=|.", rest)
    return f"`{match[0] if match else rest[0]}`"


def _find_special(error: UnexpectedInput, text: str, at: int, newline: bool, error_span: Span, span: MakeSpan) -> Diagnostic | None:
    token = error.token.type if isinstance(error, UnexpectedToken) else ""
    start = text.rfind("\n", 0, at) + 1
    before, rest = text[start:at], text[at:]
    current = text[start:].split("\n", 1)[0]
    indent = len(current) - len(current.lstrip(" "))
    if "\t" in current[: len(current) - len(current.lstrip())]:
        return Diagnostic("P003", "blocks are indented with spaces, found a tab", error_span, hint="replace tabs by four spaces")
    opened = _find_open_brackets(text[:at])
    if rest[:1] in (")", "]") and not opened:
        return Diagnostic("P004", f"`{rest[0]}` closes no bracket", error_span, hint="remove it, or open one")
    if rest[:1] in (")", "]") and opened and text[opened[-1]] != {")": "(", "]": "["}[rest[0]]:
        bracket_span = _make_span(text, opened[-1], span)
        return Diagnostic(
            "P004", f"`{rest[0]}` does not close `{text[opened[-1]]}`", error_span, (Note("which was opened here", bracket_span),)
        )
    for h in HINTS:
        if re.match(h.at, rest) and (not h.before or re.search(f"(?:{h.before})$", before)):
            return Diagnostic(h.code, h.message, error_span, hint=h.hint)
    if opened and (not before.strip() or not rest.strip()):
        first = text.rfind("\n", 0, opened[-1]) + 1
        base = len(text[first:]) - len(text[first:].lstrip(" "))
        if indent <= base or not rest.strip() or re.match(r"(?:return|def|with|for|elif|@)", rest):
            bracket = text[opened[-1]]
            return Diagnostic(
                "P004", f"`{bracket}` is never closed", _make_span(text, opened[-1], span), hint=f"add `{')' if bracket == '(' else ']'}`"
            )
    if token == "_INDENT":
        return Diagnostic("P003", "this line is indented more than its block", error_span, hint="line it up with the statement above")
    if token == "_DEDENT" or "_INDENT" in _list_accepted(error):
        return Diagnostic(
            "P003", f"expected an indented block, found {_describe_token(text, at)}", error_span, hint="indent the body by four spaces"
        )
    if _HEADER.match(current) and "COLON" in _list_accepted(error) and (newline or not rest.strip() or rest[0] in "\n#"):
        return Diagnostic("P008", "expected `:` at the end of this line", error_span, hint="add `:`")
    if isinstance(error, UnexpectedCharacters) and rest:
        name = "a non-ASCII character" if ord(rest[0]) > 127 else "a character"
        return Diagnostic(
            "P002", f"{name} that CuIR does not know: {rest[0]!r}", error_span, hint="names are made of ASCII letters, digits and `_`"
        )
    return None


def _find_open_brackets(text: str) -> list[int]:
    """Return offsets of the brackets still open at the end of the text."""
    opened: list[int] = []
    for match in _SCAN.finditer(text):
        if match[0] in ("(", "["):
            opened.append(match.start())
        elif match[0] in (")", "]") and opened:
            opened.pop()
    return opened


def _make_span(text: str, at: int, span: MakeSpan) -> Span:
    line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
    return span(line, column, line, column + 1)


def _list_accepted(error: UnexpectedInput) -> set[str]:
    if isinstance(error, UnexpectedToken):
        return set(error.accepts or error.expected)
    return set(getattr(error, "allowed", None) or ())


def _describe_expected(error: UnexpectedInput) -> str:
    """Describe the tokens that could stand here."""
    names = _list_accepted(error)
    words: list[str] = []
    if {"INT", "NAME"} <= names:
        words.append("a statement" if {"FOR", "IF"} <= names else "an expression")
        names -= _EXPRESSION | {"AT", "DEF"}
    elif {"PLUS", "STAR"} <= names:
        words.append("an operator")
        names -= _OPERATORS | ({"ASSIGN"} if "COMMA" in names else set())
    words += [word for name, word in _WORDS.items() if name in names]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}" if words else ""
