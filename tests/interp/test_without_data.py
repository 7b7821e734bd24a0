"""Runs of synchronisation alone: the same verdict on the protocol as runs with data, place and words included, and long launches in little time."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import corpus
from corpus.computes import COMPUTES
from cuir import CuirError, check, parse, run
from cuir.checking.checked import Checked
from cuir.interp import Schedule
from cuir.interp.control_slice import control_slice
from cuir.interp.interpreted_launch import forget_entered, list_entered_blocks
from cuir.interp.without_data import run_without_data
from cuir.syntax.types import F16, I32
from tests.explore.test_agreement import CONSUMER, LINES, PRODUCER, program
from tests.interp.line_faults import line_faults
from tests.strategies.selection import examples
from tests.strategies.typed import arguments

RUN = re.compile(r"^# run: (.*)$", re.MULTILINE)
SCHEDULES = ["in_order", "random:1", "adversarial:2", "adversarial:engines_first", "adversarial:reverse", "adversarial:starve:1"]
OF_DATA = {"M402", "M414"}  # places of tensors that are only read are left out


def verdict(checked: Checked, inputs: Mapping[str, Any], schedule: str, alone: bool, grid: int | None = None) -> tuple[Any, ...]:
    """Code, place and words of the fault, or what a run without one did."""
    try:
        runs = run_without_data if alone else run
        report = runs(checked, inputs, schedule=Schedule.parse(schedule), grid=grid)
    except CuirError as error:
        first = error.diagnostics[0]
        return first.code, first.span, first.message, first.notes
    return "", report.events, report.units, report.rounds, report.batches


def agree(text: str, lengths: Mapping[str, int], schedules: list[str], consts: Mapping[str, Any] | None = None) -> set[str]:
    """The codes of faults, with and without data alike."""
    checked = check(parse(text, "k.cuir"), None, consts)
    codes = set()
    for schedule in schedules:
        with_data = verdict(checked, arguments(checked, lengths), schedule, False)
        if control_slice(checked).refusal is not None:
            return {"V202"}
        alone = verdict(checked, arguments(checked, lengths), schedule, True)
        if with_data[0] not in OF_DATA:
            assert with_data == alone, f"{schedule}\n{text}"
        codes.add(with_data[0])
    return codes


@examples(1)
@given(st.tuples(st.integers(1, 2), st.integers(1, 2)), st.lists(st.lists(LINES, min_size=1, max_size=4), min_size=2, max_size=3))
def test_any_lines(counts: tuple[int, int], workers: list[list[str]]) -> None:
    agree(program(counts, workers), {}, SCHEDULES[:4])


@examples(1)
@given(st.data())
def test_a_right_pipeline_with_a_line_more_or_less(data: st.DataObject) -> None:
    producer, consumer = list(PRODUCER), list(CONSUMER)
    for lines in (producer, consumer):
        at = data.draw(st.integers(0, len(lines) - 1))
        if data.draw(st.booleans()):
            del lines[at]
        else:
            lines.insert(at, data.draw(LINES))
    agree(program((1, 1), [producer, consumer]), {}, SCHEDULES[:4])


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", [name for name, text in corpus.faulty().items() if RUN.search(text)])
def test_programs_of_the_corpus_of_faults(name: str) -> None:
    text = corpus.faulty()[name]
    lengths = {n: int(v) for n, v in (item.split("=") for item in RUN.search(text)[1].split())}  # type: ignore[index]
    codes = agree(text, lengths, SCHEDULES)
    assert "" in codes if name.startswith("clean") else codes & {name[:4], "V202"}


def test_line_faults_of_a_product() -> None:
    """Each kind of fault, in a kernel with a ring, products in flight and bulk stores."""
    text = corpus.faulty()["clean_product"]
    lengths = {n: int(v) for n, v in (item.split("=") for item in RUN.search(text)[1].split())}  # type: ignore[index]
    faults = list(line_faults(text))
    chosen = random.Random(0).sample(faults, min(12, len(faults)))
    codes = set[str]()
    for fault in chosen:
        codes |= agree(fault.text, lengths, ["in_order", "random:1"])
    assert len(codes - {""}) > 2


CORPUS = {  # dims of small launches
    ("flash_fwd_sm90", "flash_fwd"): {"B": 1, "H": 2, "HK": 1, "M": 130, "N": 270},
    ("gemm", "gemm"): {"M": 130, "N": 72, "K": 200},
    ("flash_fwd_sm80", "flash_fwd"): {"B": 1, "H": 2, "HK": 1, "M": 130, "N": 270},
    ("flash_fwd_warps", "flash_fwd"): {"B": 1, "H": 2, "HK": 1, "M": 70, "N": 130},
    ("flash_bwd_dq_f32", "flash_bwd_dq"): {"B": 1, "H": 1, "HK": 1, "M": 70, "N": 70, "MP": 128},
}


@pytest.mark.sweep(4)
@pytest.mark.parametrize(("name", "kernel"), CORPUS)
def test_kernels_of_the_corpus_and_faults_in_their_lines(name: str, kernel: str) -> None:
    text = {**corpus.programs(), **corpus.kernels()}[name].read_text(encoding="utf-8")
    params = {p.name for p in parse(text).kernels()[kernel].params}
    computed = COMPUTES[name][kernel]
    consts = {
        n: v for n, v in {"T": F16, "D": 64, **({"BM": 64, "BN": 64} if name == "gemm" else {}), **computed.tested}.items() if n in params
    }
    rng, codes = random.Random(1), set[str]()
    faults = [f.text for f in line_faults(text)]
    for faulty in (text, *rng.sample(faults, min(6, len(faults)))):
        try:
            codes |= agree(faulty, CORPUS[name, kernel], [rng.choice(SCHEDULES)], consts)
        except CuirError:  # no kernel any more
            continue
    assert "" in codes


FLAG = """
@kernel(arch="sm_90a")
def k(X: Global[f32, 64, 64], F: Global[i32, N], Y: Global[f32, 64, 64]):
    sX, bar = shared(f32, [64, 64]), mbarrier(1)
    with role("all", warpgroups=1):
        x = load(X[0:64, :])
        {condition}
            bar.arrive()
            bar.wait(0)
        store(Y[0:64, :], x)
"""


@pytest.mark.parametrize(("condition", "inputs"), [("if X[0, 0] > 0.0:", {"X"}), ("if F[0] > 0:", {"F"}), ("if N > 0:", set())])
def test_control_flow_that_inputs_decide(condition: str, inputs: set[str]) -> None:
    text = FLAG.format(condition=condition)
    result = control_slice(check(parse(text, "k.cuir")))
    assert result.refusal is None and result.inputs == inputs
    assert agree(text, {"N": 4}, ["in_order"]) == {""}


def test_control_flow_that_results_decide_is_refused() -> None:
    text = FLAG.format(condition="if F[0] > 0:").replace("store(Y[0:64, :], x)", "store(F[1], 2)")
    result = control_slice(check(parse(text, "k.cuir")))
    assert result.refusal is not None and result.refusal.code == "V202" and result.refusal.span.text() == "F[0] > 0"  # type: ignore[union-attr]
    with pytest.raises(CuirError) as caught:
        run_without_data(check(parse(text, "k.cuir")), {"X": torch.ones(64, 64), "F": torch.ones(4).int(), "Y": torch.ones(64, 64)})
    assert caught.value.diagnostics[0].code == "V202"


@pytest.mark.thorough
def test_kernels_of_the_corpus_need_no_data_but_integers() -> None:
    for name, place in {**corpus.programs(), **corpus.kernels()}.items():
        tree = parse(place.read_text(encoding="utf-8"), f"{name}.cuir")
        for kernel, computed in COMPUTES[name].items():
            dims = {p.name for p in tree.kernels()[kernel].params}
            consts = {n: v for n, v in {"T": F16, "D": 64, **computed.tested}.items() if n in dims}
            checked = check(tree, kernel, consts)
            result = control_slice(checked)
            assert result.refusal is None and not result.unwatched
            assert all(t.dtype == I32 for t in checked.tensors if t.name in result.inputs)


def product(lengths: Mapping[str, int]) -> tuple[Checked, dict[str, Any]]:
    tree = parse(corpus.programs()["gemm"].read_text(encoding="utf-8"), "gemm.cuir")
    checked = check(tree, "gemm", {"T": F16})
    shapes = {"A": ("M", "K"), "Bt": ("N", "K"), "C": ("M", "N"), "bias": ("N",)}
    dtypes = {"bias": torch.float32}
    return checked, {n: torch.empty([lengths[d] for d in dims], dtype=dtypes.get(n, torch.float16)) for n, dims in shapes.items()}


def test_long_launches_take_little_time_and_move_no_data() -> None:
    checked, inputs = product({"M": 128, "N": 256, "K": 600 * 64})
    inputs["C"].fill_(3.0)
    report = run_without_data(checked, inputs, grid=1)
    assert report.events["products"] == 1200 and report.seconds < 5
    assert bool((inputs["C"] == 3.0).all())


def test_lines_are_not_counted_as_reached() -> None:
    checked, inputs = product({"M": 130, "N": 256, "K": 64})
    forget_entered(checked)
    run_without_data(checked, inputs)
    assert list_entered_blocks(checked) == []


def test_a_fault_that_only_many_steps_show() -> None:
    """A release that stops after step 300: every wait behind it hangs."""
    checked, inputs = product({"M": 128, "N": 256, "K": 600 * 64})
    text = checked.origin.span.source.text.replace(
        "if k > 0:\n                    empty", "if k > 0 and k < 300:\n                    empty"
    )
    faulty = check(parse(text, "gemm.cuir"), "gemm", {"T": F16})
    with pytest.raises(CuirError) as caught:
        run_without_data(faulty, inputs, grid=1)
    assert caught.value.diagnostics[0].code == "D401"
