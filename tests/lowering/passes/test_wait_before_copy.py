"""Products in flight under several names: one set of registers, or a copy behind a wait, and always what the interpreter says."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given

import corpus
from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.lowering import lower
from cuir.lowering.ir import ops
from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ir_text import parse as parse_ir
from cuir.lowering.ir.ir_text import show
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.passes import wait_before_copy
from cuir.lowering.passes.pipeline import optimise
from cuir.lowering.validate import Lowering, TensorRuns, random_arguments
from cuir.runtime.nvcc import compile_cuda
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from tests.lowering.conftest import one_file
from tests.lowering.handing import ANEW, DIFFER, HEAD, NEXT, TURN, bodies, finish, on_core, program, repair, results, stores
from tests.lowering.host import GXX
from tests.strategies.selection import examples

COPY = r"(\w+)\[i_\] = (\w+)\[i_\];"
needs_gxx = pytest.mark.skipif(GXX is None, reason="no g++ on the PATH")


def build_optimised(checked: Checked) -> ops.Kernel:
    kernel = build(checked)
    optimise(kernel)
    return kernel


def show_unnamed(checked: Checked) -> str:
    """The IR behind the passes less the names of its values, and the lines that they come from."""
    kernel = build_optimised(checked)
    for op in every(kernel):
        for value in [*op.results, *(a for r in op.regions for b in r.blocks for a in b.args)]:
            value.name_hint = None
    return show(kernel)


def finishing(checked: Checked) -> list[str]:
    """The choices of this pass."""
    return [c for c in lower(checked).choices if "a product in flight is waited for" in c]


# ---- one value, whatever its names
@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("several", "item"),
    [
        ("A = mma_async(a[0], b[0].T)\nS = A\nmma_wait(S)" + stores("S"), "S = mma_async(a[0], b[0].T)\nmma_wait(S)" + stores("S")),
        (
            "A = mma_async(a[0], b[0].T)\nS = A\nmma_wait(A)" + stores("A", "S"),
            "S = mma_async(a[0], b[0].T)\nmma_wait(S)" + stores("S", "S"),
        ),
        (
            "S = issue(a[0], b[0].T)\nmma_wait(S)\nS = S * 2.0" + stores("S"),
            "S = mma_async(a[0], b[0].T)\nmma_wait(S)\nS = S * 2.0" + stores("S"),
        ),
        (
            "A = mma_async(a[0], b[0].T)\nB = mma_async(a[1], b[1].T, A)\nmma_wait(B)" + stores("B"),
            "B = mma_async(a[0], b[0].T)\nB = mma_async(a[1], b[1].T, B)\nmma_wait(B)" + stores("B"),
        ),
        (
            "S = zeros(f32, [64, 8])\nfor i in range(n):\n    S = onto(a[0], b[0].T, S)\nmma_wait(S)" + stores("S"),
            "S = zeros(f32, [64, 8])\nfor i in range(n):\n    S = mma_async(a[0], b[0].T, S)\nmma_wait(S)" + stores("S"),
        ),
        (
            "if n > 0:\n    S = issue(a[0], b[0].T)\nelse:\n    S = issue(a[1], b[0].T)\nmma_wait(S)" + stores("S"),
            "if n > 0:\n    S = mma_async(a[0], b[0].T)\nelse:\n    S = mma_async(a[1], b[0].T)\nmma_wait(S)" + stores("S"),
        ),
    ],
    ids=["another name", "both are read", "a function's local", "chained on", "chained over iterations", "either branch"],
)
def test_names_of_one_product_are_one(several: str, item: str) -> None:
    assert show_unnamed(program(several)) == show_unnamed(program(item))
    assert not finishing(program(several)) and not re.search(COPY, lower(program(several)).source)


def test_attention_of_functions_with_locals_is_attention() -> None:
    """Both products of the pipeline handed on by functions."""
    direct = corpus.programs()["flash_fwd"].read_text()
    functions = HEAD.split("@kernel")[0]
    handed = re.sub(r"= mma_async\(", "= issue(", re.sub(r"mma_async\((.*, acc)\)", r"onto(\1)", direct))
    assert handed.count("onto(") == 2 and handed.count("issue(") == 2
    consts = {"T": F16, "D": 64}
    assert show_unnamed(check(parse(functions + handed), None, consts)) == show_unnamed(check(parse(direct), None, consts))


EARLIER = """
A = zeros(f32, [64, 8])
before = A
for i in range(n):
    mma_wait(before)
    before = A
    A = mma_async(a[i % 2], b[0].T, A)
mma_wait(A)""" + stores("A")
AROUND = """
A = mma_async(a[0], b[0].T)
D = zeros(f32, [64, 8])
for i in range(n):
    mma_wait(A)
    D = D + A
mma_wait(A)""" + stores("A", "D")
BRANCHES = """
A = mma_async(a[0], b[0].T)
B = mma_async(a[1], b[0].T)
if n > 0:
    C = A
else:
    C = B
mma_wait(A, B, C)""" + stores("A", "B", "C")
CASES = {
    "differ": (DIFFER, 0),
    "next": (NEXT, 0),
    "turn": (TURN, 1),
    "anew": (ANEW, 0),
    "earlier": (EARLIER, 0),
    "around": (AROUND, 0),
    "either": (BRANCHES, 1),
}


@pytest.mark.sweep
@needs_gxx
@pytest.mark.parametrize("name", CASES)
def test_what_is_in_flight_is_finished_before_it_is_copied(name: str, tmp_path: Path) -> None:
    """The registers of products hold nothing before a wait ends: a copy that came earlier would show."""
    body, waits = CASES[name]
    checked = program(body)
    assert len(finishing(checked)) == waits
    result = on_core(lower(checked), tmp_path)
    for n in (2, 0):
        assert torch.equal(result(n), results(checked, n))


@needs_gxx
def test_a_copy_before_the_wait_would_show(tmp_path: Path) -> None:
    cuda = lower(program(TURN))
    early = on_core(replace(cuda, source=re.sub(r"cute::warpgroup_wait<0>\(\);", "", cuda.source, count=1)), tmp_path)
    assert early(2).isnan().any()


@pytest.mark.parametrize("name", [name for name, (_, waits) in CASES.items() if waits])
def test_validation_names_a_copy_without_a_wait(name: str) -> None:
    checked = program(CASES[name][0])
    inputs = random_arguments(checked, torch.Generator().manual_seed(0))
    for without, verdict in (((), "same"), (("wait_before_copy",), "fails")):
        outcome = list(Lowering(checked, without).stages(TensorRuns(inputs)))[-1].outcome
        assert outcome is not None and outcome.verdict == verdict
    assert re.search(r"` is copied to other registers at `yield` in line \d+: no wait for the product comes before", outcome.error)


def test_text_before_and_after() -> None:
    text = """\
tile.kernel "k" arch="sm_90a" cluster=1 cluster_x=1 threads=128 {
  %Z = tile.tensor "Z" written : !tile.tensor<f32, 64, 64>
  %n = tile.parameter "n" : !tile.scalar<i32>
  %s = tile.shared "s" offset=0 : !tile.shared<f16, 64, 64>
  %0 = tile.constant 0 : !tile.scalar<i32>
  tile.role "all" workers=1 threads=128 registers=0 warpgroup=0 warp=0 {
  ^bb0(%w: !tile.scalar<i32>):
    %p = tile.at %Z[: 64, : 64] : !tile.tensor<f32, 64, 64>
    %A = tile.perform "mma_async"(a: %s, b: %s) : !tile.reg<f32, 64, 64>
    %S = tile.for %i = %0 to %n carrying (%T = %A) {
      %U = tile.perform "mma_wait"(x0: %T) {pending=0} : !tile.reg<f32, 64, 64>
      %B = tile.perform "mma_async"(a: %s, b: %s) : !tile.reg<f32, 64, 64>
      READ
      tile.yield(%B)
    }
    %V = tile.perform "mma_wait"(x0: %S) {pending=0} : !tile.reg<f32, 64, 64>
    tile.perform "store"(place: %p, tile: %V)
    tile.yield()
  }
  tile.yield()
}
"""

    def behind(read: str) -> str:
        kernel = parse_ir(text.replace("READ", read))
        wait_before_copy.run(kernel)
        kernel.verify()
        return show(kernel)

    untouched = behind("")
    assert untouched == show(parse_ir(text.replace("READ", ""))), "the next product has the registers of the one before"
    copied = behind('tile.perform "store"(place: %p, tile: %U)')
    assert (
        '%B_1 = tile.perform "mma_wait"(x0: %B) {pending=0}' in copied and "tile.yield(%B_1)" in copied and copied.count("tile.note") == 1
    )
    repeated = parse_ir(copied)
    wait_before_copy.run(repeated)
    assert show(repeated) == copied


# ---- meaning
@pytest.mark.thorough
@needs_gxx
@examples(0.25)
@given(bodies)
def test_one_name_or_two_the_meaning_is_the_same(tmp_path_factory: pytest.TempPathFactory, parts: list[list[str]]) -> None:
    checked, expected = repair(finish(parts))
    actual = on_core(lower(checked), tmp_path_factory.mktemp("core"))
    for n, z in zip((2, 0), expected, strict=True):
        assert torch.equal(actual(n), z), checked.origin.span.source.text


# ---- ptxas
@pytest.mark.nvcc
def test_ptxas_serialises_none_of_these() -> None:
    kernels = [lower(program(body, name.replace(" ", "_"))) for name, (body, _) in CASES.items()]
    r = compile_cuda(replace(kernels[0], source=one_file([k.source for k in kernels]))).resources
    assert not [w for w in r.warnings if "serialized" in w] and r.spill_stores + r.spill_loads == 0
