"""`file.py:function` -> Specification, parameters from a command line, and the errors of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import corpus
import cuir
from cuir.diagnostics import CuirError
from cuir.spec import Lengths
from cuir.spec_function import FunctionSpecification
from cuir.spec_loading import load_any, load_specification

TEXT = '''
import torch
from cuir.spec import Specification

def mask(b, h, q_idx, kv_idx, *, window: int = 4):
    """A window."""
    return q_idx - kv_idx <= window

def score(score, b, h, q_idx, kv_idx):
    return score * 2

def factory(size: int = 3, flag: bool = False, rate: float = 0.5):
    return lambda b, h, q, k: q - k <= size

def pair():
    return mask, score

def needs(size):
    return mask

def breaks():
    return [][1]

def number():
    return 3

ready = Specification("ready", mask)
value = 3

def capped(cap: float = 50.0):
    return lambda score, b, h, q, k: cap * torch.tanh(score / cap)
'''


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(TEXT)
    return file


def row(spec_name: str, path: Path, **parameters: str) -> list[bool]:
    """Which of 8 keys the last of 8 queries sees."""
    return load_specification(f"{path}:{spec_name}", parameters).mask(Lengths(1, 1, 1, 8, 8))[0, 0, 7].tolist()


def test_what_a_name_may_hold(path: Path) -> None:
    assert row("mask", path) == [False] * 3 + [True] * 5
    assert row("mask", path, window="1") == [False] * 6 + [True] * 2
    assert row("factory", path, size="2", flag="true", rate="1.5") == [False] * 5 + [True] * 3
    assert row("ready", path) == row("mask", path) == row("pair", path)
    assert load_specification(f"{path}:score").score_mod is not None and load_specification(f"{path}:pair").score_mod is not None
    assert load_specification(f"{path}:mask").doc == "A window."
    assert row("factory", path, size="2", flag="true", rate="inf") == [False] * 5 + [True] * 3  # a number that it can mean


@pytest.mark.parametrize(
    ("reference", "parameters", "code", "says"),
    [
        ("{path}", {}, "X112", "no `reference`"),
        ("{path}x:mask", {}, "X110", "file.py:function"),
        ("{folder}/none.py:mask", {}, "X111", "none.py"),
        ("{path}:absent", {}, "X112", "`absent`"),
        ("{path}:mask", {"windows": "3"}, "X114", "`windows`"),
        ("{path}:mask", {"window": "wide"}, "X114", "found `wide`"),
        ("{path}:ready", {"window": "1"}, "X114", "takes no parameters"),
        ("{path}:capped", {"cap": "nan"}, "X114", "found nan"),
        ("{path}:capped", {"cap": "inf"}, "X114", "NaN with cap=inf"),
        ("{path}:capped", {"cap": "0"}, "X114", "NaN with cap=0"),
        ("{path}:value", {}, "X115", "found int"),
        ("{path}:number", {}, "X115", "found int"),
        ("{path}:needs", {}, "X116", "needs size"),
        ("{path}:breaks", {}, "X113", "IndexError"),
    ],
)
def test_errors(path: Path, reference: str, parameters: dict[str, str], code: str, says: str) -> None:
    with pytest.raises(CuirError) as caught:
        load_specification(reference.format(path=path, folder=path.parent), parameters)
    found = caught.value.diagnostics[0]
    assert found.code == code and says in found.message


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def any_name(b, h, q_idx, kv_idx):\n    return q_idx >= kv_idx\n", "any_name"),
        (
            "from math import gcd\nfrom inspect import signature\n_x = 1\ndef _hidden(): ...\ndef one(b, h, q, k):\n    return q >= k\n",
            "one",
        ),
        ("def other(b, h, q, k):\n    return q > k\n\ndef mine(b, h, q, k):\n    return q >= k\n", "mine"),
        ("def mine(b, h, q, k):\n    return q > k\n\ndef reference(q, k, v):\n    return q\n", "mine"),
        ("def two(b, h, q, k):\n    return q > k\n\ndef three(b, h, q, k):\n    return q\n", ""),
    ],
)
def test_a_file_stands_for_its_reference_the_function_of_its_name_or_its_only_one(tmp_path: Path, text: str, found: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    if found:
        assert load_any(str(file)).name == found and isinstance(load_any(str(file)), FunctionSpecification) == ("reference" in text)
        return
    with pytest.raises(CuirError, match="X112") as caught:
        load_any(str(file))
    assert f"name one, {file}:two; it has: two, three" in (caught.value.diagnostics[0].hint or "")


def test_the_functions_of_the_corpus_are_found_by_their_files() -> None:
    for name, place in corpus.functions().items():
        assert load_any(str(place)).name == corpus.specification(name)().name


def test_a_file_that_fails_is_shown_at_its_line(tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    for text, line in (("x = 1\ny = x / 0\n", 2), ("def f(:\n", 1), ("import torch\nimport no_such_module_here\n", 2)):
        file.write_text(text)
        with pytest.raises(CuirError) as caught:
            load_specification(f"{file}:f")
        found = caught.value.diagnostics[0]
        assert found.code == "X113" and found.span is not None and found.span.line == line and found.span.source.name == str(file)


def test_functions_stand_for_specifications() -> None:
    """As `attention` takes them; what is none is told as such."""

    def behind(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return kv_idx <= q_idx

    origin = cuir.load(str(Path(corpus.__file__).parent / "programs" / "flash_fwd_cluster.cuir"))
    assert "k <= q" in cuir.transfer(origin, behind).text
    consts = {"T": cuir.f16, "D": 64}
    found = cuir.verify(origin, behind, consts=consts, shrink=False).diagnostics[0]
    assert found.code == "V107" and "does not attend" not in found.message
    for call in (lambda: cuir.transfer(origin, 3), lambda: cuir.verify(origin, 3, consts=consts)):
        with pytest.raises(cuir.CuirError) as caught:
            call()
        assert caught.value.diagnostics[0].code == "X115"
