"""Freed memory between objects that live on is given back: at once, and at the end of each verification."""

from __future__ import annotations

import ctypes

import pytest
import torch

from cuir import parse, verify
from cuir.verification import stages
from cuir.verification.freed_memory import release_freed_memory
from tests.strategies.memory import read_resident

needs_glibc = pytest.mark.skipif(not read_resident() or not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs Linux and glibc")


@needs_glibc
def test_memory_between_living_objects_is_given_back() -> None:
    before = read_resident()
    blocks = [torch.zeros(10_000) for _ in range(4_000)]  # 160 MB, of blocks that are no mappings of their own
    kept = blocks[::100]
    del blocks
    fragmented = read_resident()
    release_freed_memory()
    assert len(kept) == 40 and fragmented - before > 100 and read_resident() - before < 40


SUMS = """
@kernel(arch="sm_80")
def k(X: Global[f32, M], Y: Global[f32, M]):
    work = tiles(M)
    with role("all", warps=1):
        for t in work:
            store(Y[t], X[t] + {term})
"""


def test_a_verification_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[bool] = []
    monkeypatch.setattr(stages, "release_freed_memory", lambda: called.append(True))
    for term, ok in (("0.0", True), ("1.0", False)):
        assert verify(parse(SUMS.format(term=term)), lambda x: x, seeded=0, shrink=False).ok == ok
    assert called == [True, True]
