"""Results: an interrupted suite goes on, cells that hang cost themselves alone, the table and the plot say what the rows say."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuir import CuirError
from cuir.performance.search.compiling import BuildResult
from cuir.performance.suites.cell_benchmark import Cell
from cuir.performance.suites.results import Results, markdown, means, ours, peers, place, plot, ratio, ratios, read, summary
from cuir.performance.suites.suite_run import Planned, ProgressCount, SuiteRun, run_cells
from cuir.performance.suites.suites import cell
from cuir.performance.timing.worker import WorkerLost

HEAD = {"suite": "smoke", "device": "a GPU", "driver": "1", "torch": "2", "cuda": "13", "date": "2026-01-01", "command": "cuir bench smoke"}
CELLS = [cell("causal", "llama2-7b", n) for n in (1024, 2048, 4096)]
SETTINGS = ({"BM": 64}, {"BM": 128})


def row(item: Cell, mine: float = 600.0, flex: float = 400.0) -> dict:
    contenders = {
        "cuir BM=64": {"consts": {"BM": 64}, "tflops": mine - 100, "milliseconds": 1.0},
        "cuir BM=128": {"consts": {"BM": 128}, "tflops": mine, "milliseconds": 0.9},
        "cudnn": {"tflops": flex, "milliseconds": 1.4},
        "flex": {"failed": "out of memory"},
    }
    return {**item.as_json(), "dtype": "f16", "contenders": contenders}


class Gpu:
    def __init__(self, stop_at: int | None = None, lost: str = ""):
        self.requests: list[Mapping] = []
        self.stop_at, self.lost = stop_at, lost

    def __call__(self, request: Mapping, seconds: float) -> Mapping:
        if len(self.requests) == self.stop_at:
            raise KeyboardInterrupt
        self.requests.append(request)
        item = Cell.from_json(request)
        if item.name == self.lost:
            raise WorkerLost("hangs", "no answer within 240 s")
        return row(item)


class Priming:
    """Stands for the processes that compile what other contenders need; they must be gone before anything is timed."""

    def __init__(self, cells: Sequence[Cell] = (), open_ones: list | None = None):
        self.cells, self.open_ones = cells, open_ones if open_ones is not None else []

    def __enter__(self) -> list[Future]:
        self.open_ones.append(self)
        results: list[Future] = [Future() for _ in self.cells]
        for item in results:
            item.set_result("")
        return results

    def __exit__(self, *_: object) -> None:
        self.open_ones.remove(self)


def go(
    results: Results, gpu: Callable, refused: str = "", prime: Callable = Priming, tell: Callable = lambda text: None, **options: object
) -> bool:
    def compile(work: object) -> object:
        return ((i, BuildResult(refused=refused if consts["BM"] == 128 else "")) for i, (_, _, consts) in enumerate(work))

    def plan(item: Cell) -> Planned:
        return Planned(item, "text", "flash_fwd", SETTINGS)

    suite = SuiteRun(**{"cells": CELLS, "results": results, "dtype": "f16", "peers": ("cudnn",), "rounds": 2, "limit": 100.0, **options})
    return run_cells(suite, plan, compile, prime, gpu, tell)


def test_an_interrupted_suite_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "smoke.jsonl"
    with pytest.raises(KeyboardInterrupt):
        go(Results(path, HEAD), Gpu(stop_at=1))
    with path.open("a", encoding="utf-8") as file:
        file.write('{"variant": "cau')
    gpu = Gpu()
    repeated = Results(path, {**HEAD, "date": "another"})
    assert go(repeated, gpu) and [Cell.from_json(r) for r in gpu.requests] == CELLS[1:]
    head, rows = read(path)
    assert head == HEAD and [Cell.from_json(r) for r in rows] == CELLS
    idle = Gpu()
    assert go(Results(path, HEAD), idle) and not idle.requests
    assert Results(path, HEAD, fresh=True).missing(CELLS) == CELLS


def test_a_cell_that_hangs_costs_itself_and_is_tried_again(tmp_path: Path) -> None:
    results = Results(tmp_path / "r.jsonl", HEAD)
    assert go(results, Gpu(lost=CELLS[0].name))
    assert results.rows[0]["failed"] == "hangs: no answer within 240 s" and "contenders" in results.rows[1]
    gpu = Gpu()
    go(Results(tmp_path / "r.jsonl", HEAD), gpu)
    assert [Cell.from_json(r) for r in gpu.requests] == CELLS[:1]
    assert all("failed" not in r for r in read(tmp_path / "r.jsonl")[1])


def test_nothing_compiles_while_a_cell_is_timed(tmp_path: Path) -> None:
    at_work: list[Priming] = []
    primed: list[Cell] = []
    gpu = Gpu()

    def alone(request: Mapping, seconds: float) -> Mapping:
        assert not at_work
        return gpu(request, seconds)

    def prime(cells: Sequence[Cell]) -> Priming:
        primed.extend(cells)
        return Priming(cells, at_work)

    assert go(Results(tmp_path / "r.jsonl", HEAD), alone, prime=prime) and len(gpu.requests) == 3 and primed == CELLS


def test_rows_without_a_contender_that_is_asked_for_are_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    go(Results(path, HEAD), Gpu())
    more, repeated = Gpu(), Gpu()
    assert go(Results(path, HEAD), more, reference="there", peers=("cudnn",)) and len(more.requests) == 3
    assert more.requests[0]["reference"] == "there"
    assert go(Results(path, HEAD), repeated, reference="there") and go(Results(path, HEAD), repeated) and not repeated.requests


def test_what_the_worker_is_told_wrongly_costs_a_cell(tmp_path: Path) -> None:
    gpu, results = Gpu(), Results(tmp_path / "r.jsonl", HEAD)

    def ask(request: Mapping, seconds: float) -> Mapping:
        if Cell.from_json(request) == CELLS[1]:
            raise CuirError.of("X121", "a score_mod that cannot be traced")
        return gpu(request, seconds)

    assert go(results, ask) and len(results.rows) == 3
    assert results.rows[1]["failed"] == "X121: a score_mod that cannot be traced"


def test_settings_that_do_not_compile_are_not_asked_for(tmp_path: Path) -> None:
    gpu = Gpu()
    go(Results(tmp_path / "r.jsonl", HEAD), gpu, refused="L010: no")
    assert all(r["settings"] == [{"BM": 64}] for r in gpu.requests)


def test_the_limit_of_time(tmp_path: Path) -> None:
    times = iter([0.0, 1.0, 2.0, 200.0])
    results, text = Results(tmp_path / "r.jsonl", HEAD), list[ProgressCount]()
    assert not go(results, Gpu(), clock=lambda: next(times), tell=text.append)
    assert len(results.rows) == 1 and text[-1].row == results.rows[0] and (text[-1].finished, text[-1].of) == (1, 3)


def test_the_table_says_what_the_rows_say() -> None:
    rows = [row(CELLS[0], 600, 400), row(CELLS[1], 500, 625), {**CELLS[2].as_json(), "failed": "hangs"}]
    best = ours(rows[0])
    assert best is not None and best[0] == "cuir BM=128" and ratio(rows[0]) == 1.5 and ratio(rows[2]) is None
    text = markdown(HEAD, rows)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines[:5]}) == 1, "every line has the columns of the head"
    assert "| causal | llama2-7b | 128 | 1024 | 16 | 600 | 400 | out of memory | 1.50 |  | BM=128 |" in lines
    assert "a GPU, driver 1, CUDA 13, torch 2, 2026-01-01." in text and "    cuir bench smoke" in text
    assert summary(rows) == [
        "cuir / cudnn: 1.10 in the geometric mean of 2 rows, smallest 0.80 (causal llama2-7b 2048)",
        "failed: causal llama2-7b 1024: flex: out of memory",
        "failed: causal llama2-7b 2048: flex: out of memory",
        "failed: causal llama2-7b 4096: hangs",
    ]


def test_a_reference_counts_with_its_best_configuration() -> None:
    item = row(CELLS[0], 600, 400)
    item["contenders"] |= {"reference A": {"tflops": 500.0}, "reference B": {"tflops": 800.0}, "reference C": {"wrong": "relative error 1"}}
    assert peers(item) == {"cudnn": 400.0, "reference": 800.0} and ratios(item) == {"cudnn": 1.5, "reference": 0.75} and ratio(item) == 0.75
    assert "| 600 | 400 | out of memory | 800 | 1.50 |  | 0.75 | BM=128 |" in markdown(HEAD, [item])


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["full", "causal", "prefix_lm"]), st.sampled_from(["llama2-7b", "hd64"]), st.floats(1, 1e3), st.floats(1, 1e3)
        ),
        min_size=1,
    )
)
def test_means_are_of_their_groups(figures: list[tuple[str, str, float, float]]) -> None:
    rows = [row(cell(variant, model, 1024), mine + 100, flex) for variant, model, mine, flex in figures]
    result = means(rows)
    for group, of in result.items():
        members = [r for r in rows if group in ("all", r["variant"], f"d{r['shape'][5]}")]
        shares = [(r["contenders"]["cuir BM=128"]["tflops"]) / r["contenders"]["cudnn"]["tflops"] for r in members]
        assert set(of) == {"cudnn"} and of["cudnn"].count == len(members) and of["cudnn"].smallest == min(shares)
        assert min(shares) * 0.999 <= of["cudnn"].mean <= max(shares) * 1.001
        assert any(place(r) == of["cudnn"].where for r in members)
    assert "all" in result
    common = [v for v in ("full", "causal", "prefix_lm") if 1 < sum(r["variant"] == v for r in rows) < len(rows)]
    assert set(common) == set(result) & {"full", "causal", "prefix_lm"}


def test_what_is_wrong_is_named_and_counts_for_nothing() -> None:
    bad = row(CELLS[0])
    bad["contenders"]["cudnn"] = {"wrong": "relative error 1"}
    assert ratio(bad) is None and "wrong: causal llama2-7b 1024: cudnn: relative error 1" in summary([bad])
    assert "cuir / cudnn" not in "".join(summary([bad]))


@pytest.mark.parametrize(
    "text",
    ["", "no json\n{}", "[]", '{"a": 1}', '{"suite": "x"}\n{"no": "row"}', '{"suite": "x"}\n[1]', '{"suite": "x"}\n{"variant": "causal"}'],
)
def test_files_that_hold_no_results(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CuirError) as error:
        read(path)
    assert error.value.diagnostics[0].code == "U119"
    for fresh in (False, True):  # an empty file is nobody's work; any other stays as it is
        if not text:
            assert Results(path, HEAD, fresh).missing(CELLS) == CELLS and read(path)[0] == HEAD
            continue
        with pytest.raises(CuirError, match="U119"):
            Results(path, HEAD, fresh)
        assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_the_plot(tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"p.{ending}"
    plot(HEAD, [row(c) for c in CELLS] + [row(cell("prefix_lm", "hd64", 1024))], path)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG") if ending == "png" else b"<svg" in data
    with pytest.raises(CuirError):
        plot(HEAD, [row(CELLS[0])], tmp_path / "p.nothing")


def test_rows_are_json(tmp_path: Path) -> None:
    results = Results(tmp_path / "r.jsonl", HEAD)
    results.add(row(CELLS[0]))
    assert [json.loads(line) for line in (tmp_path / "r.jsonl").read_text(encoding="utf-8").splitlines()] == [HEAD, row(CELLS[0])]


def test_a_setting_of_one_round_is_no_best() -> None:
    """The first round left it behind: that it was faster there than the median of the others is luck."""
    contenders = {
        "cuir BM=64": {"tflops": 449.0, "rounds": 1},
        "cuir BM=128": {"tflops": 436.0, "rounds": 3},
        "cudnn": {"tflops": 400.0, "rounds": 3},
    }
    row = {"variant": "causal", "parameters": {}, "model": "llama2-7b", "shape": [1, 1, 1, 64, 64, 64], "contenders": contenders}
    result = ours(row)
    assert result is not None and result[0] == "cuir BM=128" and peers(row) == {"cudnn": 400.0}
    assert ratios(row) == {"cudnn": 436.0 / 400.0}
