"""Write PTX that Triton makes of a warp-specialised product, for Hopper and without a GPU: `python triton_gemm.py FILE.ptx`."""

from __future__ import annotations

import sys
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

ROWS, COLUMNS, INNER = 64, 64, 64


@triton.jit
def product(a, b, c, M, N, K, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr):  # type: ignore[no-untyped-def]
    i, j = tl.program_id(0), tl.program_id(1)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for k in tl.range(0, K, INNER, warp_specialize=True):
        total = tl.dot(a.load([i * ROWS, k]), b.load([j * COLUMNS, k]).T, total)
    c.store([i * ROWS, j * COLUMNS], total.to(tl.float16))


def main() -> None:
    types = [f"tensordesc<fp16[{x}, {y}]>" for x, y in ((ROWS, INNER), (COLUMNS, INNER), (ROWS, COLUMNS))]
    constants = {"ROWS": ROWS, "COLUMNS": COLUMNS, "INNER": INNER}
    signature = dict(zip(("a", "b", "c"), types)) | dict.fromkeys(("M", "N", "K"), "i32") | dict.fromkeys(constants, "constexpr")
    made = triton.compile(
        ASTSource(product, signature, constants), target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "num_stages": 3}
    )
    Path(sys.argv[1]).write_text(made.asm["ptx"], encoding="utf-8")


if __name__ == "__main__":
    main()
