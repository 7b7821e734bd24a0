"""The corpus under exploration: what is faulty is found and replays, what is right is clean; and the interpreter follows any schedule of the exploration."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import corpus
from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.explore import explore
from cuir.explore.dpor import Budget, search
from cuir.explore.execution import Execution
from cuir.explore.explore import name_steps
from cuir.explore.extract import extract_skeletons
from cuir.explore.schedule_reduction import find_shortest, find_smallest
from cuir.explore.skeleton import Skeleton
from cuir.interp import Schedule, run
from cuir.interp.schedule import Picker
from cuir.syntax.parser import parse
from cuir.syntax.types import F8E4M3, F16, F32
from cuir.text.diagnostics import CuirError
from tests.explore.programs import tensors
from tests.strategies.typed import arguments
from tests.test_faulty import DYNAMIC, RUN, TEXTS

ATTENTION = {"B": 1, "H": 2, "HK": 1, "M": 128, "N": 512}
PROBLEMS: list[tuple[str, dict[str, Any], dict[str, int], dict[str, float], int]] = [
    ("flash_fwd_sm90", {"T": F16, "D": 128}, ATTENTION, {"scale": 0.1}, 1),
    ("flash_fwd_sm90", {"T": F16, "D": 128, "PINGPONG": True}, ATTENTION, {"scale": 0.1}, 1),
    ("flash_fwd_sm90", {"T": F16, "D": 64, "CLUSTER": 2}, ATTENTION, {"scale": 0.1}, 1),
    ("flash_fwd_sm90", {"T": F16, "D": 64}, {**ATTENTION, "M": 300, "N": 100}, {"scale": 0.1}, 2),
    ("flash_fwd_f32", {"T": F32, "D": 64, "BN": 128}, ATTENTION, {"scale": 0.1}, 1),
    ("decode_sm90", {"T": F16, "D": 64, "GROUP": 2, "BM": 32, "BN": 32}, {**ATTENTION, "B": 2, "M": 1, "N": 150}, {"scale": 0.1}, 1),
    ("decode_sm90", {"T": F16, "D": 64, "CLUSTER": 1, "BN": 32}, {**ATTENTION, "M": 1, "N": 150}, {"scale": 0.1}, 1),
    ("flash_fwd", {"T": F16, "D": 64}, ATTENTION, {"scale": 0.1}, 1),
    ("flash_fwd_over_v", {"T": F16, "D": 64}, ATTENTION, {"scale": 0.1}, 1),
    ("flash_fwd_cluster", {"T": F16, "D": 64}, ATTENTION, {"scale": 0.1}, 1),
    ("flash_fwd_sm75", {"T": F16, "D": 64}, ATTENTION, {"scale": 0.1}, 1),
    ("flash_fwd_sm80", {"T": F16, "D": 64}, ATTENTION, {"scale": 0.1}, 1),
    ("flash_fwd_sm80", {"T": F16, "D": 64, "STAGES": 1}, ATTENTION, {"scale": 0.1}, 1),
    ("flash_fwd_warps", {"T": F16, "D": 64}, ATTENTION, {"scale": 0.1}, 1),
]


def bind_problem(problem: tuple[str, dict[str, Any], dict[str, int], dict[str, float], int]) -> tuple[Checked, dict[str, Any], int]:
    name, consts, dims, scalars, grid = problem
    place = {**corpus.kernels(), **corpus.programs()}[name]
    checked = check(parse(place.read_text(encoding="utf-8"), place.name), None, consts)
    return checked, tensors(checked, dims, **scalars), grid


def faulty(name: str) -> tuple[Checked, dict[str, Any]]:
    text = TEXTS[name]
    match = RUN.search(text)
    assert match is not None
    checked = check(parse(text, f"{name}.cuir"))
    return checked, arguments(checked, {name: int(value) for name, value in (item.split("=") for item in match[1].split())})


SCHEDULED = [n for n in DYNAMIC if n[:4] in ("D401", "R401", "R402", "R403", "S401", "S402", "S403", "S406")]


@pytest.mark.parametrize("name", SCHEDULED)
def test_every_faulty_program_is_found_and_replays(name: str) -> None:
    checked, inputs = faulty(name)
    exploration = explore(checked, inputs)
    assert exploration.verdict == "faulty" and exploration.schedule is not None
    code = exploration.diagnostics[0].code
    # a wait that is missing altogether shows first as a read of memory that nobody has written yet
    assert code == name[:4] or (code == "M401" and name[:4] == "R401")
    with pytest.raises(CuirError) as caught:
        run(checked, inputs, schedule=exploration.schedule.schedule("s.json"), grid=exploration.schedule.grid)
    assert caught.value.diagnostics[0].code == code
    local = exploration.diagnostics[0].span
    assert local is not None and local.source.name == f"{name}.cuir"
    named = {
        s for d in caught.value.diagnostics for s in (d.span, *(n.span for n in d.notes))
    }  # of a race the one party or the other comes first
    worker = exploration.diagnostics[0].message.removeprefix("deadlock: ").partition(" ")[0]
    follows = [n.message for d in caught.value.diagnostics for n in d.notes if n.message.startswith("other waits follow from this")]
    assert local in named or any(f" {worker} for phase" in text for text in follows), "a wait that only follows is named without its place"


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", [n for n in SCHEDULED if n[:4] not in ("D401", "R402")])
def test_no_step_of_a_failing_schedule_can_be_left_out(name: str) -> None:
    checked, inputs = faulty(name)
    skeleton = next(iter(extract_skeletons(checked, inputs, 1))).at_once()
    run = search(skeleton, Budget()).faulty
    assert run is not None
    fault, schedule = find_smallest(run)
    assert shows(skeleton, schedule) == fault.code
    for left_out in range(len(schedule)):
        assert shows(skeleton, schedule[:left_out] + schedule[left_out + 1 :]) != fault.code
    least = find_shortest(run, 60.0)
    assert least.least and len(least.schedule) <= len(schedule)


def shows(skeleton: Skeleton, agents: tuple[int, ...]) -> str:
    """The code of the fault that these steps show; "" if they show none or cannot be done."""
    execution = Execution(skeleton)
    for agent in agents:
        if execution.stopped or not execution.is_enabled(agent):
            return ""
        execution.step(agent)
    return execution.faults[0].code if execution.faults else ""


@pytest.mark.parametrize("name", [n for n in DYNAMIC if n.startswith("clean")])
def test_the_right_ones_are_clean(name: str) -> None:
    exploration = explore(*faulty(name))
    assert exploration.verdict == "clean" and exploration.alike and exploration.classes == 1


@pytest.mark.sweep
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: f"{p[0]}-{'-'.join(map(str, p[1].values()))}-{p[2]['M']}")
def test_corpus_kernels_are_clean_and_all_their_schedules_alike(problem: Any) -> None:
    checked, inputs, grid = bind_problem(problem)
    exploration = explore(checked, inputs, grid=grid)
    assert exploration.verdict == "clean", exploration.diagnostics
    few = checked.tiles is not None and checked.tiles.dynamic and grid == 1  # two units: each set of them that a cluster may get
    assert (
        exploration.alike and exploration.classes == exploration.clusters == (4 if few else grid) and exploration.states > exploration.steps
    )


SELECTED = {
    "BLOCKS": torch.tensor([3, 1, 0], dtype=torch.int32).expand(1, 2, 2, 3),
    "COUNTS": torch.tensor([[[3, 1], [0, 2]]], dtype=torch.int32),
}
PAGES = {"page": torch.tensor([[0, 1, 2], [3, 4, 5]], dtype=torch.int32), "len_k": torch.tensor([150, 190], dtype=torch.int32)}
DOCUMENTS = {"doc": torch.zeros(1, 512, dtype=torch.int32), "span": torch.tensor([[[0, 2, 1], [0, 4, 2]]], dtype=torch.int32)}
PACKED = {
    n: torch.tensor(v, dtype=torch.int32) for n, v in {"QSTART": [0, 70], "QEND": [70, 150], "KSTART": [0, 90], "KEND": [90, 200]}.items()
}
BACKWARD = {"B": 1, "H": 2, "HK": 1, "M": 200, "N": 300}
LONG = {**ATTENTION, "M": 256}
OTHER_PROGRAMS: list[tuple[str, str, dict[str, Any], dict[str, int], dict[str, Any], int]] = [
    ("gemm", "gemm", {}, {"M": 200, "N": 304, "K": 400}, {}, 1),
    ("gemm", "gemm", {}, {"M": 200, "N": 304, "K": 400}, {}, 2),
    ("gemm_clusters", "gemm", {}, {"M": 300, "N": 304, "K": 200}, {}, 2),
    ("gemm_sm75", "gemm", {}, {"M": 200, "N": 72, "K": 200}, {}, 1),
    ("gemm_sm89", "gemm", {"T": F8E4M3}, {"M": 200, "N": 72, "K": 400}, {}, 1),
    ("flash_bwd", "delta", {"D": 64}, {"B": 1, "H": 2, "M": 200}, {}, 1),
    ("flash_bwd", "flash_bwd", {"D": 64}, BACKWARD, {"scale": 0.1}, 2),
    (
        "decode_paged",
        "decode",
        {"D": 64, "G": 2, "PAGE": 64},
        {"B": 2, "H": 4, "HK": 2, "M": 1, "NP": 6, "MP": 3, "SP": 2},
        {"scale": 0.1, **PAGES},
        1,
    ),
    ("flash_bwd_sm90", "prepare", {"D": 64}, {"B": 1, "H": 2, "M": 200, "MP": 256}, {}, 1),
    ("flash_bwd_dq_sm90", "flash_bwd_dq", {"D": 64, "BM": 64, "BN": 64}, {**BACKWARD, "MP": 256}, {"scale": 0.1}, 2),
    ("flash_bwd_dq_sm90", "flash_bwd_dq", {"D": 64, "BM": 64, "BN": 64, "OVERLAP": True}, {**BACKWARD, "MP": 256}, {"scale": 0.1}, 2),
    (
        "flash_bwd_sm90",
        "flash_bwd",
        {"D": 64, "QUERIES": False, "TURNS": True, "DYNAMIC": False},
        {**BACKWARD, "MP": 256},
        {"scale": 0.1},
        2,
    ),
    (
        "flash_bwd_wide_sm90",
        "flash_bwd",
        {"D": 192, "DYNAMIC": False},
        {"B": 1, "H": 2, "HK": 1, "M": 100, "N": 130, "MP": 128},
        {"scale": 0.1},
        2,
    ),
    (
        "flash_fwd_f8_sm90",
        "flash_fwd",
        {"T": F8E4M3, "D": 64, "BM": 64, "BN": 64, "DYNAMIC": False},
        {"B": 1, "H": 2, "HK": 1, "M": 64, "N": 200, "VB": 1, "VH": 1},
        {"scale": 0.1},
        2,
    ),
    *(
        (
            "flash_bwd_f8_sm90",
            "flash_bwd",
            {"T": F8E4M3, "D": 64, "BN": 64, "SUMMED": 64, "LATER": later, "DYNAMIC": False},
            {"B": 1, "H": 2, "HK": 1, "M": 100, "N": 130, "VB": 1, "VH": 1, "MP": 128},
            {"scale": 0.1},
            2,
        )
        for later in (False, True)
    ),
    ("flash_bwd_f8_sm90", "prepare", {"T": F8E4M3, "D": 64}, {"B": 1, "H": 2, "HK": 1, "M": 200, "MP": 256}, {}, 1),
    ("flash_fwd_split_sm90", "flash_fwd", {"D": 64, "DYNAMIC": False}, {"B": 1, "H": 2, "HK": 1, "M": 64, "N": 200}, {"scale": 0.1}, 2),
    *(
        (
            "selected_fwd_sm90",
            "flash_fwd",
            {"D": 64, "BM": 8, "GROUP": 8 * groups, "WG": groups, "SPAN": 8, "BLOCK": block, "DYNAMIC": False},
            {"B": 1, "H": 4, "HK": 2, "HU": 2, "M": 16, "N": 250, "GROUPS": 2, "SELECTED": 3},
            {"scale": 0.1, **SELECTED},
            2,
        )
        for groups, block in ((1, 64), (1, 32), (2, 64))
    ),
    (
        "selected_bwd_dq_sm90",
        "flash_bwd_dq",
        {"D": 64, "BM": 8, "GROUP": 8, "SPAN": 8, "DYNAMIC": False},
        {"B": 1, "H": 4, "HK": 2, "HU": 2, "M": 16, "N": 250, "GROUPS": 2, "SELECTED": 3, "MP": 128},
        {"scale": 0.1, **SELECTED},
        2,
    ),
    (
        "selected_bwd_sm90",
        "flash_bwd",
        {"D": 64, "BM": 8, "GROUP": 4, "DYNAMIC": False},
        {"B": 1, "H": 4, "HK": 2, "HU": 2, "PER": 2, "M": 16, "N": 100, "MP": 128, "TOTAL": 4, "PARTS": 8, "ENTRIES": 6},
        {
            "scale": 0.1,
            "UNITS": torch.tensor([[0, 0, 0, 5], [0, 1, 5, 1], [1, 0, 0, 0], [1, 1, 0, 6]], dtype=torch.int32),
            "INVERSE": torch.tensor([[0, 0, 0], [1, 0, 8]], dtype=torch.int32).repeat(3, 1).expand(1, 2, 6, 3),
        },
        2,
    ),
    ("selected_bwd_sm90", "prepare", {"DV": 64}, {"B": 1, "H": 2, "M": 200, "MP": 256}, {}, 1),
    (
        "selected_bwd_sm90",
        "join_parts",
        {"D": 64},
        {"B": 1, "HK": 2, "N": 100, "PARTS": 6, "CELLS": 4},
        {"ENDS": torch.tensor([[0, 2], [2, 2], [2, 3], [3, 6]], dtype=torch.int32)},
        1,
    ),
    (
        "flash_fwd_split_sm90",
        "flash_fwd",
        {"D": 128, "PIECES": 2, "DYNAMIC": False},
        {"B": 1, "H": 1, "HK": 1, "M": 64, "N": 150},
        {"scale": 0.1},
        1,
    ),
    (
        "flash_fwd_split_sm90",
        "flash_fwd",
        {"D": 64, "BM": 128, "CLUSTER": 2, "DYNAMIC": False},
        {"B": 1, "H": 1, "HK": 1, "M": 128, "N": 100},
        {"scale": 0.1},
        1,
    ),
    (
        "flash_bwd_split_sm90",
        "flash_bwd",
        {"D": 64, "DYNAMIC": False},
        {"B": 1, "H": 2, "HK": 1, "M": 60, "N": 100, "MP": 128},
        {"scale": 0.1},
        2,
    ),
    ("flash_bwd_split_sm90", "prepare", {"DV": 64}, {"B": 1, "H": 2, "M": 200, "MP": 256}, {}, 1),
    (
        "flash_bwd_dq_split_sm90",
        "flash_bwd_dq",
        {"D": 64, "DYNAMIC": False},
        {"B": 1, "H": 2, "HK": 1, "M": 64, "N": 100, "MP": 128},
        {"scale": 0.1},
        2,
    ),
    (
        "decode_split_sm90",
        "flash_decode",
        {"D": 64, "GROUP": 2, "BM": 32, "CHUNK": 32, "DYNAMIC": False, "ORDERED": True},
        {"B": 2, "BS": 2, "H": 2, "HK": 1, "M": 1, "NP": 6, "PAGE": 64, "MP": 3},
        {
            "scale": 0.1,
            "PAGES": torch.tensor([[0, 1, 2], [3, 4, 5]], dtype=torch.int32),
            "LENGTHS": torch.tensor([150, 190], dtype=torch.int32),
            "ORDER": torch.tensor([1, 0], dtype=torch.int32),
        },
        2,
    ),
    ("flash_bwd_sm90", "finish", {"D": 64}, {"B": 1, "H": 2, "M": 200}, {"scale": 0.1}, 1),
    ("flash_bwd_sm80", "prepare", {"D": 64}, {"B": 1, "H": 2, "M": 200, "MP": 256, "MD": 256 * 64}, {}, 1),
    ("flash_bwd_sm80", "flash_bwd", {"D": 64, "BM": 32, "BN": 64}, {**BACKWARD, "M": 100, "MP": 128, "MD": 128 * 64}, {"scale": 0.1}, 2),
    ("flash_bwd_sm80", "finish", {"D": 64}, {"B": 1, "H": 2, "M": 200, "MD": 256 * 64}, {"scale": 0.1}, 1),
    ("flash_bwd_dq_sm80", "flash_bwd_dq", {"D": 64, "BM": 64, "BN": 64}, {**BACKWARD, "MP": 256}, {"scale": 0.1}, 2),
    ("flash_bwd_sm75", "prepare", {"D": 64}, {"B": 1, "H": 2, "M": 200, "MP": 256}, {}, 1),
    ("flash_bwd_sm75", "flash_bwd", {"D": 64, "BM": 32}, {**BACKWARD, "M": 100, "MP": 128}, {"scale": 0.1}, 2),
    (
        "flash_bwd_sm75",
        "flash_bwd",
        {"D": 128, "BM": 32, "BN": 32, "SPLIT": 2},
        {**BACKWARD, "M": 100, "N": 100, "MP": 128},
        {"scale": 0.1},
        1,
    ),
    ("flash_bwd_dq_sm75", "flash_bwd_dq", {"D": 64}, {**BACKWARD, "MP": 256}, {"scale": 0.1}, 2),
    ("flash_bwd_f32", "flash_bwd", {"T": F32, "D": 64, "BM": 64, "DYNAMIC": False}, {**BACKWARD, "MP": 256}, {"scale": 0.1}, 2),
    ("flash_bwd_dq_f32", "flash_bwd_dq", {"T": F32, "D": 64, "BM": 64, "BN": 64}, {**BACKWARD, "MP": 256}, {"scale": 0.1}, 2),
    (
        "flash_fwd_varlen_sm90",
        "flash_fwd_varlen",
        {"D": 64, "BM": 64, "BN": 64, "DYNAMIC": False},
        {"B": 2, "H": 2, "HK": 1, "TQ": 150, "NP": 1, "PAGE": 200, "MP": 1},
        {"scale": 0.1, "LONGEST": 150, **PACKED},
        2,
    ),
    (
        "flash_fwd_varlen_sm90",
        "flash_fwd_varlen",
        {"D": 64, "BM": 64, "BN": 64, "CHUNK": 32, "DYNAMIC": False},
        {"B": 2, "H": 2, "HK": 1, "TQ": 150, "NP": 6, "PAGE": 64, "MP": 3},
        {
            "scale": 0.1,
            "LONGEST": 150,
            "PAGES": torch.arange(6, dtype=torch.int32).view(2, 3),
            **PACKED,
            "KSTART": torch.zeros(2, dtype=torch.int32),
        },
        2,
    ),
    *(
        (
            name,
            "flash_fwd_varlen",
            {"D": 64, "BM": 64, "BN": 64},
            {"B": 2, "H": 2, "HK": 1, "TQ": 150, "NP": 1, "PAGE": 200, "MP": 1},
            {"scale": 0.1, "LONGEST": 150, **PACKED},
            2,
        )
        for name in ("flash_fwd_varlen_sm75", "flash_fwd_varlen_sm80")
    ),
    *(
        (
            name,
            "flash_decode",
            {"D": 64, "BM": 8, "GROUP": 2, "WG": 2},
            {"B": 2, "BS": 2, "H": 2, "HK": 1, "M": 1, "NP": 24, "PAGE": 16, "MP": 12},
            {
                "scale": 0.1,
                "PAGES": torch.arange(24, dtype=torch.int32).view(2, 12),
                "LENGTHS": torch.tensor([150, 190], dtype=torch.int32),
                "ORDER": torch.arange(2, dtype=torch.int32),
            },
            2,
        )
        for name in ("decode_cache_sm75", "decode_cache_sm80")
    ),
    (
        "flash_fwd_varlen_f32",
        "flash_fwd_varlen",
        {"T": F32, "D": 64, "BM": 64, "BN": 64, "DYNAMIC": False},
        {"B": 2, "H": 2, "HK": 1, "TQ": 150, "NP": 1, "PAGE": 200, "MP": 1},
        {"scale": 0.1, "LONGEST": 150, **PACKED},
        2,
    ),
    (
        "flash_fwd_varlen_f32",
        "flash_fwd_varlen",
        {"T": F32, "D": 64, "BM": 64, "CHUNK": 16, "DYNAMIC": False},
        {"B": 2, "H": 2, "HK": 1, "TQ": 150, "NP": 6, "PAGE": 64, "MP": 3},
        {
            "scale": 0.1,
            "LONGEST": 150,
            "PAGES": torch.arange(6, dtype=torch.int32).view(2, 3),
            **PACKED,
            "KSTART": torch.zeros(2, dtype=torch.int32),
        },
        2,
    ),
    ("decode_paged", "combine", {"D": 64}, {"B": 2, "H": 4, "M": 1, "SP": 2}, {}, 1),
    (
        "decode_sm90",
        "flash_decode",
        {"D": 64, "SPLITS": 2, "G": F32, "BN": 32, "DYNAMIC": False},
        {"B": 1, "H": 2, "HK": 1, "M": 1, "N": 150},
        {"scale": 0.1},
        2,
    ),
    (
        "decode_cache_sm90",
        "flash_decode",
        {"D": 64, "GROUP": 2, "BM": 32, "CHUNK": 32, "DYNAMIC": False, "ORDERED": True},
        {"B": 2, "H": 2, "HK": 1, "M": 1, "NP": 6, "PAGE": 64, "MP": 3},
        {
            "scale": 0.1,
            "PAGES": torch.tensor([[0, 1, 2], [3, 4, 5]], dtype=torch.int32),
            "LENGTHS": torch.tensor([150, 190], dtype=torch.int32),
            "ORDER": torch.tensor([1, 0], dtype=torch.int32),
        },
        2,
    ),
    (
        "decode_cache_f8_sm90",
        "flash_decode",
        {"D": 64, "GROUP": 2, "BM": 8, "BN": 64, "CHUNK": 32, "WG": 2, "LOADED": 2, "TOKENS": 1, "DYNAMIC": False},
        {"B": 1, "H": 2, "HK": 1, "M": 1, "NP": 3, "PAGE": 64, "MP": 3, "SP": 3, "SR": 64},
        {
            "scale": 0.1,
            "PAGES": torch.tensor([[0, 1, 2]], dtype=torch.int32),
            "LENGTHS": torch.tensor([190], dtype=torch.int32),
            "ORDER": torch.tensor([0], dtype=torch.int32),
        },
        2,
    ),
    (
        "decode_cache_f8_sm90",
        "flash_decode",
        {
            "D": 64,
            "GROUP": 2,
            "BM": 16,
            "ROWS": 32,
            "SPLITS": 2,
            "G": F32,
            "BN": 64,
            "CHUNK": 32,
            "WG": 2,
            "LOADED": 2,
            "CLUSTER": 1,
            "DYNAMIC": False,
        },
        {"B": 1, "H": 2, "HK": 1, "M": 1, "NP": 3, "PAGE": 64, "MP": 3, "SP": 1, "SR": 1},
        {
            "scale": 0.1,
            "PAGES": torch.tensor([[0, 1, 2]], dtype=torch.int32),
            "LENGTHS": torch.tensor([190], dtype=torch.int32),
            "ORDER": torch.tensor([0], dtype=torch.int32),
        },
        2,
    ),
    (
        "mla_decode_sm90",
        "mla_decode",
        {"D": 192, "DV": 128, "GROUP": 2, "BM": 32, "CHUNK": 32, "DYNAMIC": False, "ORDERED": True},
        {"B": 2, "BS": 2, "H": 2, "HK": 1, "M": 1, "NP": 6, "PAGE": 64, "MP": 3},
        {
            "scale": 0.1,
            "PAGES": torch.tensor([[0, 1, 2], [3, 4, 5]], dtype=torch.int32),
            "LENGTHS": torch.tensor([150, 190], dtype=torch.int32),
            "ORDER": torch.tensor([1, 0], dtype=torch.int32),
        },
        2,
    ),
    *(
        (
            name,
            "mla_decode",
            {"D": 192, "DV": 128, "GROUP": 2, "BM": 8},
            {"B": 2, "BS": 2, "H": 2, "HK": 1, "M": 1, "NP": 6, "PAGE": 16, "MP": 3},
            {
                "scale": 0.1,
                "PAGES": torch.tensor([[0, 1, 2], [3, 4, 5]], dtype=torch.int32),
                "LENGTHS": torch.tensor([37, 48], dtype=torch.int32),
                "ORDER": torch.tensor([1, 0], dtype=torch.int32),
            },
            2,
        )
        for name in ("mla_decode_sm75", "mla_decode_sm80")
    ),
    (
        "mla_decode_f8_sm90",
        "mla_decode",
        {"D": 320, "DV": 128, "GROUP": 2, "BM": 32, "CHUNK": 32, "LOADED": 2, "DYNAMIC": False, "ORDERED": True},
        {"B": 2, "BS": 2, "H": 2, "HK": 1, "M": 1, "NP": 4, "PAGE": 64, "MP": 2, "SP": 1, "SR": 1},
        {
            "scale": 0.1,
            "PAGES": torch.tensor([[0, 1], [2, 3]], dtype=torch.int32),
            "LENGTHS": torch.tensor([70, 95], dtype=torch.int32),
            "ORDER": torch.tensor([1, 0], dtype=torch.int32),
        },
        2,
    ),
    (
        "mla_selected_sm90",
        "mla_selected",
        {"D": 192, "DV": 128, "DYNAMIC": False},
        {"B": 1, "BS": 1, "H": 2, "HK": 1, "M": 2, "NP": 4, "PAGE": 40, "MP": 3, "TOPK": 180},
        {
            "scale": 0.1,
            "PAGES": torch.tensor([[2, 0, 1]], dtype=torch.int32),
            "LENGTHS": torch.tensor([110], dtype=torch.int32),
            "INDICES": torch.arange(360, dtype=torch.int32).view(1, 2, 180) % 125 - 1,
        },
        2,
    ),
    ("causal_document", "flash_fwd", {"D": 64}, {**LONG, "MT": 2}, {"scale": 0.1, **DOCUMENTS}, 1),
    ("global_sliding_window", "flash_fwd", {"D": 64, "L": 100, "R": 50, "g": 20}, LONG, {"scale": 0.1}, 1),
    ("sigmoid", "flash_fwd", {"D": 64}, LONG, {"scale": 0.1, "bias": 0.0}, 1),
]


@pytest.mark.sweep
@pytest.mark.parametrize("problem", OTHER_PROGRAMS, ids=lambda p: f"{p[1]} of {p[0]} on {p[5]}")
def test_other_programs_are_clean(problem: Any) -> None:
    name, kernel, consts, dims, inputs, grid = problem
    place = {**corpus.kernels(), **corpus.programs()}[name]
    checked = check(parse(place.read_text(encoding="utf-8"), place.name), kernel, {"T": F16, **consts})
    exploration = explore(checked, tensors(checked, dims) | inputs, grid=grid)
    assert exploration.verdict == "clean" and exploration.alike and exploration.classes == grid, exploration.diagnostics


def test_every_program_of_the_corpus_is_explored() -> None:
    assert {p[0] for p in PROBLEMS} | {p[0] for p in OTHER_PROGRAMS} == set(corpus.kernels()) | set(corpus.programs())


def random_steps(checked: Checked, inputs: dict[str, Any], grid: int, lockstep: bool, seed: int) -> tuple[str, ...]:
    """A complete execution of the first cluster, every step drawn from the seed."""
    whole = next(iter(extract_skeletons(checked, inputs, grid)))
    skeleton = whole if lockstep else whole.at_once()
    rng, execution, agents = random.Random(seed), Execution(skeleton), []
    while able := execution.agents():
        agents.append(rng.choice(able))
        execution.step(agents[-1])
    assert execution.is_finished()
    return name_steps(skeleton, tuple(agents))


@pytest.mark.sweep
@pytest.mark.parametrize("lockstep", [False, True], ids=["at once", "late units"])
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: f"{p[0]}-{'-'.join(map(str, p[1].values()))}-{p[2]['M']}")
def test_the_interpreter_follows_any_schedule(problem: Any, seed: int, lockstep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Points of the interpreter and steps of the exploration are the same, one by one, to the end."""
    checked, inputs, grid = bind_problem(problem)
    steps = random_steps(checked, inputs, grid, lockstep, seed)
    selected = []
    replayed = Picker.replay_step

    def count_step(self: Picker, workers: Any, actions: Any) -> Any:
        result = replayed(self, workers, actions)
        selected.append(result)
        return result

    monkeypatch.setattr(Picker, "replay_step", count_step)
    run(checked, inputs, schedule=Schedule.replay(steps, 0, lockstep), grid=grid)
    assert sum(t is not None for t in selected) == len(steps)


def test_a_schedule_of_another_program_does_not_fit() -> None:
    checked, inputs, grid = bind_problem(PROBLEMS[4])
    for steps in (("load[0]", "nobody[0]"), ("copy 1 by load[0]",), ("compute[0]",) * 40):
        with pytest.raises(CuirError) as caught:
            run(checked, inputs, schedule=Schedule.replay(steps), grid=grid)
        assert caught.value.diagnostics[0].code == "U124"
    with pytest.raises(CuirError) as caught:
        run(checked, inputs, schedule=Schedule.replay((), cluster=7), grid=grid)
    assert caught.value.diagnostics[0].code == "U111"
