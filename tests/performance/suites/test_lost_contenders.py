"""A contender that hangs or ends the process costs its own entry in one row: the others are measured again without it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from cuir.performance.search.compiling import BuildResult
from cuir.performance.suites.cell_benchmark import Cell
from cuir.performance.suites.results import Results, markdown, read, summary
from cuir.performance.suites.suite_run import REPEATS, Planned, ProgressCount, SuiteRun, run_cells
from cuir.performance.timing.worker import Worker, WorkerLost
from tests.performance.suites.test_cell_benchmark import SETTING, SHAPE
from tests.performance.suites.test_reference import FILE
from tests.performance.suites.test_results import CELLS, HEAD, Priming, go, row

ROOT = Path(__file__).parents[2]
LOSSES = {"reference A": ("hangs", "no answer within 30 s"), "reference B": ("fault", "the process ended with 7: no more")}


class Gpu:
    """A process that is lost with each of these contenders at the cells named so."""

    def __init__(self, losses: Mapping[str, tuple[str, str]], at: tuple[str, ...]):
        self.losses, self.at = losses, at
        self.lost: list[dict] = []

    def __call__(self, request: Mapping, seconds: float) -> Mapping:
        (item,) = (c for c in CELLS if c.as_json() == {k: request[k] for k in c.as_json()})
        self.lost.append(dict(request["lost"]))
        for name, (status, why) in self.losses.items():
            if item.name in self.at and name not in request["lost"]:
                raise WorkerLost(status, why, name)
        result = row(item)
        return {**result, "contenders": result["contenders"] | {name: {"failed": why} for name, why in request["lost"].items()}}


def test_a_row_is_measured_again_without_what_was_lost(tmp_path: Path) -> None:
    gpu, text = Gpu(LOSSES, (CELLS[1].name,)), list[ProgressCount]()
    results = Results(tmp_path / "r.jsonl", HEAD)
    assert go(results, gpu, tell=text.append)
    item = {"reference A": "hangs: no answer within 30 s"}
    lost = {**item, "reference B": "fault: the process ended with 7: no more"}
    assert gpu.lost == [{}, {}, item, lost, {}], "a contender that was lost at one row is tried at the next"
    assert "failed" not in results.rows[1] and {n: results.rows[1]["contenders"][n]["failed"] for n in lost} == lost
    assert [t.doing for t in text if t.lasting][1:] == [f"{CELLS[1].name}: {n}: {why}; once more without it" for n, why in lost.items()]
    repeated = Gpu({}, ())
    assert go(Results(tmp_path / "r.jsonl", HEAD), repeated) and not repeated.lost, "a row with an entry that failed is a row"


def test_a_row_that_loses_ever_more_is_given_up(tmp_path: Path) -> None:
    names = [f"reference {i}" for i in range(REPEATS + 2)]
    gpu, results = Gpu(dict.fromkeys(names, ("hangs", "no answer within 30 s")), (CELLS[0].name,)), Results(tmp_path / "r.jsonl", HEAD)
    assert go(results, gpu) and len(gpu.lost) == REPEATS + 1 + len(CELLS) - 1
    assert results.rows[0]["failed"] == f"hangs: no answer within 30 s ({', '.join(names[: REPEATS + 1])})"
    assert Results(tmp_path / "r.jsonl", HEAD).missing(CELLS) == CELLS[:1], "the next run tries it again"


def test_what_is_lost_though_left_out_is_not_asked_for_without_end(tmp_path: Path) -> None:
    requests: list[Mapping] = []

    def ask(request: Mapping, seconds: float) -> Mapping:
        requests.append(request)
        raise WorkerLost("hangs", "no answer within 30 s", "flex")

    results = Results(tmp_path / "r.jsonl", HEAD)
    assert go(results, ask) and len(requests) == 2 * len(CELLS) and all("flex" in r["failed"] for r in results.rows)


SMALL = """
import dataclasses, sys
from cuir.performance.suites import cell_benchmark as cells
from cuir.cli import worker_process as worker
from tests.performance.suites.test_cell_benchmark import make_launch, on_cpu

cells.BUILD_SECONDS, cells.RUN_SECONDS = 2.0, 60.0
variant = worker.transfer_variant("causal", (), "flash_fwd_sm90")

def measure_cell(cell, transferred, dtype, entrants, timing):
    timing = dataclasses.replace(timing, measure=lambda call: (call() and None) or 0.5)
    return cells.measure_cell(cell, transferred, dtype, entrants, timing, prepare=on_cpu, launch=make_launch(variant.program))

worker.measure_cell = measure_cell
sys.exit(worker.serve({}, telling={"cell": worker.cell}))
"""
MORE = """
import os, time

SETS["golden"] = {name: dict(D=64, CAUSAL=1, DOES=name) for name in ("hangs", "right", "ends")}

class Kernel(Kernel):
    def prepare(self, *tensors):
        launch, does, calls = super().prepare(*tensors), self.config["DOES"], []

        def call():
            if does == "hangs":
                time.sleep(600)
            if does == "ends" and calls:
                print("no more", file=sys.stderr, flush=True)
                os._exit(7)
            calls.append(1)
            launch()
        return call
"""


@pytest.mark.thorough
def test_a_reference_that_hangs_on_one_row(tmp_path: Path) -> None:
    """The process of `cuir bench` on a CPU: one configuration hangs when it is checked, another ends the process when it is timed."""
    (tmp_path / "bench_ref.py").write_text(FILE + MORE, encoding="utf-8")
    item, path = Cell("causal", {}, "small", SHAPE), tmp_path / "r.jsonl"

    def plan(cell: Cell) -> Planned:
        return Planned(cell, "text", "flash_fwd", (SETTING,))

    with Worker([sys.executable, "-c", SMALL], {"PYTHONPATH": str(ROOT)}) as worker:
        assert run_cells(
            SuiteRun([item], Results(path, HEAD), "f16", (), rounds=2, limit=600.0, reference=str(tmp_path)),
            plan,
            lambda work: iter([(0, BuildResult())]),
            Priming,
            lambda request, seconds: worker.ask({"origin": "flash_fwd_sm90", **request}, seconds),
            lambda text: None,
        )
    head, (result,) = read(path)
    entries = result["contenders"]
    assert entries["reference hangs"] == {"failed": "hangs: no answer within 2 s"}
    assert entries["reference ends"] == {"failed": "fault: the process ended with 7: no more"}
    assert entries["reference right"]["rounds"] == entries["cuir BM=64,BN=64"]["rounds"] == 2
    assert "failed: causal small 100: reference hangs: hangs: no answer within 2 s" in summary([result])
    assert "reference ends: fault: the process ended with 7: no more" in markdown(head, [result])
