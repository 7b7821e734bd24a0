"""Sustained rate of a GPU's tensor cores on products alone: `python -m benchmarks.matrix_rate`.

It is the ceiling of attention's two products, under the same protocol of timing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import torch

from cuir.performance.timing.gpu import explain_missing_gpu
from cuir.performance.timing.timing_protocol import Call, median_ms

SIZES = (4096, 8192, 16384)


def rates(
    device: str = "cuda", sizes: tuple[int, ...] = SIZES, dtype: torch.dtype = torch.float16, measure: Callable[[Call], float] = median_ms
) -> Iterator[tuple[int, float]]:
    """Yield n and TFLOP/s of PyTorch's product of two matrices [n, n] of N(0, 1)."""
    for n in sizes:
        a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
        out = torch.empty_like(a)

        def product(a: torch.Tensor = a, b: torch.Tensor = b, out: torch.Tensor = out) -> torch.Tensor:
            """Multiply."""
            return torch.matmul(a, b, out=out)

        yield n, 2 * n**3 / measure(product) / 1e9


def main() -> int:
    """Run the command line."""
    if reason := explain_missing_gpu():
        print(f"nothing measured: {reason}", file=sys.stderr)
        return 1
    for n, rate in rates():
        print(f"{n} x {n} x {n}, f16: {rate:.0f} TFLOP/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
