"""Pygments lexer of CuIR programs: Python's, with the words of the language.

Its primitives are those of the table, so that a new one is highlighted without a change here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from pygments.lexers.python import PythonLexer
from pygments.token import Keyword, Name, _TokenType

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
