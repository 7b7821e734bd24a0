"""Numbers of the attention variants on a GPU: dtypes, head dims, block sizes, lengths, head ratios, strides; poisoned outputs, the same bits each time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import corpus
from cuir import parse
from cuir.arguments.binding import TORCH
from cuir.attn.splicing.splice import TransferResult, transfer
from cuir.runtime.compiled import CompiledKernel, compile
from cuir.spec.specification import Specification, lengths_of
from cuir.syntax.types import DTYPES
from tests.gpu.isolation import run_isolated

CONFIGS: dict[str, dict[str, int]] = {
    "d128w2": {"D": 128, "BM": 128, "BN": 128},
    "d128w3": {"D": 128, "BM": 192, "BN": 80},
    "d64w2": {"D": 64, "BM": 128, "BN": 128},
    "d64w3": {"D": 64, "BM": 192, "BN": 128},
    "d128w2c2": {"D": 128, "BM": 256, "BN": 128, "CLUSTER": 2},
    "d128w3c2": {"D": 128, "BM": 384, "BN": 80, "CLUSTER": 2},
    "d64w3c2": {"D": 64, "BM": 384, "BN": 128, "CLUSTER": 2},
    "d128w1c4": {"D": 128, "BM": 256, "BN": 96, "CLUSTER": 4},
}
Case = tuple[int, int, int, int, int, str]
CASES: list[Case] = [  # B, H, HK, M, N, note
    (1, 2, 2, 128, 128, "one tile"),
    (2, 4, 4, 1024, 1024, "aligned"),
    (1, 4, 2, 1000, 1000, "ragged, GQA"),
    (1, 4, 1, 700, 1500, "M < N, MQA"),
    (1, 2, 2, 1, 1, "one of each"),
    (1, 2, 2, 1, 777, "one query"),
    (1, 2, 2, 77, 5, "few keys"),
    (1, 2, 2, 600, 300, "M > N"),
    (1, 2, 1, 77, 77, "77, MQA"),
    (2, 4, 4, 1024, 1024, "outer strides swapped"),
    (1, 4, 4, 1024, 1024, "growing maxima"),
    (1, 4, 4, 1024, 1024, "falling maxima"),
    (1, 2, 2, 100, 0, "no keys"),
    (2, 40, 8, 2048, 2048, "many tiles"),
    (3, 50, 50, 200, 333, "many short tiles"),
    (1, 2, 2, 4096, 4096, "long"),
    (1, 1, 1, 8192, 8192, "longest"),
    (1, 8, 1, 1000, 1000, "1000, MQA"),
    (1, 8, 2, 4096, 77, "few keys, GQA"),
    (2, 2, 2, 77, 4096, "few queries"),
    (1, 2, 2, 0, 64, "no queries"),
    (1, 6, 2, 1024, 1024, "outer strides swapped, GQA"),
    (1, 2, 1, 129, 65, "one more than a tile"),
    (1, 4, 4, 1024, 1024, "negative scores"),
    (1, 4, 2, 1000, 1000, "negative scores, growing maxima"),
    (1, 4, 4, 512, 1024, "some rows far ahead"),
]
FACTOR, SLACK = 1.2, 2e-5  # the error may be this much more than PyTorch's own in half precision
LSE_BOUND, REPEATS = 2e-3, 4
SCORES = 1 << 26  # query-key pairs whose float64 scores are held at once


def right(variant: str, config: str, dtype: str) -> list[int]:
    """Count the right cases, and all."""
    kernel, transferred = build(variant, config, dtype)
    good = 0
    for case in CASES:
        ok, text = check(kernel, transferred, case, TORCH[DTYPES[dtype]], CONFIGS[config]["D"])
        good += ok
        print("ok  " if ok else "FAIL", text, flush=True)
    assert good == len(CASES), f"{len(CASES) - good} of {len(CASES)} are wrong"
    return [good, len(CASES)]


def build(variant: str, config: str, dtype: str) -> tuple[CompiledKernel, TransferResult]:
    """A kernel from the cache, or compiled now: tiles dynamically, longest first, where there is a mask; else statically."""
    text = corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8")
    transferred = transfer(parse(text, "flash_fwd_sm90.cuir"), corpus.variant(variant)())
    consts = {"T": DTYPES[dtype], **CONFIGS[config], "DYNAMIC": transferred.spec.mask_mod is not None}
    return compile(transferred.program, consts=consts), transferred


def check(kernel: CompiledKernel, transferred: TransferResult, case: Case, dtype: torch.dtype, dim: int) -> tuple[bool, str]:
    """Return whether all is right, and the figures."""

    def launch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, lse: torch.Tensor, scale: float) -> None:
        captured = transferred.arguments(lengths_of(q, k), q.device, kernel.checked.consts)
        kernel(**{"Q": q, "K": k, "V": v, "O": o, "LSE": lse, "scale": scale, **captured})

    return compare(launch, transferred.spec, case, dtype, dim)


def compare(launch: Callable[..., None], spec: Specification, case: Case, dtype: torch.dtype, dim: int) -> tuple[bool, str]:
    """Calls `launch(q, k, v, o, lse, scale)` with poisoned outputs, the same bits each time, against float64; whether all is right, and the figures."""
    B, H, HK, M, N, note = case
    q, k, v = tensors(case, dim, dtype)
    o, lse, scale = torch.full_like(q, math.nan), torch.full(q.shape[:-1], math.nan, device=q.device), dim**-0.5
    runs = []
    for _ in range(REPEATS):
        o.fill_(math.nan)
        lse.fill_(math.nan)
        launch(q, k, v, o, lse, scale)
        torch.cuda.synchronize()
        runs.append((o.clone(), lse.clone()))
    same = all(torch.equal(a, b) for run in runs for a, b in zip(run, runs[0], strict=True))
    error, ours, lse_error, dead_ok = 0.0, 0.0, 0.0, True
    for heads in portions(q, k):
        reference, wanted_lse, half = compute_expected(spec, q, k, v, scale, heads)
        actual, got_lse = o[:, heads].double(), lse[:, heads].double()
        size = max(reference.norm().item(), 1e-30)
        error = max(
            error,
            (actual - reference).norm().item() / size if reference.norm() > 0 else actual.abs().max().item() if actual.numel() else 0.0,
        )
        ours = max(ours, (half.double() - reference).nan_to_num().norm().item() / size)
        live = torch.isfinite(wanted_lse)
        lse_error = max(lse_error, (got_lse - wanted_lse)[live].abs().max().item() if live.any() else 0.0)
        dead_ok &= bool((got_lse[~live] == -math.inf).all()) and bool((actual[~live] == 0).all())
    ok = error <= FACTOR * ours + SLACK and lse_error < LSE_BOUND and same and dead_ok and math.isfinite(error)
    figures = f"error {error:.2e} (PyTorch {ours:.2e}) lse {lse_error:.1e} repeatable {same} dead rows {dead_ok}"
    return ok, f"{figures}  B{B} H{H}/{HK} M{M} N{N} {note}"


def tensors(case: Case, dim: int, dtype: torch.dtype, device: str = "cuda") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    B, H, HK, M, N, note = case
    generator = torch.Generator(device).manual_seed(H * 1000003 + M * 1009 + N)

    def random(heads: int, length: int) -> torch.Tensor:
        if "strides" in note:
            return torch.randn(B, length, heads, dim, device=device, generator=generator).to(dtype).transpose(1, 2)
        return torch.randn(B, heads, length, dim, device=device, generator=generator).to(dtype)

    q, k, v = random(H, M), random(HK, N), random(HK, N)
    if "negative" in note:
        q, k = q.abs(), -k.abs()
    if "far ahead" in note:  # the maximum of some rows grows by hundreds in one block, that of their neighbours does not
        q[:, :, ::11] *= 8
        k[:, :, 700:720] *= 4
    if "maxima" in note:
        ramp = torch.linspace(6, 0.1, N, device=device) if "growing" in note else torch.linspace(0.1, 6, N, device=device)
        k = (k * ramp[:, None]).to(dtype)
    return q, k, v


def portions(q: torch.Tensor, k: torch.Tensor) -> list[slice]:
    """All heads at once if float64 scores fit, else the first and the last group of heads alone."""
    B, H, M, N = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
    group = H // k.shape[1]
    return [slice(0, H)] if B * H * M * max(N, 1) <= SCORES else [slice(0, group), slice(H - group, H)]


def compute_expected(
    spec: Specification, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, heads: slice
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """O and LSE in float64 and O in half precision, of some heads: what the mods see of heads and lengths is the whole problem's."""
    group = q.shape[1] // k.shape[1]
    keys = slice(heads.start // group, -(-heads.stop // group))
    mask_mod, score_mod = spec.mods(lengths_of(q, k), q.device)

    def shift(mod: Callable[..., Any] | None, first: int) -> Callable[..., Any] | None:
        if mod is None:
            return None
        if first:
            return lambda s, b, h, i, j: mod(s, b, h + heads.start, i, j)
        return lambda b, h, i, j: mod(b, h + heads.start, i, j)

    sink = None if spec.sink is None else spec.sinks(lengths_of(q, k)).to(q.device, torch.float64)[heads]
    some = replace(spec, mask_mod=shift(mask_mod, 0), score_mod=shift(score_mod, 1), captured={}, sink=sink)
    part = q[:, heads], k[:, keys], v[:, keys]
    return *some.reference(*part, scale), some.half(*part, scale)[0]


VARIANTS = ("full", "causal", "sliding_window", "prefix_lm", "softcap", "alibi")
KERNELS = [
    *((v, f"d{d}{w}", dtype) for v in VARIANTS for d in (128, 64) for w, dtype in (("w3", "f16"), ("w2", "bf16"))),
    *((v, f"d{d}w2", "f16") for v in ("full", "causal") for d in (128, 64)),
    *((v, f"d{d}w2", "f16") for v in corpus.variants() if v not in VARIANTS for d in (128, 64)),
    *((v, c, "f16") for v in ("full", "causal", "sliding_window", "document") for c in ("d128w2c2", "d64w3c2")),
    ("combo", "d64w3", "bf16"),
    ("sink_causal", "d64w3", "bf16"),
    ("causal", "d128w3c2", "bf16"),
    ("full", "d128w1c4", "f16"),
    ("causal", "d128w1c4", "f16"),
]


@pytest.mark.gpu
@pytest.mark.parametrize(("variant", "config", "dtype"), KERNELS)
def test_against_float64(variant: str, config: str, dtype: str) -> None:
    run_isolated(right, variant, config, dtype, seconds=200)


@pytest.mark.parametrize("variant", sorted(corpus.variants()))
def test_every_case_has_an_expectation(variant: str) -> None:
    spec = corpus.variant(variant)()
    for case in CASES:
        B, H, HK, M, N, _ = case
        if B * H * M * N > 1 << 18:
            continue
        q, k, v = tensors(case, 16, torch.float16, "cpu")
        o, lse, half = compute_expected(spec, q, k, v, 0.25, slice(0, H))
        assert o.shape == half.shape == (B, H, M, 16) and lse.shape == (B, H, M) and bool(torch.isfinite(o).all())
        group = H // HK
        last, last_lse, _ = compute_expected(spec, q, k, v, 0.25, slice(H - group, H))
        torch.testing.assert_close((last, last_lse), (o[:, H - group :], lse[:, H - group :]))
