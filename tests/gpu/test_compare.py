"""The main job's last step on a GPU: numbers checked against float64, times beside PyTorch's kernels."""

from __future__ import annotations

from importlib.resources import files

import pytest

import corpus
from cuir import check, parse
from cuir.attn.splicing.splice import transfer
from cuir.performance.suites import compare as module
from cuir.spec.loading import as_specification
from cuir.syntax.types import F16

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("variant", "peers"),
    [
        ("full", {"cudnn", "fa2", "flex"}),
        ("causal", {"cudnn", "fa2", "dense", "flex"}),
        ("prefix_lm", {"dense", "flex"}),
        ("softcap", {"flex"}),
    ],
)
def test_compare(monkeypatch: pytest.MonkeyPatch, variant: str, peers: set[str]) -> None:
    monkeypatch.setattr(module, "LENGTH", 1024)
    monkeypatch.setattr(module, "HEADS", 4)
    origin = parse((files("corpus") / "kernels" / "flash_fwd_sm90.cuir").read_text(encoding="utf-8"))
    transferred = transfer(origin, as_specification(corpus.variant(variant), variant))
    result = module.compare(check(transferred.program, consts={"T": F16, "D": 128}), transferred)
    assert {r["what"] for r in result["rows"]} == {"this kernel"} | peers
    assert all(r["milliseconds"] > 0 and r["tflops"] > 0 for r in result["rows"])
    assert result["error"] <= 1.5 * result["yardstick"] + 2e-5
