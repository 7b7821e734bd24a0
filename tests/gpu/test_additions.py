"""Atomic additions of subnormal numbers on a GPU, beside the interpreter. `python -m pytest tests/gpu/test_additions.py -q`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import cuir
from cuir.arguments.binding import TORCH
from cuir.syntax.nodes import Program
from cuir.syntax.types import DTYPES
from tests.gpu.isolation import run_isolated

pytestmark = pytest.mark.gpu

SUMS = """\
@kernel(arch="sm_90a")
def k(X: Global[DTYPE, M, 64], T: Global[DTYPE, 16, 64]):
    s = shared(DTYPE, [16, 64])
    with role("w", warps=1):
        for i in range(M // 16):
            HOW
"""
ADDS = {
    "scatter": "store(T[rows(16), cols(64)], X[i * 16 + rows(16), cols(64)], add=True)",
    "box": "store(T[:, :], load(X[i * 16 : i * 16 + 16, :]), add=True)",
    "bulk": "store_wait()\nstore(s, load(X[i * 16 : i * 16 + 16, :]))\nfence_async()\nstore_async(s, T[:, :], add=True)",
    "store": "store(T[rows(16), cols(64)], X[i * 16 + rows(16), cols(64)])",
}
LEAST = 2.0**-126


FORMS = [how for how in ADDS if how != "store"]


def sum_addends(how: str, dtype: str, addends: list[float], before: float = 0.0, device: str = "cpu") -> torch.Tensor:
    """The sum of the addends, each of an addition of its own, on a tensor that holds `before`; one element of it, of which all are alike."""
    text = SUMS.replace("DTYPE", dtype).replace("HOW", ADDS[how].replace("\n", "\n            "))
    stored = TORCH[DTYPES[dtype]]
    x = torch.tensor(addends, dtype=stored).repeat_interleave(16)[:, None].repeat(1, 64).to(device)
    total = torch.full((16, 64), before, dtype=stored, device=device)
    run = cuir.run if device == "cpu" else on_device
    run(cuir.parse(text), {"X": x, "T": total})
    total = total.cpu()
    assert torch.equal(total.view(torch.int8), total[0, 0].expand(16, 64).contiguous().view(torch.int8))
    return total[0, 0]


def on_device(program: Program, arguments: dict[str, Any]) -> None:
    cuir.compile(program)(**arguments)


SUMMED = ([1e-40] * 4, [LEAST / 2] * 4, [LEAST, LEAST], [1.5 * LEAST, -LEAST], [-1e-40, 1.0], [2.0**-24] * 3, [2.0**-133] * 3)


def differences(dtype: str) -> list[str]:
    """Collect the sums whose bits on the GPU differ from the interpreter's."""
    results = []
    for how in FORMS:
        for addends in SUMMED:
            for before in (0.0, 1e-40, -1.0):
                local, remote = sum_addends(how, dtype, list(addends), before), sum_addends(how, dtype, list(addends), before, "cuda")
                if local != remote:
                    results.append(f"{how} {dtype} {addends} on {before}: {remote.item()} on the GPU, {local.item()} in the interpreter")
    return results


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_sums_of_subnormal_numbers(dtype: str) -> None:
    assert run_isolated(differences, dtype, seconds=300.0) == []
