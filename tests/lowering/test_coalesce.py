"""Products in flight under several names: one set of registers, or a copy behind a wait, and always what the interpreter says."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import corpus
from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.interp import run
from cuir.lowering import lower
from cuir.lowering.coalesce import coalesced
from cuir.runtime.nvcc import compile_cuda
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from cuir.text.diagnostics import CuirError
from tests.lowering.conftest import one_file
from tests.strategies.effort import examples

HEAD = """\
@func
def issue(a, b):
    X = mma_async(a, b)
    return X

@func
def onto(a, b, c):
    X = mma_async(a, b, c)
    return X

@kernel(arch="sm_90a")
def {name}(Z: Global[f32, 4, 64, 8], n: i32):
    a, b = shared(f16, [2, 64, 64]), shared(f16, [2, 64, 64])
    with role("all", warpgroups=1):
        for i in range(2):
            store(a[i], cast((rows(64) * 3 + i) % 5 - cols(64) % 4, f16))
            store(b[i], cast(rows(64) % 3 - (cols(64) * 5 + i) % 7, f16))
        fence_async()
"""


def program(body: str, name: str = "k") -> Checked:
    """A kernel of one warpgroup; its products a[i] @ b[j].T are of the first 8 rows of b[j], which keeps the interpreter quick."""
    lines = body.strip("\n").replace("].T", ", 0 : 8].T").split("\n")
    return check(parse(HEAD.format(name=name) + "".join(f"        {line}\n" for line in lines), "k.cuir"))


def code(checked: Checked) -> str:
    """The CUDA text less its comments, which quote the program."""
    return re.sub(r" *//.*", "", lower(checked).source).replace("\n\n", "\n")


def stores(*names: str) -> str:
    return "".join(f"\nstore(Z[{i}, rows(64), cols(8)], {name})" for i, name in enumerate(names))


# ---- one name
@pytest.mark.parametrize(("several", "one"), [
    ("A = mma_async(a[0], b[0].T)\nS = A\nmma_wait(S)" + stores("S"), "S = mma_async(a[0], b[0].T)\nmma_wait(S)" + stores("S")),
    ("A = mma_async(a[0], b[0].T)\nS = A\nmma_wait(A)" + stores("A", "S"), "S = mma_async(a[0], b[0].T)\nmma_wait(S)" + stores("S", "S")),
    ("S = issue(a[0], b[0].T)\nmma_wait(S)\nS = S * 2.0" + stores("S"), "S = mma_async(a[0], b[0].T)\nmma_wait(S)\nS = S * 2.0" + stores("S")),
    ("A = mma_async(a[0], b[0].T)\nB = mma_async(a[1], b[1].T, A)\nmma_wait(B)" + stores("B"),
     "B = mma_async(a[0], b[0].T)\nB = mma_async(a[1], b[1].T, B)\nmma_wait(B)" + stores("B")),
    ("S = zeros(f32, [64, 8])\nfor i in range(n):\n    S = onto(a[0], b[0].T, S)\nmma_wait(S)" + stores("S"),
     "S = zeros(f32, [64, 8])\nfor i in range(n):\n    S = mma_async(a[0], b[0].T, S)\nmma_wait(S)" + stores("S")),
    ("if n > 0:\n    S = issue(a[0], b[0].T)\nelse:\n    S = issue(a[1], b[0].T)\nmma_wait(S)" + stores("S"),
     "if n > 0:\n    S = mma_async(a[0], b[0].T)\nelse:\n    S = mma_async(a[1], b[0].T)\nmma_wait(S)" + stores("S")),
], ids=["another name", "both are read", "a function's local", "chained on", "chained over iterations", "either branch"])  # fmt: skip
def test_names_of_one_product_are_one(several: str, one: str) -> None:
    assert code(program(several)) == code(program(one))
    assert not lower(program(several)).choices


def test_attention_of_functions_with_locals_is_attention() -> None:
    """Both products of the pipeline handed on by functions: the same text, word for word."""
    direct = corpus.programs()["flash_fwd"].read_text()
    functions = HEAD.split("@kernel")[0]
    handed = re.sub(r"= mma_async\(", "= issue(", re.sub(r"mma_async\((.*, acc)\)", r"onto(\1)", direct))
    assert handed.count("onto(") == 2 and handed.count("issue(") == 2
    consts = {"T": F16, "D": 64}
    assert code(check(parse(functions + handed), None, consts)) == code(check(parse(direct), None, consts))


def test_a_kernel_without_copies_in_flight_stays_as_it_is() -> None:
    checked = check(parse(corpus.programs()["flash_fwd"].read_text()), None, {"T": F16, "D": 64})
    assert coalesced(checked) == (checked, []) and coalesced(checked)[0] is checked
    waited = program("A = mma_async(a[0], b[0].T)\nbefore = A\nA = mma_async(a[1], b[0].T, A)\nmma_wait(before)\nmma_wait(A)" + stores("A"))
    assert coalesced(waited)[0] is waited  # a name that is only waited for has no registers


# ---- two names
DIFFER = "A = mma_async(a[0], b[0].T)\nS = A\nC = mma_async(a[1], b[1].T)\nmma_wait(S)\nA = A + 1.0\nmma_wait(C)" + stores("A", "S", "C")
NEXT = """
S = issue(a[0], b[0].T)
mma_wait(S)
D = zeros(f32, [64, 8])
for i in range(n):
    A = issue(a[i % 2], b[1].T)
    D = D + S * S
    S = A
    mma_wait(S)""" + stores("S", "D")  # fmt: skip
TURN = """
S = issue(a[0], b[0].T)
D = zeros(f32, [64, 8])
for i in range(n):
    mma_wait(S)
    A = issue(a[i % 2], b[1].T)
    D = D + S * S
    S = A
mma_wait(S)""" + stores("S", "D")  # fmt: skip
ANEW = """
A = mma_async(a[0], b[0].T)
B = mma_async(a[1], b[0].T, A)
A = mma_async(a[0], b[1].T)
mma_wait(A, B)""" + stores("A", "B")  # fmt: skip


@pytest.mark.parametrize(("body", "order"), [
    (DIFFER, ["warpgroup_wait<1>", "S[i_] = A[i_]", "A[i_] = A[i_] + 1.0f", "warpgroup_wait<0>"]),
    (NEXT, ["warpgroup_wait<0>", "for (int i = 0", "S[i_] * S[i_]", "warpgroup_wait<0>", "S[i_] = A[i_]"]),
    (TURN, ["for (int i = 0", "warpgroup_wait<0>", "S[i_] * S[i_]", "warpgroup_wait<0>", "S[i_] = A[i_]", "warpgroup_wait<0>"]),
    (ANEW, ["(A, a_", "warpgroup_wait<0>", "B[i_] = A[i_]", "(B, a_", "(A, a_", "warpgroup_wait<0>"]),
], ids=["bound anew", "the next one", "over the end of an iteration", "the name of another product"])  # fmt: skip
def test_two_values_are_copied_behind_a_wait(body: str, order: list[str]) -> None:
    cuda = lower(program(body))
    at = 0
    for text in order:
        found = cuda.source.find(text, at)
        assert found >= 0, (text, cuda.source[at:])
        at = found + len(text)
    assert len([c for c in cuda.choices if "a product in flight" in c and "both values are needed later" in c]) == 1


# ---- meaning
NAMES = ("A", "B", "C", "D")
names, index = st.sampled_from(NAMES), st.integers(0, 1)
simple = st.one_of(
    st.builds("{} = mma_async(a[{}], b[{}].T)".format, names, index, index),
    st.builds("{} = issue(a[{}], b[{}].T)".format, names, index, index),
    st.builds("{} = mma_async(a[{}], b[{}].T, {})".format, names, index, index, names),
    st.builds("{0} = onto(a[{1}], b[{2}].T, {3})".format, names, index, index, names),
    st.builds("{} = {}".format, names, names),
    st.builds("{} = {}".format, names, names),
    st.builds("mma_wait({})".format, names),
    st.builds("{} = {} * 0.5 + {}".format, names, names, names),
).map(lambda line: [line])


def nested(inner: st.SearchStrategy[list[str]]) -> st.SearchStrategy[list[str]]:
    body = st.lists(inner, min_size=1, max_size=4).map(lambda parts: ["    " + line for part in parts for line in part])
    loops = st.builds(lambda lines: ["for i in range(n):", *lines], body)
    branches = st.builds(lambda k, then, other: [f"if n > {k}:", *then, "else:", *other], index, body, body)
    return st.one_of(loops, branches)


bodies = st.lists(st.one_of(simple, simple, simple, nested(st.one_of(simple, simple, nested(simple)))), min_size=3, max_size=9)
BEGIN = [f"{name} = zeros(f32, [64, 8]) + {i}.0" for i, name in enumerate(NAMES)]


def results(checked: Checked, n: int) -> torch.Tensor:
    z = torch.full((4, 64, 8), 0.25)
    run(checked, {"Z": z, "n": n})
    return z


def finished(parts: list[list[str]]) -> list[str]:
    """The lines of a body: names bound, what was drawn, all waited for and stored."""
    end = [f"mma_wait({', '.join(NAMES)})", *stores(*NAMES).strip().split("\n")]
    return [*BEGIN, *(line for part in parts for line in part), *end]


def repaired(lines: list[str]) -> tuple[Checked, list[torch.Tensor]]:
    """A program that keeps the rules of products, made of one that need not, and its results for n = 2 and 0: faults end by waits, or by leaving out."""
    first = HEAD.count("\n") + 1
    while True:
        checked = program("\n".join(lines))
        try:
            return checked, [results(checked, n) for n in (2, 0)]
        except CuirError as error:
            (found,) = error.diagnostics
            span = found.span
            while span is not None and span.via is not None:
                span = span.via
            assert span is not None and found.code in ("M405", "M406", "M408"), error
            i = span.line - first
            indent = " " * (len(lines[i]) - len(lines[i].lstrip()))
            wait = f"{indent}mma_wait({', '.join(NAMES)})"
            if found.code == "M408" or lines[i - 1] == wait:
                lines = [*lines[:i], f"{indent}D = D + 0.0" if "D = D" not in lines[i] else wait, *lines[i + 1 :]]
            else:
                lines = [*lines[:i], wait, *lines[i:]]


@examples(0.5)
@given(bodies)
def test_one_name_or_two_the_meaning_is_the_same(parts: list[list[str]]) -> None:
    checked, wanted = repaired(finished(parts))
    new, _ = coalesced(checked)
    assert coalesced(new)[0] is new  # nothing in flight is copied any more
    for n, z in zip((2, 0), wanted, strict=True):
        assert torch.equal(results(new, n), z)
    assert "mma" in lower(checked).source


# ---- ptxas
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_ptxas_serialises_none_of_these() -> None:
    kernels = [lower(program(body, name)) for name, body in {"differ": DIFFER, "following": NEXT, "anew": ANEW}.items()]
    r = compile_cuda(replace(kernels[0], source=one_file([k.source for k in kernels]))).resources
    assert r.warnings == () and r.spill_stores + r.spill_loads == 0
