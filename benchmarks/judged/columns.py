"""Sums of columns."""

import torch

rows, columns = 2048, 1024


def reference(x: torch.Tensor) -> torch.Tensor:
    return x.sum(0)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(rows, columns)]
