"""`file.py:function` -> Specification, parameters from a command line, and the errors of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import corpus
import cuir
from cuir.spec.function_specification import FunctionSpecification
from cuir.spec.loading import load_any, load_specification
from cuir.spec.specification import Lengths, Specification
from cuir.syntax.parser import parse
from cuir.text.diagnostics import CuirError

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
    """Return the keys, of 8, that the last of 8 queries sees."""
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
    result = caught.value.diagnostics[0]
    assert result.code == code and says in result.message


@pytest.mark.parametrize(
    ("text", "result"),
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
def test_a_file_stands_for_its_reference_the_function_of_its_name_or_its_only_one(tmp_path: Path, text: str, result: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    if result:
        assert load_any(str(file)).name == result and isinstance(load_any(str(file)), FunctionSpecification) == ("reference" in text)
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
        result = caught.value.diagnostics[0]
        assert result.code == "X113" and result.span is not None and result.span.line == line and result.span.source.name == str(file)


def test_functions_stand_for_specifications() -> None:
    """`attention` takes them; others are refused with a message."""

    def behind(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return kv_idx <= q_idx

    origin = cuir.load(str(Path(corpus.__file__).parent / "programs" / "flash_fwd_cluster.cuir"))
    assert "k <= q" in cuir.transfer(origin, behind).text
    consts = {"T": cuir.f16, "D": 64}
    result = cuir.verify(origin, behind, consts=consts, shrink=False).diagnostics[0]
    assert result.code == "V107" and "does not attend" not in result.message
    for call in (lambda: cuir.transfer(origin, 3), lambda: cuir.verify(origin, 3, consts=consts)):
        with pytest.raises(cuir.CuirError) as caught:
            call()
        assert caught.value.diagnostics[0].code == "X115"


HEAD = "import torch\nfrom torch.nn.functional import layer_norm as norm\nfrom math import sqrt\n\ndef _helper(x):\n    return x\n\n"
PLAIN = parse(
    '@kernel(arch="sm_90a")\ndef k(X: Global[f16, M, 64], W: Global[f16, 64], B: Global[f16, 64], Y: Global[f16, M, 64], eps: f32):\n    with role("a", warps=1):\n        i = 0\n'
).kernels()["k"]
ATTENTION = parse(
    '@kernel(arch="sm_90a")\ndef k(Q: Global[f16, B, H, M, 64], K: Global[f16, B, HK, N, 64], V: Global[f16, B, HK, N, 64], scale: f32):\n    with role("a", warps=1):\n        i = 0\n'
).kernels()["k"]


@pytest.mark.parametrize("arity", range(1, 8))
@pytest.mark.parametrize("by_name", [False, True])
def test_a_function_of_any_name_and_arity_specifies_a_kernel_without_mods(tmp_path: Path, arity: int, by_name: bool) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"{HEAD}def layer_norm({', '.join(f'a{i}' for i in range(arity))}, c=1.0):\n    return norm(a0, (64,))\n")
    result = load_any(f"{file}:layer_norm" if by_name else str(file), kernel=PLAIN)
    assert isinstance(result, FunctionSpecification) and result.name == "layer_norm"


def test_inputs_and_sizes_go_with_the_only_function(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        f"{HEAD}def rows(x, w, b, eps):\n    return x\n\ndef sizes(drawn):\n    return None\n\ndef inputs(sizes, generator):\n    return {{}}\n"
    )
    result = load_any(str(file), kernel=PLAIN)
    assert isinstance(result, FunctionSpecification) and result.sizes is not None and result.inputs is not None


def test_mods_stay_mods_for_an_attention(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def near(batch, head, i, j):\n    return i >= j\n")
    for kernel in (None, ATTENTION):
        result = load_any(str(file), kernel=kernel)
        assert isinstance(result, Specification) and result.mask_mod is not None
    assert isinstance(load_any(str(file), kernel=PLAIN), FunctionSpecification)


def test_several_functions_are_told(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def one(x):\n    return x\n\ndef two(x):\n    return x\n")
    with pytest.raises(CuirError) as error:
        load_any(str(file), kernel=PLAIN)
    result = error.value.diagnostics[0]
    assert (
        result.code == "X112"
        and "2 other functions" in result.message
        and "mine.py:one" in (result.hint or "")
        and "one, two" in (result.hint or "")
    )
