"""Rules that nobody tuned for: all are traced and transferred; a sample runs in the interpreter, beside the definition in float64; the table of a run."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from benchmarks.rules import GENERATED, GYM, RULES, Rule, Size, make_rule
from benchmarks.rules.rules_table import line_of, markdown, mean, ratio
from benchmarks.rules.timing import Prepared
from cuir import Specification
from cuir.attn.splicing.splice import transfer
from tests.attn.masks.test_block_bounds import origin

each = pytest.mark.parametrize("rule", RULES, ids=[r.name for r in RULES])
SAMPLE = ("natten_tiled", "sliding_tiles_3d_text", "chosen_tiles", "cells", "windows_of_heads_coarse", "slanted_heap", "padded_logarithmic")


def test_there_are_enough_of_different_names() -> None:
    assert len({r.name for r in RULES}) == len(RULES) >= 60 and len(GENERATED) >= 30 and len(GYM) >= 25


@each
def test_each_rule_becomes_a_kernel(rule: Rule) -> None:
    mods = rule.mods(Size(2, 4, 256))
    transfer(origin()[0], Specification(rule.name, mods.mask_mod, mods.score_mod))


def test_a_seed_is_a_rule() -> None:
    at = Size(2, 4, 256)
    q, k = torch.arange(256)[:, None], torch.arange(256)
    for seed in (0, 3, len(GENERATED), len(GENERATED) + 3):
        item, two = (make_rule(seed).mods(at).mask_mod for _ in range(2))
        assert item is not None and two is not None and torch.equal(item(0, 0, q, k), two(0, 0, q, k))
    first, next_one = (make_rule(s).mods(at).mask_mod for s in (0, len(GENERATED)))
    assert first is not None and next_one is not None and not torch.equal(first(0, 0, q, k), next_one(0, 0, q, k))


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", SAMPLE)
def test_results_are_those_of_the_definition(name: str) -> None:
    kind = next(r.kind for r in RULES if r.name == name)
    cell = {"rule": name, "kind": kind, "head_dim": 64, "length": 256, "heads": 2, "batch": 2, "device": "cpu", "contenders": ["ours"]}
    text = Prepared(cell).result
    assert not text["failed"] and text["off"]["ours"] < 5e-3


def test_tables_have_the_quotients_of_the_rounds() -> None:
    row: dict[str, Any] = {"kind": "mask", "head_dim": 64, "length": 4096, "heads": 16, "batch": 2}
    rows = [
        {**row, "rule": "a", "ms": {"ours": [1.0, 2.0, 4.0], "flex": [2.0, 6.0, 4.0]}, "off": {"ours": 0.002}, "failed": {}},
        {**row, "rule": "b", "ms": {"ours": [1.0], "flex": [8.0]}, "off": {}, "failed": {}},
        {**row, "rule": "c", "ms": {"ours": [1.0]}, "off": {}, "failed": {"flex": "no"}},
    ]
    assert [ratio(r) for r in rows] == [2.0, 8.0, None] and mean([2.0, 8.0]) == pytest.approx(4.0)
    text = markdown(rows)
    assert "| 64 | all | 2 | 4.00 | 2.00 (`a`) |" in text and "| `c` | mask | 1.000 |  |  |" in text
    assert "2.00 x" in line_of(rows[0]) and "no" in line_of(rows[2]) and not math.isnan(mean([1.0]))
