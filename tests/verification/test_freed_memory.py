"""Freed memory between objects that live on is given back: at once, and at the end of each verification."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from cuir import parse, verify
from cuir.verification import stages
from tests.strategies.memory import read_resident

needs_glibc = pytest.mark.skipif(not read_resident() or not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs Linux and glibc")


FRAGMENTED = """
import torch
from cuir.verification.freed_memory import release_freed_memory
from tests.strategies.memory import read_resident

before = read_resident()
blocks = [torch.zeros(10_000) for _ in range(4_000)]  # 160 MB, of blocks that are no mappings of their own
kept = blocks[::100]
del blocks
fragmented = read_resident()
release_freed_memory()
print(len(kept), fragmented - before, read_resident() - before)
"""


@needs_glibc
def test_memory_between_living_objects_is_given_back() -> None:
    """In a process of its own: one with free memory of earlier tests does not grow."""
    output = subprocess.run([sys.executable, "-c", FRAGMENTED], capture_output=True, text=True, check=True)
    retained, fragmented, remaining = map(float, output.stdout.split())
    assert retained == 40 and fragmented > 100 and remaining < 40


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
