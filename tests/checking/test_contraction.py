"""Sums that are computed as written since the maximum of equal products cancels there, and sums that may be contracted."""

from __future__ import annotations

import pytest

import corpus
from cuir.attn.splicing.splice import transfer
from cuir.checking.checker import check
from cuir.checking.contraction import collect_exempt_sums, list_contractable_sums
from cuir.lowering import lower
from cuir.spec.loading import as_specification
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from tests.lowering.tile_ir import program

HEAD = """\
@kernel(arch="sm_90a")
def k(X: Global[f32, 64, 64], W: Global[f32, 64, 64], Y: Global[f32, 64, 64], n: i32, s: f32, r: f32):
    buf, top_of = shared(f32, [64, 64]), shared(f32, [64, 1])
    with role("all", warpgroups=1):
        i, j = rows(64), cols(64)
"""
CARRIED = "top = full(f32, [64, 1], -inf)\nfor c in range(n):\n    x = where(j < n, X[i, j] * s, -inf)\n    top = max(top, row_max(x))\n"


def lines_of(body: str) -> tuple[list[int], list[int]]:
    """The lines of the body, from 1, of sums that are exempt, and of those that may be contracted."""
    lines = [*body.split("\n"), "store(Y[i, j], y)"]
    checked, above = program(HEAD + "".join(f"        {line}\n" for line in lines)), HEAD.count("\n")
    exempt = sorted(e.tree.span.line - above for e in collect_exempt_sums(checked))
    return exempt, sorted(e.span.line - above for e in list_contractable_sums(checked))


@pytest.mark.parametrize(
    ("body", "exempt", "contractable"),
    [
        ("x = X[i, j] * s\ny = x - row_max(x)", [2], []),
        ("y = X[i, j] * s - row_max(s * X[i, j])", [1], []),
        ("y = row_max(X[i, j] * s) - X[i, j] * s", [1], []),
        ("y = X[i, j] * s + row_max(-(X[i, j] * s))", [1], []),
        ("x = X[i, j] * s\ny = (x - col_max(x)) * s", [2], []),
        (CARRIED + "y = exp2(X[i, j] * s - where(top == -inf, 0.0, top))", [5], []),
        (CARRIED + "lse = top + log2(row_sum(X[i, j]))\ny = exp2(X[i, j] * s - lse)", [6], []),
        (CARRIED + "store(top_of, top)\nsync()\ny = exp2(X[i, j] * s - load(top_of))", [7], []),
        ("t = full(f32, [64, 64], -inf)\nfor c in range(n):\n    t = max(t, X[i, c + j] * s)\ny = X[i, j] * s - t", [4], []),
        ("store(buf, X[i, j])\nsync()\ntop = row_max(X[i, j] * s)\ny = load(buf) * s - top", [4], []),
        ("if n > 0:\n    t = row_max(X[i, j] * s)\nelse:\n    t = row_max(X[i, j])\ny = X[i, j] * s - t", [5], []),
        ("x = where(j < n, X[i, j] * s, -inf)\ny = x - row_max(x)", [2], []),
        ("x = X[i, j] * s\nkept = where(x > 0.0, x, 0.0)\ny = X[i, j] * s - row_max(kept)", [3], []),
        ("y = X[i, j] * s - row_max(X[i, j]) * s", [], [1]),
        ("y = X[i, j] * s - row_max(X[i, j])", [], [1]),
        ("y = X[i, j] * s - row_max(X[i, j] * r)", [], [1]),
        ("y = X[i, j] * s - row_max(W[i, j] * s)", [], [1]),
        ("y = X[i, j] * s - row_sum(X[i, j] * s)", [], [1]),
        ("y = X[i, j] * W[i, j] - X[i, j + 1] * W[i, j + 1]", [], [1]),
        ("y = X[i, j] * s - max(X[i, j] * s, r)", [], [1]),
        ("x = X[i, j] * s\ny = x * x + x", [], [2]),
        ("x = X[i, j]\ny = (x - row_max(x)) * s", [], []),
        ("x = where(X[i, j] * s - row_max(X[i, j] * s) >= 0.0, 1.0, 0.0)\ny = x - 1.0", [], []),
    ],
)
def test_sums(body: str, exempt: list[int], contractable: list[int]) -> None:
    assert lines_of(body) == (exempt, contractable)


def test_copies_by_an_engine_are_reads_of_their_tensor() -> None:
    text = HEAD.replace("    with role", "    filled = mbarrier(1)\n    with role") + (
        "        filled.expect(nbytes(buf))\n        copy_async(X[0:64, 0:64], buf, filled)\n        filled.wait(0)\n"
        "        store(Y[i, j], load(buf) * s - row_max(X[i, j] * s))\n"
    )
    assert [e.tree.span.line for e in collect_exempt_sums(program(text))] == [text.count("\n")]


def test_lowering_computes_exempt_sums_as_written_and_contracts_others() -> None:
    text = HEAD + "        x = X[i, j] * s\n        store(Y[i, j], (x - row_max(x)) + W[i, j] * r)\n"
    cuda = lower(program(text)).source
    assert cuda.count("__fsub_rn(") == 1 and "__fadd_rn(" not in cuda and "__fmul_rn(" not in cuda


@pytest.mark.parametrize("name", ["flash_fwd", "flash_fwd_warps", "sigmoid"])
def test_expert_kernels_contract_on_purpose(name: str) -> None:
    checked = check(parse(corpus.programs()[name].read_text(encoding="utf-8")), None, {"T": F16, "D": 64})
    assert list_contractable_sums(checked) and not collect_exempt_sums(checked)


def test_a_sink_that_is_one_more_logit_is_contracted() -> None:
    origin = parse(corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8"))
    variant = transfer(origin, as_specification(corpus.variant("sink_causal"), "sink_causal"))
    assert not collect_exempt_sums(check(variant.program, "flash_fwd", {"T": F16, "D": 64}))
