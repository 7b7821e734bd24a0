"""Repeated runs under PyTorch's deterministic algorithms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch


def run_deterministically(run: Callable[[], Sequence[torch.Tensor]], times: int) -> Sequence[torch.Tensor]:
    """Run so many times, require the same bits of all runs, and return the first one's tensors."""
    torch.use_deterministic_algorithms(True)
    try:
        first, *rest = (run() for _ in range(times))
    finally:
        torch.use_deterministic_algorithms(False)
    assert rest and all(torch.equal(x, y) for second in rest for x, y in zip(first, second, strict=True))
    return first
