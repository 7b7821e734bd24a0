"""Hints for functions that no primitive is: each expression computes its function, at the place of the call."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from cuir import CuirError, check, parse
from cuir.checking.rewrite_hints import COMPOSITIONS, COUNTERPARTS, describe_composition
from cuir.interp import run
from cuir.ops import TABLE
from cuir.testing import assert_matches

TEXT = """
@kernel(arch="sm_80")
def composed(X: Global[f32, M], Y: Global[f32, M], Z: Global[f32, M], OUT: Global[f32, M]):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            i = t * 16 + rows(16)
            x, y, z = X[i], Y[i], Z[i]
            store(OUT[i], WHAT)
"""
REFERENCES: dict[str, Callable[..., torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "softplus": F.softplus,
    "fma": lambda x, y, z: x * y + z,
}
POSITIVE = ("rsqrt", "log", "log10", "log1p", "pow")


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", COMPOSITIONS)
def test_each_composition_computes_its_function(name: str) -> None:
    x = torch.linspace(-4, 4, 50) if name not in POSITIVE else torch.linspace(0.01, 9, 50)
    values = {"X": x, "Y": torch.linspace(-1, 0.5, 50), "Z": torch.linspace(0.6, 2, 50)}
    names = [n for n in "xyz" if n in COMPOSITIONS[name].replace("max", "").replace("exp", "")]
    function: Callable[..., torch.Tensor] = REFERENCES.get(name) or getattr(torch, name)
    program = parse(TEXT.replace("WHAT", COMPOSITIONS[name]))
    assert_matches(program, lambda x, y, z: function(*({"x": x, "y": y, "z": z}[n] for n in names)), values, schedules=1)
    assert name not in TABLE, "there is a primitive for it"


@pytest.mark.parametrize(
    ("call", "code", "says"),
    [
        ("tan(x)", "N105", "write `sin(x) / cos(x)`"),
        ("exp(x)", "N105", "write `exp2(x * 1.4426950408889634)`"),
        ("x.rsqrt()", "N119", "write `1.0 / sqrt(x)`"),
        ("clip(x, y, z)", "N105", "write `min(max(x, y), z)`"),
        ("lgamma(x)", "N105", "nothing computes lgamma in a kernel: give its values as a tensor parameter"),
        ("math.sqrt(x)", "N101", "there are no modules: a primitive is called by its name alone"),
        ("exp3(x)", "N105", "did you mean `exp2`?"),
        ("sum(x)", "N105", "`row_sum(x)` gives [R, 1], `col_sum(x)` gives [1, C]"),
        ("x.to(f16)", "N119", "`cast(x, dtype)`"),
        ("frobnicate(x)", "N105", "`cuir ops` lists the primitives"),
    ],
)
def test_what_to_write_is_said_where_the_function_is_called(call: str, code: str, says: str) -> None:
    with pytest.raises(CuirError) as caught:
        check(parse(TEXT.replace("WHAT", call)), "composed", {})
    (result,) = caught.value.diagnostics
    assert (result.code, result.hint) == (code, says)


def test_a_function_of_the_file_takes_precedence() -> None:
    text = "@func\ndef rsqrt(x):\n    return exp2(-0.5 * log2(x))\n" + TEXT.replace("WHAT", "rsqrt(x)")
    out = torch.empty(5)
    run(parse(text), {"X": torch.full((5,), 4.0), "Y": torch.zeros(5), "Z": torch.zeros(5), "OUT": out})
    assert torch.equal(out, torch.full((5,), 0.5)) and describe_composition("mine") is None


@pytest.mark.parametrize("name", COUNTERPARTS)
def test_counterparts_name_primitives(name: str) -> None:
    called = set(re.findall(r"(\w+)\(|`(\w+)`", COUNTERPARTS[name]))
    assert called and {a or b for a, b in called} <= {name.partition(".")[0] for name in TABLE}
    assert name not in TABLE and describe_composition(name) == COUNTERPARTS[name]
