"""The lexer knows the language's words, keeps every character, and is found by name and by file."""

from __future__ import annotations

import pytest
from pygments.token import Error, Keyword, Name

import corpus
from cuir.integrations.highlighting import PRIMITIVES, CuirLexer
from cuir.ops import TABLE


@pytest.mark.parametrize("name", ["flash_fwd_sm90", "decode_cache_sm90"])
def test_programs_are_lexed_whole(name: str) -> None:
    text = corpus.kernels()[name].read_text(encoding="utf-8")
    tokens = list(CuirLexer(stripnl=False, ensurenl=False).get_tokens(text))
    assert "".join(value for _, value in tokens) == text and not any(token is Error for token, _ in tokens)


def test_words_of_the_language_have_kinds() -> None:
    text = '@kernel(arch="sm_90a")\ndef k(X: Global[f16, M]):\n    with role("a", warps=1):\n        y = copy_async(X[0], s, full[0])\n'
    kinds = {value: token for token, value in CuirLexer().get_tokens(text)}
    assert kinds["Global"] in Keyword and kinds["f16"] in Keyword and kinds["role"] in Keyword
    assert kinds["copy_async"] in Name.Builtin and kinds["@kernel"] in Name.Decorator and kinds["X"] in Name


def test_every_primitive_is_known() -> None:
    assert {op.name for op in TABLE.values() if op.name.isidentifier() and not op.name.startswith(("role", "tiles"))} <= PRIMITIVES
