"""The expert kernel, as transferred to variants, against float64: `test_attention.py` runs each kernel in a process of its own."""

from __future__ import annotations

from benchmarks.gpu import CASES, CONFIGS, build, check_case
from cuir.bind import TORCH
from cuir.types import BF16, F16

EXTRA = [  # B, H, HK, M, N, note
    (1, 8, 1, 1000, 1000, "1000, MQA"), (1, 8, 2, 4096, 77, "few keys, GQA"), (2, 2, 2, 77, 4096, "few queries"), (1, 2, 2, 0, 64, "no queries"),
    (1, 6, 2, 1024, 1024, "outer strides swapped, GQA"), (1, 2, 1, 129, 65, "one more than a tile"),
]  # fmt: skip


def right(variant: str, config: str, dtype: str) -> list[int]:
    """How many cases are right, and how many there are."""
    kernel, transferred = build(variant, config, dtype)
    good, cases = 0, [*CASES, *EXTRA]
    for case in cases:
        ok, text = check_case(kernel, transferred, case, TORCH[{"f16": F16, "bf16": BF16}[dtype]], CONFIGS[config]["D"])
        good += ok
        print("ok  " if ok else "FAIL", text, flush=True)
    assert good == len(cases), f"{len(cases) - good} of {len(cases)} are wrong"
    return [good, len(cases)]
