"""The lexer knows the language's words, keeps every character, and is found by name and by file.

The TextMate grammar is the one that `make docs` writes, and classes characters as the Pygments lexer does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pygments.token import Comment, Error, Keyword, Name, Number, Operator, String, _TokenType

import corpus
from cuir.integrations.highlighting import PRIMITIVES, SCOPE_NAME, CuirLexer, find_scope, make_grammar
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


ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "editors/vscode"
# what a reader sees in one colour: of the lexer, and of the grammar by the beginning of its scopes
CLASSES: list[tuple[str, _TokenType, str]] = [
    ("comment", Comment, "comment"),
    ("string", String, "string"),
    ("type", Keyword.Type, "storage.type"),
    ("structure", Keyword.Declaration, "keyword.declaration"),
    ("constant", Keyword.Constant, "constant.language"),
    ("keyword", Keyword, "keyword.control"),
    ("word operator", Operator.Word, "keyword.operator"),
    ("primitive", Name.Builtin, "support.function"),
    ("decorator", Name.Decorator, "entity.name.function.decorator"),
    ("function", Name.Function, "entity.name.function"),
    ("number", Number, "constant.numeric"),
]


def class_by_lexer(text: str) -> list[str]:
    tokens = CuirLexer(stripnl=False, ensurenl=False).get_tokens(text)
    return [c for token, value in tokens for c in [next((n for n, kind, _ in CLASSES if token in kind), "")] * len(value)]


def class_by_grammar(text: str, grammar: dict[str, Any]) -> list[str]:
    """Classes of characters, as an editor that reads TextMate grammars finds them: the first match wins, the first pattern of equals."""
    classes = [""] * len(text)
    for begin, end, scope in find_scopes(text, grammar["patterns"]):
        classes[begin:end] = [next((n for n, _, start in CLASSES if scope.startswith(start)), scope)] * (end - begin)
    return classes


def find_scopes(text: str, patterns: list[dict[str, Any]]) -> Iterator[tuple[int, int, str]]:
    compiled = [(re.compile(p.get("match") or p["begin"], re.M), p) for p in patterns]
    at = 0
    while at < len(text):
        matches = [(m.start(), number, m) for number, (expression, _) in enumerate(compiled) if (m := expression.search(text, at))]
        if not matches:
            return
        _, number, match = min(matches, key=lambda f: f[:2])
        pattern, at = compiled[number][1], match.end()
        if "end" in pattern:
            at = text.index(pattern["end"], match.end()) + len(pattern["end"])
        if "name" in pattern:
            yield match.start(), at, pattern["name"]
        for group, capture in pattern.get("captures", {}).items():
            yield match.start(int(group)), match.end(int(group)), capture["name"]
        at += at == match.start()


def test_the_file_is_what_make_docs_writes() -> None:
    """Else: `make docs`."""
    written = json.loads((FOLDER / "syntaxes/cuir.tmLanguage.json").read_text(encoding="utf-8"))
    assert written == make_grammar()
    assert "cuir.tmLanguage.json" in (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["flash_fwd_sm90", "gemm", "flash_bwd", "decode_paged"])
def test_characters_of_programs_are_classed_as_by_the_lexer(name: str) -> None:
    text = {**corpus.kernels(), **corpus.programs()}[name].read_text(encoding="utf-8")
    lexed, matched = class_by_lexer(text), class_by_grammar(text, make_grammar())
    differing = [i for i, (a, b) in enumerate(zip(lexed, matched, strict=True)) if a != b and not text[i].isspace()]
    at = differing[:1]
    assert not differing, (text[at[0] - 30 : at[0] + 30], lexed[at[0]], matched[at[0]])
    assert len(set(matched)) > 9, "a program shows nearly all classes"


def test_what_differs_is_seen() -> None:
    grammar = make_grammar()
    del grammar["patterns"][-4]  # the primitives
    text = corpus.programs()["gemm"].read_text(encoding="utf-8")
    assert class_by_lexer(text) != class_by_grammar(text, grammar)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('x = "# no" # comment', {"# no": "string", "# comment": "comment", "x": ""}),
        ("y = 1.5e-3 + 0x1F + a1 + .5", {"1.5e-3": "number", "0x1F": "number", "a1": "", ".5": "number"}),
        ("'''two\nlines''' + if_ + role", {"lines": "string", "if_": "", "role": "structure"}),
        ("@kernel\ndef f(X: Global[f16, M]):\n    pass", {"@kernel": "decorator", "def": "keyword", "f": "function", "f16": "type"}),
    ],
)  # fmt: skip
def test_small_texts(text: str, expected: dict[str, str]) -> None:
    for classes in (class_by_grammar(text, make_grammar()), class_by_lexer(text)):
        for word, kind in expected.items():
            (at,) = [m.start() for m in re.finditer(rf"(?<![\w.]){re.escape(word)}(?!\w)", text)]
            assert set(classes[at : at + len(word)]) == {kind}, word


def test_scopes_of_words() -> None:
    assert find_scope("for") == "keyword.control.cuir" and find_scope("True") == "constant.language.cuir"
    assert find_scope("range") == "support.function.cuir" and find_scope("and") == "keyword.operator.word.cuir"
    assert find_scope("acc") is None


def test_the_extension_names_its_files() -> None:
    package = json.loads((FOLDER / "package.json").read_text(encoding="utf-8"))
    (language,), (grammar,) = package["contributes"]["languages"], package["contributes"]["grammars"]
    assert language["extensions"] == [".cuir"] and grammar["scopeName"] == SCOPE_NAME and grammar["language"] == language["id"]
    for path in (language["configuration"], grammar["path"]):
        json.loads((FOLDER / path).read_text(encoding="utf-8"))
