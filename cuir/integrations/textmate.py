"""TextMate grammar of CuIR programs, for editors: made from the words of the Pygments lexer.

`make docs` writes it to editors/vscode, from which VS Code and other editors read it.
"""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Iterable
from typing import Any

from pygments.token import Keyword, Name, Operator, _TokenType

from .highlighting import PRIMITIVES, STRUCTURE, TYPES, CuirLexer

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
