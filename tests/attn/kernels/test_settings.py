"""Settings of one program: chosen once for a class of problems, by what the host knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import cuir.performance.selection
from cuir.attn.kernels import attention_kernel
from cuir.attn.kernels.attention_kernel import attention
from cuir.performance.search import tuning_records as cache
from cuir.spec.specification import Lengths


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUIR_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "device", lambda: ("NVIDIA H200 sm_90 132", 132))


@pytest.fixture
def lengths_of_choices(monkeypatch: pytest.MonkeyPatch) -> list[Lengths]:
    """Problems for which a setting was chosen."""
    lengths: list[Lengths] = []
    choose = cuir.performance.selection.choose

    def count_choice(program: Any, fixed: Any, at: Lengths, *of: Any, **more: Any) -> Any:
        lengths.append(at)
        return choose(program, fixed, at, *of, **more)

    monkeypatch.setattr(cuir.performance.selection, "choose", count_choice)
    return lengths


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


def within(window: int) -> Callable[..., Any]:
    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (q_idx >= kv_idx) & (q_idx - kv_idx <= window)

    return mask


def queries(B: int, H: int, n: int, D: int) -> torch.Tensor:
    return torch.empty(B, H, n, D, dtype=torch.bfloat16, device="meta")


def test_a_class_is_asked_for_once(lengths_of_choices: list[Lengths]) -> None:
    settings = attention(causal, dtype="bf16", head_dim=64, verify="off").settings
    first = settings.choice(Lengths(4, 32, 32, 4096, 4096))
    assert settings.choice(Lengths(4, 32, 32, 4000, 4100)) is first and settings.choice(Lengths(4, 32, 32, 4096, 4096)) is first
    assert len(lengths_of_choices) == 1 and first.source == "table"
    settings.choice(Lengths(16, 32, 32, 1024, 1024))
    assert len(lengths_of_choices) == 2


def test_a_call_says_which_setting_it_gets_and_why() -> None:
    result = attention(causal, dtype="bf16", head_dim=128, verify="off")
    chosen = result.choice(queries(2, 32, 8192, 128), queries(2, 8, 8192, 128))
    assert chosen.source == "table" and "BM=192" in str(chosen) and "NVIDIA H200" in chosen.why
    few = result.choice(queries(1, 2, 300, 128), queries(1, 2, 300, 128))
    assert few.source == "model"


def test_windows_of_one_program_have_settings_of_their_own() -> None:
    narrow, wide = (attention(within(w), dtype="bf16", head_dim=64, verify="off") for w in (64, 4096))
    assert narrow.settings is wide.settings, "one program, checked once"
    q = queries(2, 32, 8192, 64)
    assert narrow.choice(q, q).setting["BM"] < wide.choice(q, q).setting["BM"]  # type: ignore[operator]


def test_what_the_user_fixes_stays() -> None:
    result = attention(causal, dtype="bf16", head_dim=128, consts={"BM": 128, "BN": 112}, verify="off")
    q = queries(2, 32, 8192, 128)
    assert {"BM": 128, "BN": 112}.items() <= result.choice(q, q).consts.items()


def test_the_interpreter_needs_no_choice(lengths_of_choices: list[Lengths]) -> None:
    result = attention(causal, dtype="bf16", head_dim=64, verify="off")
    q, k, v = torch.randn(3, 1, 1, 64, 64).to(torch.bfloat16)
    result(q, k, v, backend="interpret")
    assert not lengths_of_choices


@pytest.mark.parametrize(
    ("spills", "inputs", "chosen"),
    [
        ({(192, 128): 800, (192, 80): 0}, {}, (192, 80)),
        ({(192, 128): 800, (192, 80): 700, (192, 64): 600, (128, 64): 500}, {}, (192, 128)),  # they gain too little
        ({(192, 128): 800, (192, 80): 390, (192, 64): 380, (128, 64): 0}, {}, (128, 64)),
        ({(192, 128): 212, (192, 80): 24}, {}, (192, 80)),
        ({(192, 128): 56}, {}, (192, 128)),
        ({(192, 128): 800, (128, 128): 800}, {"BN": 128}, (192, 128)),  # the width is the user's own
    ],
)
def test_tiles_that_spill_give_way_to_smaller_ones(
    spills: dict[tuple[int, int], int], inputs: dict[str, int], chosen: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Kernel:
        def __init__(self, consts: Any):
            self.tile = consts["BM"], consts["BN"]
            self.spilled = spills[self.tile]

    proven: list[Any] = []
    monkeypatch.setattr(attention_kernel, "_SETTINGS", {})
    monkeypatch.setattr("cuir.runtime.compiled.compile", lambda program, consts, run: Kernel(consts))
    settings = attention(causal, head_dim=64, verify="off", consts=inputs).settings
    for problem in (Lengths(2, 16, 16, 4096, 4096), Lengths(2, 16, 16, 4000, 4000)):
        consts, kernel = settings.compile_for(problem, (), lambda consts, progress: proven.append((consts["BM"], consts["BN"])), "causal")
        tile = consts["BM"], consts["BN"]
        assert kernel.tile == tile == chosen  # type: ignore[attr-defined]
    assert len(proven) == len(set(proven))


def test_what_was_measured_to_be_the_fastest_may_spill_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table's row says how much its setting spilled where it won: no smaller tile takes its place for that."""

    class Kernel:
        def __init__(self, consts: Any):
            self.tile, self.spilled = (consts["BM"], consts["BN"]), 180 if consts["BN"] > 80 else 0

    monkeypatch.setattr(attention_kernel, "_SETTINGS", {})
    monkeypatch.setattr("cuir.runtime.compiled.compile", lambda program, consts, run: Kernel(consts))
    settings, problem = attention(causal, head_dim=64, verify="off").settings, Lengths(2, 16, 16, 4096, 4096)
    choice = settings.choice(problem)
    for allowed, width in ((180, 128), (179, 80)):
        settings.by_problem.clear()
        monkeypatch.setattr(settings, "choice", lambda at, numbers, n=allowed: replace(choice, source="table", spilled=n))
        _, kernel = settings.compile_for(problem, (), lambda consts, progress: None, "causal")
        assert kernel.tile[1] == width  # type: ignore[attr-defined]
