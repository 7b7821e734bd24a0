"""benchmarks/transformers.py without a GPU: sizes of its models, runs of tiny ones, its table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import transformers as benchmark

pytest.importorskip("transformers")


@pytest.mark.parametrize(("name", "billions"), [("llama", 8.03), ("mistral", 7.24), ("gemma2", 9.24), ("gpt_oss", 20.91)])
def test_models_have_their_known_sizes(name: str, billions: float) -> None:
    model = benchmark.model_of(name, None, False, torch.bfloat16, "meta")
    assert sum(p.numel() for p in model.parameters()) / 1e9 == pytest.approx(billions, abs=0.005)


def test_it_runs_without_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.jsonl"
    inputs = "--tiny --backend interpret --device cpu --layers 1 --batch 2 --new 2 --models llama --work padded dynamic --beside sdpa nothing --rounds 1 --out"
    assert benchmark.main([*inputs.split(), str(out)]) == 0
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["work"] for row in rows] == ["padded", "dynamic"]
    for row in rows:
        assert row["rates"].keys() == {"cuir", "sdpa"} and min(row["rates"].values()) > 0
        assert max(row["off"].values()) < 5e-3 and row["failed"].keys() == {"nothing"}
    assert benchmark.table(rows) in capsys.readouterr().out
    assert benchmark.main(["--table", str(out)]) == 0


def test_prompts_are_padded_at_the_left() -> None:
    model = benchmark.model_of("llama", 1, True, torch.float16, "cpu")
    assert benchmark.prompts(model, 2, 8, True)["attention_mask"].tolist() == [[1] * 8, [0, 0, *[1] * 6]]
    assert benchmark.prompts(model, 2, 8, False)["attention_mask"].all()


def test_the_table() -> None:
    row = {"model": "llama", "layers": 32, "work": "prefill", "batch": 4, "tokens": 4096, "rates": {"cuir": 300.4, "sdpa": 200}}
    assert benchmark.table([row]).splitlines()[-1] == "| llama | 32 | prefill | 4 | 4096 | 300 | 200 | 1.50 |"
