"""Which kernels round to 16 bits what they go on computing with."""

from __future__ import annotations

import pytest

import corpus
from corpus.computes import COMPUTES
from cuir import check, parse
from cuir.syntax.types import BF16, F16, F32
from cuir.verification.roundings import rounds_between
from tests.verification.small_kernels import KERNELS, rows

MORE = "Y: Global[T, M, D]"
STORE = "store(Y[q, cols(D)], cast(x, T))"


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (STORE, False),
        ("y = cast(x * 2.0, T)\n store(Y[q, cols(D)], y)", False),
        ("y = cast(x * 2.0, T)\n store(Y[q, cols(D)], where(x > 0.0, y, 0.0))", False),
        ("y = cast(x * 2.0, T)\n store(Y[q, cols(D)], y * y)", True),
        ("y = cast(x * 2.0, T)\n store(Y[q, cols(D)], cast(cast(y, f32) * 2.0, T))", True),
        ("y = cast(x * 2.0, T)\n z = y\n store(Y[q, cols(D)], cast(exp2(cast(max(z, 0.0), f32)), T))", True),
        (STORE + "\n store(Y[q, cols(D)], cast(cast(Y[q, cols(D)], f32) + 1.0, T))", True),
        ("store(Y[q, cols(D)], cast(x, T), add=True)", True),
        ("store(Y[q, cols(D)], cast(mma(cast(x, T), cast(x, T)), T))", True),
    ],
)
def test_what_is_rounded_and_used(body: str, wanted: bool) -> None:
    assert rounds_between(check(parse(rows(MORE, body)), "kernel", {"T": F16, "D": 16})) == wanted
    assert not rounds_between(check(parse(rows(MORE, body.replace("mma(cast(x, T), cast(x, T))", "x"))), "kernel", {"T": F32, "D": 16}))


def test_kernels_of_the_corpus_and_small_ones() -> None:
    """Weights of an attention are operands of a product; a matrix product stores its result through shared memory."""
    found = {}
    for name, kernels in COMPUTES.items():
        program = parse({**corpus.programs(), **corpus.kernels()}[name].read_text(encoding="utf-8"))
        for kernel, computed in kernels.items():
            known = {"T": BF16, "D": 64}
            params = {p.name for p in program.kernels()[kernel].params}
            found[name, kernel] = rounds_between(
                check(program, kernel, {**{n: v for n, v in known.items() if n in params}, **computed.consts})
            )
    plain = {(name, kernel) for (name, kernel), rounds in found.items() if not rounds}
    assert {kernel for name, kernel in plain if not name.endswith("_f32")} == {"gemm", "delta", "combine", "prepare", "finish"}
    assert {name for name, _ in plain if name.endswith("_f32")} == {name for name, _ in found if name.endswith("_f32")}
    assert not any(rounds_between(check(parse(s.text), "kernel", dict(s.consts[0]))) for s in KERNELS.values())
