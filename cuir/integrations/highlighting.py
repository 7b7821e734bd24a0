"""Pygments lexer of CuIR programs: Python's, with the words of the language.

Its primitives are those of the table, so that a new one is highlighted without a change here.

TextMate grammar of CuIR programs, for editors: made from the words of the Pygments lexer.

`make docs` writes it to editors/vscode, from which VS Code and other editors read it.
"""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from pygments.lexers.python import PythonLexer
from pygments.token import Keyword, Name, Operator, _TokenType

from ..ops import TABLE
from ..syntax.types import DTYPES

TYPES = frozenset({"Global", "Scratch", "Shared", "Tile", "const", *DTYPES})
STRUCTURE = frozenset({"kernel", "func", "role", "tiles"})
PRIMITIVES = frozenset(op.written.split()[-1].rpartition(".")[2] for op in TABLE.values()) - STRUCTURE


class CuirLexer(PythonLexer):
    """Lexer of `.cuir` files and of programs in pages (```cuir)."""

    name = "CuIR"
    aliases: ClassVar[list[str]] = ["cuir"]
    filenames: ClassVar[list[str]] = ["*.cuir"]
    mimetypes: ClassVar[list[str]] = ["text/x-cuir"]
    url = "docs/language.md"

    def get_tokens_unprocessed(self, text: str, stack: Any = ("root",)) -> Iterator[tuple[int, _TokenType, str]]:
        """Yield Python's tokens, with names of the language as such."""
        for index, token, value in super().get_tokens_unprocessed(text, stack):
            if token in Name:
                if value in TYPES:
                    token = Keyword.Type
                elif token not in Name.Decorator and value in STRUCTURE:
                    token = Keyword.Declaration
                elif value in PRIMITIVES:
                    token = Name.Builtin
            yield index, token, value


SCOPE_NAME = "source.cuir"
# classes of words, in the order in which they are tried: those of the language go before Python's
SCOPES: dict[str, _TokenType] = {
    "storage.type.cuir": Keyword.Type,
    "keyword.declaration.cuir": Keyword.Declaration,
    "support.function.cuir": Name.Builtin,
    "constant.language.cuir": Keyword.Constant,
    "keyword.operator.word.cuir": Operator.Word,
    "keyword.control.cuir": Keyword,
}


def make_grammar() -> dict[str, Any]:
    """Return the grammar as JSON data."""
    words = {scope: set[str]() for scope in SCOPES}
    words["storage.type.cuir"] |= TYPES
    words["keyword.declaration.cuir"] |= STRUCTURE
    words["support.function.cuir"] |= PRIMITIVES
    for word in {*keyword.kwlist, *dir(builtins)} - TYPES - STRUCTURE - PRIMITIVES:
        scope = find_scope(word)
        if scope is not None:
            words[scope].add(word)
    patterns: list[dict[str, Any]] = [
        {"name": "comment.line.number-sign.cuir", "match": "#.*$"},
        _make_string('"""'),
        _make_string("'''"),
        {"name": "string.quoted.double.cuir", "match": r'"(?:[^"\\\n]|\\.)*"'},
        {"name": "string.quoted.single.cuir", "match": r"'(?:[^'\\\n]|\\.)*'"},
        {"name": "entity.name.function.decorator.cuir", "match": r"@[A-Za-z_]\w*"},
        {
            "name": "constant.numeric.cuir",
            "match": r"(?<![\w.])(?:0[xX][0-9a-fA-F_]+|0[bB][01_]+|\d[\d_]*\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)(?!\w)",
        },
        {
            "match": r"\b(def)\s+([A-Za-z_]\w*)",
            "captures": {"1": {"name": "keyword.control.cuir"}, "2": {"name": "entity.name.function.cuir"}},
        },
    ]
    patterns += [{"name": scope, "match": _match_words(words[scope])} for scope in SCOPES]
    return {
        "$schema": "https://raw.githubusercontent.com/martinring/tmlanguage/master/tmlanguage.json",
        "name": "CuIR",
        "scopeName": SCOPE_NAME,
        "fileTypes": ["cuir"],
        "patterns": patterns,
    }


def find_scope(word: str) -> str | None:
    """Return the scope of a word of Python's, as the lexer classes it; None for a plain name."""
    (token, _), *_ = [pair for pair in CuirLexer().get_tokens(f"x = {word}") if pair[1] == word] or [(Name, word)]
    return next((scope for scope, kind in SCOPES.items() if token in kind), None)


def _make_string(quotes: str) -> dict[str, Any]:
    """Return the pattern of a string that may have several lines."""
    return {"name": "string.quoted.docstring.cuir", "begin": quotes, "end": quotes}


def _match_words(words: Iterable[str]) -> str:
    """Return a regular expression of whole words."""
    return rf"\b(?:{'|'.join(sorted(words))})\b"
