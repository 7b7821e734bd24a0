"""Keys and values of one batch for the queries of all: an edit of the kernel alone, and right with every variant."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import corpus
import cuir
from cuir import CuirError, Lengths, Specification
from cuir.variants import transfer
from cuir.verification import Case, check_mask, check_numbers

KERNEL = corpus.kernels()["flash_fwd_sm90"]
CONSTS = {"T": cuir.f16, "D": 64}
IDS = torch.arange(4800).view(8, 600) // 70


def documents(b: Any, h: Any, q: Any, k: Any) -> Any:
    return IDS[b, q] == IDS[b, k] % 9


SPECS = {
    "full": Specification("full"), "causal": Specification("causal", lambda b, h, q, k: q + 30 >= k, max_scores=True),
    "documents": Specification("documents", documents), "sink": Specification("sink", documents, sink=0.5),
    "relu": Specification("relu", None, lambda s, b, h, q, k: s - b, normalize="relu"),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECS)
def test_all_batches_read_the_same_keys(name: str) -> None:
    spec = replace(SPECS[name], shared_keys=True)
    program = transfer(str(KERNEL), spec).program
    checked = cuir.check(program, consts=CONSTS)
    for case in (
        Case("three", Lengths(3, 4, 2, 150, 300)),
        Case("one", Lengths(1, 2, 1, 40, 70), "large"),
        Case("strided", Lengths(2, 2, 2, 70, 200), "strided"),
    ):
        check_numbers(program, checked, spec, case)
    assert check_mask(program, checked, spec, Lengths(1, 2, 1, 70, 200)).read > 0


def test_only_the_places_of_keys_and_values_change() -> None:
    before, after = (transfer(str(KERNEL), replace(SPECS["causal"], shared_keys=flag)).text for flag in (False, True))
    changed = [(a, b) for a, b in zip(before.splitlines(), after.splitlines(), strict=True) if a != b]
    assert len(changed) == 3 and all(a.replace("[b, hk,", "[0, hk,").replace("[T, B, HK", "[T, 1, HK") == b for a, b in changed)


def test_other_kernels_are_refused() -> None:
    text = KERNEL.read_text(encoding="utf-8").replace("V: Global[T, B, HK, N, D]", "V: Global[T, HK, B, N, D]")
    with pytest.raises(CuirError, match="X131"):
        transfer(cuir.parse(text), replace(SPECS["full"], shared_keys=True))


def test_keys_of_each_batch_are_not_taken() -> None:
    spec = replace(SPECS["full"], shared_keys=True)
    checked = cuir.check(transfer(str(KERNEL), spec).program, consts=CONSTS)
    q, k = torch.zeros(2, 1, 10, 64, dtype=torch.float16), torch.zeros(2, 1, 20, 64, dtype=torch.float16)
    with pytest.raises(CuirError, match="U408"):
        cuir.run(checked, {"Q": q, "K": k, "V": k, "O": q.clone(), "LSE": torch.zeros(2, 1, 10), "scale": 1.0})
