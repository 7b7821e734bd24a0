"""The comparison beside PyTorch's kernels, as far as it goes without a GPU: its check of numbers, its peers, what it says without one."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from typing import Any

import pytest
import torch

import corpus
from cuir import CuirError, check, parse, run, timing
from cuir.spec_loading import as_specification
from cuir.transfer import TransferResult, transfer
from cuir.types import F16

CONSTS = {"T": F16, "D": 64, "BM": 64, "BN": 64}
KERNEL = (files("corpus") / "kernels" / "flash_fwd_sm90.cuir").read_text(encoding="utf-8")


def transferred(variant: str) -> TransferResult:
    return transfer(parse(KERNEL), as_specification(corpus.variant(variant), variant))


def interpreted(result: TransferResult) -> Callable[..., Any]:
    checked = check(result.program, consts=CONSTS)
    return lambda **arguments: run(checked, arguments)


def test_a_right_kernel_passes() -> None:
    result = transferred("sliding_window")
    error, yardstick = timing._check(check(result.program, consts=CONSTS), result, interpreted(result), "cpu")
    assert 0 < error <= 1.5 * yardstick


def test_a_wrong_kernel_is_found() -> None:
    result, other = transferred("sliding_window"), transferred("full")
    launch = interpreted(other)

    def wrong(**arguments: Any) -> None:
        launch(**{name: arguments[name] for name in ("Q", "K", "V", "O", "LSE", "scale")})

    with pytest.raises(CuirError) as caught:
        timing._check(check(result.program, consts=CONSTS), result, wrong, "cpu")
    assert [d.code for d in caught.value.diagnostics] == ["V401"]


def test_an_output_that_stays_unwritten_is_found() -> None:
    result = transferred("full")
    with pytest.raises(CuirError, match="V401"):
        timing._check(check(result.program, consts=CONSTS), result, lambda **_: None, "cpu")


@pytest.mark.parametrize(("variant", "peer"), [
    ("full", "scaled_dot_product_attention"),
    ("causal", "scaled_dot_product_attention (is_causal)"),
    ("prefix_lm", "scaled_dot_product_attention (dense mask)"),
    ("causal_document", "scaled_dot_product_attention (dense mask)"),
    ("softcap", None),
])  # fmt: skip
def test_peers_compute_the_variant(variant: str, peer: str | None) -> None:
    problem = timing._problem(2, 2, 256, 64, torch.float32, "cpu")
    specification = as_specification(corpus.variant(variant), variant)
    peers = timing._peers(problem, specification)
    assert list(peers) == [*([peer] if peer else []), "FlexAttention (compiled)"]
    if peer:
        wanted, _ = specification.reference(problem["Q"], problem["K"], problem["V"], 64**-0.5)
        torch.testing.assert_close(peers[peer]().double(), wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_is_said() -> None:
    assert "no CUDA device" in timing.no_gpu()
    with pytest.raises(CuirError, match="U501"):
        timing.need_gpu()
