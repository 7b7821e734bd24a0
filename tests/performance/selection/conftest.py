"""Variants of the expert kernel, adapted once."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

import corpus
from cuir import parse, transfer
from cuir.attn.splicing.splice import TransferResult
from cuir.performance.search import tuning_records as cache
from cuir.performance.selection.work import Work

ORIGIN = parse(corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8"), "flash_fwd_sm90.cuir")
ARCH = "NVIDIA H200 sm_90 132"


@functools.cache
def adapt(variant: str, **parameters: int) -> TransferResult:
    return transfer(ORIGIN, corpus.variant(variant)(**parameters))


def work(variant: str, **parameters: int) -> Work:
    result = Work.of(adapt(variant, **parameters).program)
    assert result is not None
    return result


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with an H200, as far as names go, on which nothing was tuned."""
    monkeypatch.setenv("CUIR_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "device", lambda: (ARCH, 132))
    return tmp_path
