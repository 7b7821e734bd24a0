"""Programs out of transcripts, as they are timed on a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cuir
from benchmarks.of_models import CONSTS, read_accepted
from benchmarks.recorded import open_transcripts
from cuir.attn.splicing.captured_arguments import compute_captured_arguments
from cuir.checking.checker import check
from cuir.cli.command_inputs import read_variant
from cuir.performance.suites.suites import suite

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.mark.parametrize("folder", ["eval-lifted-eight-2026-11-25", "eval-lifted-fa2-eight-2026-11-25"])
def test_accepted_programs_take_what_the_variants_of_the_suite_capture(folder: str) -> None:
    cells = {c.variant: c for c in suite("paper").cells() if c.shape.N == 1024}
    texts = read_accepted(open_transcripts(RESULTS / f"{folder}.tar.xz"))
    assert set(texts) == set(cells)
    for variant, text in texts.items():
        program, cell = cuir.parse(text, variant), cells[variant]
        (kernel,) = program.kernels().values()
        consts = check(program, None, CONSTS).consts
        inputs = compute_captured_arguments(program, kernel, read_variant(variant, cell.arguments), cell.shape.lengths, consts=consts)
        assert set(inputs) <= {p.name for p in kernel.params}


def test_a_sample_that_no_attempt_was_right_of_has_no_program(tmp_path: Path) -> None:
    def line(kind: str, **more: object) -> str:
        return json.dumps({"kind": kind, **more})

    wrong = line("exchange", verdict={"ok": False, "text": "no"})
    (tmp_path / "a-0.jsonl").write_text("\n".join([line("head", task={"to": "a"}), wrong]))
    (tmp_path / "b-0.jsonl").write_text(
        "\n".join([line("head", task={"to": "b"}), wrong, line("exchange", verdict={"ok": True, "text": "yes"})])
    )
    (tmp_path / "b-1.jsonl").write_text("\n".join([line("head", task={"to": "b"}), wrong]))
    assert read_accepted(tmp_path) == {"b": "yes"} and read_accepted(tmp_path, 1) == {}
