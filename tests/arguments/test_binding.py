"""Arguments of a call: what is read off them, and each mistake by code."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cuir.arguments.binding import assume_consts, bind
from cuir.syntax.parser import parse
from cuir.syntax.types import BF16, F16
from cuir.text.diagnostics import CuirError

TEXT = """
@kernel(arch="sm_80")
def k(Q: Global[T, B, M, D], K: Global[T, B, N, D], L: Global[f32, B, M], scale: f32, n: i32, *, T: const, D: const, E: const = 4):
    with role("all", warps=1):
        store(L[0, 0], scale)
"""
KERNEL = parse(TEXT).kernels()["k"]


def arguments(**changed: Any) -> dict[str, Any]:
    args = {
        "Q": torch.zeros(2, 5, 64, dtype=torch.bfloat16),
        "K": torch.zeros(2, 7, 64, dtype=torch.bfloat16),
        "L": torch.zeros(2, 5),
        "scale": 1,
        "n": 3,
    }
    args.update(changed)
    return {k: v for k, v in args.items() if v is not None}


def test_reads_consts_and_dims() -> None:
    bound = bind(KERNEL, arguments())
    assert bound.consts == {"T": BF16, "D": 64} and bound.dims == {"B": 2, "M": 5, "N": 7}
    assert bind(KERNEL, arguments(K=torch.zeros(2, 0, 64, dtype=torch.bfloat16))).dims["N"] == 0


@pytest.mark.parametrize(
    ("changed", "codes"),
    [
        ({"scale": None}, ["U402"]),
        ({"extra": 1}, ["U401"]),
        ({"Q": [1]}, ["U403"]),
        ({"L": torch.zeros(2, 5, dtype=torch.float16)}, ["U404"]),
        ({"Q": torch.zeros(2, 5, 64, dtype=torch.float64)}, ["U404"]),
        ({"K": torch.zeros(2, 7, 64, dtype=torch.float16)}, ["U404"]),
        ({"Q": torch.zeros(5, 64, dtype=torch.bfloat16)}, ["U405"]),
        ({"L": torch.zeros(2, 6)}, ["U408"]),
        ({"K": torch.zeros(2, 64, 7, dtype=torch.bfloat16).transpose(1, 2)}, ["U406"]),
        ({"scale": float("nan")}, ["U409"]),
        ({"scale": float("inf")}, ["U409"]),
        ({"scale": "1"}, ["U409"]),
        ({"n": 1.5}, ["U409"]),
        ({"n": True}, ["U409"]),
        ({"n": 2**31}, ["U409"]),
        ({"L": torch.zeros(2, 5, device="meta")}, ["U407"]),
        ({"L": torch.zeros(2, 5, requires_grad=True)}, ["U410"]),
        ({"scale": None, "n": 1.5, "Q": 3}, ["U403", "U402", "U409"]),
    ],
)
def test_mistakes(changed: dict[str, Any], codes: list[str]) -> None:
    with pytest.raises(CuirError) as caught:
        bind(KERNEL, arguments(**changed))
    assert sorted(d.code for d in caught.value.diagnostics) == sorted(codes)
    assert all(d.span for d in caught.value.diagnostics)


def test_given_consts_must_agree() -> None:
    with pytest.raises(CuirError, match="U408"):
        bind(KERNEL, arguments(), {"D": 128})


def test_assumed_consts() -> None:
    assert assume_consts(KERNEL, {}) == {"T": F16, "D": 128}
    assert assume_consts(KERNEL, {"D": 64}) == {"T": F16, "D": 64}
