"""Lifted programs: each is one that the checker takes, and the table is made of what was measured."""

from __future__ import annotations

import json

import pytest

import cuir
from benchmarks import lifted
from cuir.syntax.types import F16


@pytest.mark.parametrize("item", lifted.ALL, ids=[item.name for item in lifted.ALL])
def test_the_checker_takes_them(item: lifted.Lifted) -> None:
    program = cuir.load(lifted.FOLDER / f"{item.name}.cuir")
    (kernel,) = program.kernels().values()
    dims = {"D": 64 if "hdim64" in item.name else 128} if any(p.name == "D" for p in kernel.params) else {}
    assert cuir.check(program, None, {"T": item.dtype, **dims}).arch in ("sm_80", "sm_90a")


def test_they_are_what_the_records_hold() -> None:
    """The last answer that was accepted, as it was then."""
    for item in lifted.ALL:
        path = lifted.FOLDER.parents[1] / "llm/transcripts" / f"lift-{item.name}.jsonl"
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        accepted = [r["verdict"]["text"] for r in rows if r["kind"] == "exchange" and r["verdict"]["ok"]]
        assert (lifted.FOLDER / f"{item.name}.cuir").read_text(encoding="utf-8") == accepted[-1]


def test_the_table_has_a_line_for_each_length_and_the_means() -> None:
    rows = [
        {"program": "p", "gpu": "G", "length": n, "tflops": {"lifted": 90.0, "source": s}, "apart": 1e-4}
        for n, s in ((1, 100.0), (2, 81.0))
    ]
    text = lifted.table([*rows, {"program": "q", "gpu": "G", "failed": "its source is not here"}])
    assert (
        "| p | 1 | 90 | 100 | 0.900 | 1.0e-04 |" in text
        and "p: 1.000 in the geometric mean of 2 lengths" in text
        and "q" not in text.split("apart")[1]
    )


def test_operations_are_those_of_full_attention_and_of_a_product() -> None:
    by_name = {item.name: item for item in lifted.ALL}
    assert by_name["flash_attention_3_hdim64"].operations(1024) == 4 * 64 * 1024 * 1024 * 16 * 32
    assert by_name["cutlass_pingpong_gemm"].operations(1000) == 2e9 and by_name["cutlass_pingpong_gemm"].dtype == F16
