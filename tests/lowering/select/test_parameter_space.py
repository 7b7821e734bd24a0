"""Parameter space of a kernel, with the buffer that a launch packs; too much is refused before nvcc."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuir.checking.checker import check
from cuir.lowering import lower, lower_ir
from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ir_text import State, show_file
from cuir.lowering.lowered import MAP_BYTES
from cuir.lowering.passes.pipeline import BUILD, optimise
from cuir.lowering.select.parameter_space import list_parameters, require_parameter_space
from cuir.ops.limits import TARGETS
from cuir.runtime.argument_buffer import ArgumentLayout
from cuir.syntax.parser import parse
from cuir.text.diagnostics import CuirError
from tests.lowering.kernels import NAMES, corpus_kernel

LIMIT = 32_764  # nvcc 12.1 and newer: "Formal parameter space overflowed"


def text_of(params: str, body: list[str], arch: str = "sm_90a") -> str:
    lines = "".join(f"            {line}\n" for line in body)
    return (
        f'@kernel(arch="{arch}")\ndef k(X: Global[f32, M, 64], Y: Global[f32, M, 64], {params}):\n'
        "    s, full = shared(f32, [64, 32]), mbarrier(1)\n    work = tiles(cdiv(M, 64))\n"
        f'    with role("all", warps=1):\n        for t in work:\n            r, c = t * 64 + rows(64), cols(64)\n{lines}'
    )


def with_maps(n: int) -> str:
    body = []
    for i in range(n):
        body += ["full.expect(nbytes(s))", f"copy_async(A{i}[t * 64 : t * 64 + 64, 0 : 32], s, full)", f"full.wait({i} % 2)"]
    params = ",\n      ".join(f"A{i}: Global[f32, M, 64]" for i in range(n))
    return text_of(params, [*body, "store(Y[r, c], X[r, c])"])


@pytest.mark.sweep
@pytest.mark.parametrize("name", NAMES)
def test_it_is_what_a_launch_packs(name: str) -> None:
    cuda, ir = lower(corpus_kernel(name)), build(corpus_kernel(name))
    optimise(ir)
    maps, pointers, ends = list_parameters(ir)
    assert [tuple(m) for m in maps] == [(m.tensor, m.sizes, m.swizzled) for m in cuda.maps]
    assert [t.symbol.data for t in pointers] == list(cuda.tensors)
    assert ends[-1][0] == ArgumentLayout(cuda).size


def test_every_architecture_has_the_same_space() -> None:
    assert {t.parameter_bytes for t in TARGETS.values()} == {LIMIT}


def test_too_many_tensor_maps_are_refused_at_the_one_that_does_not_fit() -> None:
    with pytest.raises(CuirError) as caught:
        lower(check(parse(with_maps(300))))
    (result,) = caught.value.diagnostics
    assert result.code == "L006" and "300 tensor maps of 128 bytes" in result.message and "at most 32,764" in result.message
    fits = LIMIT // MAP_BYTES  # 255 maps, and A255 is the first that does not fit
    assert result.span is not None and result.span.line == 2 + fits
    assert lower(check(parse(with_maps(40)))).maps


def test_ir_files_are_refused_too(tmp_path: Path) -> None:
    (tmp_path / "k.ir").write_text(show_file(build(check(parse(with_maps(300)))), State(0, BUILD)), encoding="utf-8")
    with pytest.raises(CuirError, match="L006"):
        lower_ir(tmp_path / "k.ir")


@pytest.mark.parametrize(("dynamic", "counter"), [("False", 0), ("True", 8)])
def test_pointers_strides_and_numbers_count(dynamic: str, counter: int) -> None:
    """A map or two pointers with a stride each, a counter, a number, a bool, and a dim at a multiple of 4."""
    text = text_of("n: i32, on: bool", ["store(Y[r, c], X[r, c])"]).replace("cdiv(M, 64))", f"cdiv(M, 64), dynamic={dynamic})")
    ir = build(check(parse(text.replace("warps=1", "warps=4"))))
    optimise(ir)
    end = 2 * 16 + counter + 4 + 1 + 3 + 4
    assert list_parameters(ir).ends[-1][0] == end
    require_parameter_space(ir, end)
    with pytest.raises(CuirError, match="L006"):
        require_parameter_space(ir, end - 1)
