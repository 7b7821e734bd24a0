"""Shipped settings follow from measurements: few rows, several runs at one pace, a reproducible model."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import defaults, fitting
from benchmarks.defaults import Cell, cells, measure_settings, parse_setting, read_plan, whole
from benchmarks.fitting import Measured, fit, read, runs, table_of
from cuir.performance.search.space import find_violation, label
from cuir.performance.selection import cost
from cuir.performance.selection import shipped_table as table
from cuir.performance.timing.problem import Shape

times = st.dictionaries(st.sampled_from("abc"), st.floats(1.0, 1.5), min_size=3)


def of(n: int, selected: dict[str, float], variant: str = "causal", D: int = 64) -> Measured:
    return Measured(Cell(variant, Shape(max(1, 16384 // n), 32, 32, n, n, D)), selected)


def compute_loss(path: list[str], by_keys: dict[float, list[Measured]]) -> float:
    each = [math.log(m.times[n] / m.best) for n, ms in zip(path, by_keys.values()) for m in ms]
    return sum(each) + fitting.CHANGE * sum(a != b for a, b in itertools.pairwise(path))


@given(st.lists(times, min_size=1, max_size=5))
def test_runs_lose_least(figures: list[dict[str, float]]) -> None:
    """Less than any other way, found by trying all."""
    by_keys = {1024.0 * 2**i: [of(1024 << i, selected)] for i, selected in enumerate(figures)}
    results = [name for name, keys in runs(by_keys) for _ in keys]
    assert [k for _, keys in runs(by_keys) for k in keys] == list(by_keys)
    best = min(compute_loss(list(path), by_keys) for path in itertools.product("abc", repeat=len(figures)))
    assert compute_loss(results, by_keys) == pytest.approx(best)


def test_noise_makes_no_row_of_its_own() -> None:
    figures = [
        of(1024, {"BM=128,BN=128": 1.0, "BM=192,BN=128": 1.1}),
        of(4096, {"BM=128,BN=128": 1.1, "BM=192,BN=128": 1.0}),
        of(8192, {"BM=128,BN=128": 0.99, "BM=192,BN=128": 1.0}),
        of(16384, {"BM=128,BN=128": 1.1, "BM=192,BN=128": 1.0}),
    ]
    result = table_of(figures, 132)
    assert [(r.setting["BM"], r.least < 600, r.most > 8000) for r in result] == [(128, True, False), (192, False, True)]
    few = table_of([*figures, Measured(Cell("causal", Shape(1, 1, 1, 2048, 2048, 64)), {"BM=64,BN=64": 0.1, "BM=128,BN=128": 1.0})], 132)
    assert few == result, "few tiles are the model's"


def test_runs_of_another_day_come_to_one_pace(tmp_path: Path) -> None:
    cell = of(1024, {}).cell
    first = {**cell.as_json(), "ms": {"BM=128,BN=128": [1.0, 1.0, 1.0], "BM=192,BN=128": [2.0]}}
    repeated = {**cell.as_json(), "ms": {"BM=128,BN=128": [1.1, 1.1, 1.1], "BM=192,BN=96": [1.21]}}
    for name, row in (("a", first), ("b", repeated)):
        (tmp_path / name).write_text(json.dumps({"device": "NVIDIA H200 sm_90 132"}) + "\n" + json.dumps(row) + "\n", encoding="utf-8")
    device, (result,) = read([tmp_path / "a", tmp_path / "b"])
    assert device.endswith("132") and result.cell == cell
    assert result.times == pytest.approx({"BM=128,BN=128": 1.0, "BM=192,BN=128": 2.0, "BM=192,BN=96": 1.1})


def test_the_models_numbers_are_found_again() -> None:
    """From times that the model itself gives, with other numbers and a little noise."""
    rng = np.random.default_rng(0)
    hidden = cost.Coefficients(product=1.3, step=250.0, tile=900.0, copy=0.02, sharp=3.0)
    figures = []
    for variant in ("full", "causal", "softcap"):
        for n in (1024, 4096, 16384):
            for D in (64, 128):
                cell = of(n, {}, variant, D).cell
                work, numbers = fitting.work_of(cell)
                for BM, BN in ((64, 64), (128, 64), (128, 128), (192, 64), (192, 80)):
                    t = cost.Terms.of(work, cell.shape, dict(numbers), {"BM": BM, "BN": BN}, 132)
                    figures.append((t, cost.predict_milliseconds(t, hidden) * float(np.exp(rng.normal(0, 0.01))), 1.0))
    result = fit(figures)
    off = [abs(math.log(cost.predict_milliseconds(t, result) / cost.predict_milliseconds(t, hidden))) for t, _, _ in figures]
    before = [abs(math.log(cost.predict_milliseconds(t, cost.Coefficients()) / selected)) for t, selected, _ in figures]
    assert max(off) < 0.02 < max(before)


@pytest.mark.thorough
def test_what_ships_is_what_the_measurements_give(tmp_path: Path) -> None:
    """The table's rows beside the kept measurements: no cell is served worse than 3 % from its best."""
    (path,) = (Path(__file__).parents[2] / "benchmarks/results").glob("defaults-h200-*.jsonl.xz")
    device, result = read([path])
    grid = {cell for cell, _ in cells(defaults.GRID)} | {m.cell for m in result if m.cell.shape.D == 192}
    ratios = {m.cell: r for r, m, _ in fitting.report([m for m in result if m.cell in grid], device, "table") if r == r}
    assert set(ratios) == grid and any(cell.shape.D == 192 for cell in grid)
    assert min(ratios.values()) >= 0.97, min(ratios, key=lambda c: ratios[c])


def test_a_cell_that_loses_by_sharing_has_a_row_of_its_own() -> None:
    """For as many query heads a key head; the others keep what they share."""
    few, many = {"BM=128,BN=128": 1.0, "BM=192,BN=128": 1.02}, {"BM=128,BN=128": 1.05, "BM=192,BN=128": 1.0}
    grouped = Cell("causal", Shape(16, 64, 8, 1024, 1024, 64))
    figures = [
        of(1024, few),
        Measured(grouped, many, {"BM=192,BN=128": 24}),
        *(of(n, {"BM=128,BN=128": 1.0, "BM=192,BN=128": 1.05}) for n in (4096, 8192)),
    ]
    shared, ours = table_of(figures, 132)
    assert shared.setting["BM"] == 128 and shared.heads is None
    assert ours.setting["BM"] == 192 and (ours.heads, ours.spilled, ours.least) == (8, 24, ours.most)


def test_the_model_knows_how_few_tiles_divide_among_multiprocessors() -> None:
    """Launches of one to four waves, of which no table has rows: most get a setting within 3 % of the best that was measured."""
    (path,) = (Path(__file__).parents[2] / "benchmarks/results").glob("defaults-h200-*.jsonl.xz")
    device, result = read([path])
    few = [m for m in result if table.count_waves(m.cell.shape, 132) < table.MIN_WAVES]
    ratios = [r for r, _, _ in fitting.report(few, device, "model") if r == r]
    assert len(ratios) == len(few) == 24 and statistics.mean(ratios) >= 0.98 and sum(r < 0.97 for r in ratios) <= 3


def test_rows_of_one_short_run_are_near_the_best_on_average() -> None:
    """Its figures move by 3 %, and the fastest of ten that move is faster than any setting is."""
    (path,) = (Path(__file__).parents[2] / "benchmarks/results").glob("defaults-h100-*.jsonl.xz")
    device, result = read([path])
    ratios = [r for r, _, _ in fitting.report(result, device, "table")]
    assert len(ratios) == 140 and statistics.mean(ratios) >= 0.99 and sum(r < 0.97 for r in ratios) <= 8


@pytest.mark.sweep(4)
@pytest.mark.parametrize("D", sorted(defaults.SETTINGS))
def test_the_checker_takes_what_is_measured(D: int) -> None:
    result = defaults.of_cell(of(1024, {}, "full", D).cell)
    for setting in defaults.SETTINGS[D]:
        assert find_violation(result.program, result.kernel, whole(setting, D)) is None and parse_setting(label(setting)) == setting


def test_the_grid_is_the_issues(tmp_path: Path) -> None:
    grid = cells(defaults.GRID)
    assert len(grid) == 7 * 4 * 5 * 2 == len({cell for cell, _ in grid})
    assert all(cell.shape.B * cell.shape.M == defaults.TOKENS for cell, _ in grid)
    plan = tmp_path / "plan.jsonl"
    plan.write_text(
        json.dumps({"device": "x"}) + "\n" + json.dumps({**grid[0][0].as_json(), "settings": ["BM=128,BN=64"]}) + "\n", encoding="utf-8"
    )
    assert read_plan(plan) == [(grid[0][0], [{"BM": 128, "BN": 64}])]


def test_nothing_that_is_held_out_is_in_the_grid() -> None:
    contents, grid = defaults.list_held_out(), {cell for cell, _ in cells(defaults.GRID)}
    assert not grid & {cell for cell, _ in contents}
    for cell, settings in contents:
        result = defaults.of_cell(cell)
        assert settings and find_violation(result.program, result.kernel, whole(settings[0], cell.shape.D)) is None


def test_a_wrong_setting_is_named_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(created: Any, name: str, consts: Any) -> Callable[..., None]:
        def launch(**arguments: torch.Tensor) -> None:
            if "BN=96" in name:
                raise ValueError("no such kernel")
            arguments["O"].fill_(2.0 if "BN=64" in name else 1.0)

        return launch

    monkeypatch.setattr(defaults, "compile_once", fake)
    monkeypatch.setattr(defaults, "time_calls", lambda call, n: [0.5 if n == 1 else 0.4] * n)
    result = measure_settings(
        Cell("document", Shape(1, 2, 1, 256, 256, 64)),
        [parse_setting(s) for s in ("BM=128,BN=128", "BM=128,BN=64", "BM=192,BN=96")],
        device="cpu",
    )
    assert result["ms"] == {"BM=128,BN=128": [0.4, 0.4, 0.4]}
    assert result["wrong"].keys() == {"BM=128,BN=64", "BM=192,BN=96"} and "off by" in result["wrong"]["BM=128,BN=64"]
