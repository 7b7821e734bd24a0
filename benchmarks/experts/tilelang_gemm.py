"""Write CUDA text that TileLang makes of a product, for Hopper and without a GPU: `python tilelang_gemm.py FILE.cu M N K`."""

from __future__ import annotations

import sys
from pathlib import Path

import tilelang
import tilelang.language as T
from tvm.target import Target


def make_product(m: int, n: int, k: int) -> object:
    @T.prim_func
    def product(a: T.Tensor((m, k), "float16"), b: T.Tensor((n, k), "float16"), c: T.Tensor((m, n), "float16")):  # type: ignore[no-untyped-def,valid-type]
        with T.Kernel(T.ceildiv(n, 128), T.ceildiv(m, 128), threads=256) as (x, y):
            left, right = T.alloc_shared((128, 64), "float16"), T.alloc_shared((128, 64), "float16")
            total = T.alloc_fragment((128, 128), "float32")
            T.clear(total)
            for i in T.Pipelined(T.ceildiv(k, 64), num_stages=3):
                T.copy(a[y * 128, i * 64], left)
                T.copy(b[x * 128, i * 64], right)
                T.gemm(left, right, total, transpose_B=True)
            T.copy(total, c[y * 128, x * 128])

    return product


def main() -> None:
    target = Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        made = tilelang.lower(make_product(*map(int, sys.argv[2:])), target={"kind": "cuda", "arch": "sm_90a"}, enable_device_compile=False)
    Path(sys.argv[1]).write_text(made.kernel_source, encoding="utf-8")


if __name__ == "__main__":
    main()
