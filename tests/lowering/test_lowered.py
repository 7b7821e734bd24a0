"""Parameter space of a kernel, with the buffer that a launch packs; too much is refused before nvcc."""

from __future__ import annotations

import pytest

import corpus
from cuir.checking.checker import check
from cuir.lowering import lower
from cuir.lowering.lowered import MAP_BYTES, compute_parameter_ends, require_parameter_space
from cuir.ops.limits import TARGETS
from cuir.runtime.argument_buffer import ArgumentLayout
from cuir.syntax.parser import parse
from cuir.text.diagnostics import CuirError

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


@pytest.mark.parametrize("name", ("flash_fwd_sm90", "decode_sm90", "flash_bwd_sm90"))
def test_it_is_what_a_launch_packs(name: str) -> None:
    program = parse(corpus.kernels()[name].read_text(encoding="utf-8"))
    for kernel in program.kernels():
        cuda = lower(check(program, kernel))
        ends = compute_parameter_ends(cuda.checked, [m.tensor for m in cuda.maps], list(cuda.tensors), bool(cuda.counter))
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


def test_pointers_strides_and_numbers_count() -> None:
    """255 maps leave 124 bytes: 7 times an address and a stride, and a dim; or all of them and a number more."""
    checked = check(parse(text_of("n: i32, on: bool", ["store(Y[r, c], X[r, c])"])))
    maps = ["X"] * (LIMIT // MAP_BYTES)
    require_parameter_space(checked, maps, ["X"] * 6, False)
    ends = compute_parameter_ends(checked, maps, ["X"] * 6, False)
    assert ends[-1][0] == 255 * 128 + 6 * 16 + 4 + 1 + 3 + 4  # a bool, and a dim at a multiple of 4
    require_parameter_space(checked, maps, ["X"] * 6, True)
    with pytest.raises(CuirError, match="L006"):
        require_parameter_space(checked, maps, ["X"] * 7, True)
