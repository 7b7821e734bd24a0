"""The setting of a call: the user's choice, then tuned, then the shipped table, then the model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import corpus
from cuir import parse
from cuir.performance.search import shape_class
from cuir.performance.search import tuning_records as cache
from cuir.performance.search.space import find_violation
from cuir.performance.search.tuning_records import Key
from cuir.performance.selection import Device, Evidence, choose, problem_class
from cuir.performance.selection.setting_dispatch import round_length
from cuir.performance.timing.problem import Shape
from cuir.spec.specification import Lengths
from cuir.syntax.types import BF16, F8E4M3, F16, F32
from tests.performance.selection.conftest import ARCH, adapt, work

AT = Lengths(2, 32, 32, 8192, 8192)
BASE = {"T": BF16, "D": 128, "DV": 128}
STARTS = ({"BM": 64, "BN": 64}, {"BM": 128, "BN": 128})


def keep(variant: str, shape: Shape, dtype: str = "bf16", **consts: int) -> None:
    cache.store_best(Key.of(ARCH, adapt(variant).program, dtype, shape), shape_class(shape, 132), {"consts": consts})


def test_a_first_call_gets_the_shipped_setting() -> None:
    result = adapt("causal")
    chosen = choose(result.program, BASE, AT)
    assert chosen.source == "table" and "NVIDIA H200" in chosen.why and "causal" in str(chosen)
    assert chosen.consts == {**BASE, **chosen.setting} and find_violation(result.program, None, chosen.consts) is None


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("variant", "length", "numbers", "tile"),
    [
        ("causal", 1024, {}, (128, 64)),
        ("causal", 4096, {}, (256, 96)),
        ("causal", 8192, {}, (256, 96)),
        ("causal", 32768, {}, (256, 96)),
        ("prefix_lm", 16384, {"prefix": 4096}, (256, 96)),
        ("sliding_window", 16384, {"window": 8192}, (256, 96)),
        ("sliding_window", 16384, {"window": 256}, (128, 64)),
        ("sliding_window", 16384, {"window": 2048}, (128, 64)),
        ("document", 4096, {}, (128, 64)),
        ("full", 16384, {}, (128, 64)),
    ],
)
def test_clusters_serve_head_dim_192_where_queries_see_many_keys_of_a_bounded_range(
    variant: str, length: int, numbers: dict[str, int], tile: tuple[int, int]
) -> None:
    shape = Lengths(max(1, 16384 // length), 16, 16, length, length)
    setting = choose(adapt(variant).program, {"T": BF16, "D": 192, "DV": 192}, shape, numbers=numbers).setting
    assert (setting["BM"], setting["BN"]) == tile and setting.get("CLUSTER", 1) == (2 if tile == (256, 96) else 1)


def test_what_was_tuned_comes_first() -> None:
    keep("causal", Shape(2, 32, 32, 8192, 8192, 128), BM=64, BN=96)
    result = adapt("causal")
    chosen = choose(result.program, BASE, AT)
    assert chosen.source == "tuned" and chosen.setting == {"BM": 64, "BN": 96}
    assert choose(result.program, {**BASE, "STAGES": 2}, AT).setting == {"BM": 64, "BN": 96, "STAGES": 2}, (
        "nothing of what was tuned is given"
    )
    assert choose(result.program, {**BASE, "BM": 128}, AT).source != "tuned", "a part of it is"
    assert choose(result.program, BASE, AT, Evidence(sources=("table",))).source == "table"
    assert choose(adapt("full").program, BASE, AT).source == "table", "another program"


def test_what_was_tuned_for_other_value_head_dims_serves_these() -> None:
    wide = {"T": BF16, "D": 192, "DV": 128}
    keep("causal", Shape(2, 32, 32, 8192, 8192, 192, 128), BM=128, BN=96, QBUF=1)
    assert choose(adapt("causal").program, wide, AT).setting == {"BM": 128, "BN": 96, "QBUF": 1}
    assert choose(adapt("causal").program, {**wide, "DV": 192}, AT).source != "tuned"


def test_what_was_tuned_for_tf32_serves_tf32_alone() -> None:
    single = parse(corpus.kernels()[corpus.expert("f32")].read_text(encoding="utf-8"))
    fixed = {"T": F32, "D": 128, "DV": 128}
    key = Key.of(ARCH, single, "f32", Shape(2, 32, 32, 8192, 8192, 128), {"PARTS": 1})
    cache.store_best(key, shape_class(Shape(2, 32, 32, 8192, 8192, 128), 132), {"consts": {"BM": 256, "BN": 32, "ROWS": 128}})
    chosen = choose(single, {**fixed, "PARTS": 1}, AT)
    assert chosen.source == "tuned" and chosen.consts["PARTS"] == 1 and chosen.setting == {"BM": 256, "BN": 32, "ROWS": 128}
    assert choose(single, {**fixed, "PARTS": 2}, AT).source != "tuned" != choose(single, fixed, AT).source


@pytest.mark.parametrize(
    "ours",
    [
        {"BM": 128},
        {"BN": 64},
        {"BM": 192, "BN": 64},
        {"BM": 128, "BN": 112, "QBUF": 1},
        {"STAGES": 3},
        {"PINGPONG": True},
        {"AHEAD": False},
        {"DYNAMIC": False},
    ],
)
def test_a_choice_of_the_users_stands(ours: dict[str, int]) -> None:
    result = adapt("causal")
    chosen = choose(result.program, {**BASE, **ours}, AT, Evidence(STARTS))
    assert ours.items() <= chosen.consts.items() and find_violation(result.program, None, chosen.consts) is None


def test_the_model_serves_what_has_no_row() -> None:
    result = adapt("causal")
    for fixed, device in (({**BASE, "D": 80, "DV": 80}, None), (BASE, Device("NVIDIA H100 PCIe sm_90 114", 114))):
        chosen = choose(result.program, fixed, AT, Evidence(device=device))
        assert (
            chosen.source == "model" and {"BM", "BN"} <= set(chosen.setting) and find_violation(result.program, None, chosen.consts) is None
        )
    assert choose(result.program, BASE, Lengths(1, 2, 2, 512, 512)).source == "model", "few tiles"
    assert choose(result.program, BASE, AT, Evidence(sources=("model",))).source == "model"


def test_starts_for_exactly_these_head_dims_come_before_the_model() -> None:
    """They were measured for these, where launches have many tiles."""
    result, wide = adapt("causal"), {**BASE, "D": 192, "DV": 128}
    starts = ({"BM": 192, "BN": 80, "QBUF": 1}, {"BM": 128, "BN": 96, "QBUF": 1})
    assert choose(result.program, wide, AT, Evidence(starts, exact=True)).setting == starts[0]
    assert choose(result.program, {**wide, "BM": 128}, AT, Evidence(starts, exact=True)).setting == starts[1]
    assert choose(result.program, wide, AT, Evidence(starts)).source == "model", "those are of a larger head dim"
    assert choose(result.program, wide, Lengths(1, 2, 2, 512, 512), Evidence(starts, exact=True)).source == "model", "few tiles"
    assert choose(result.program, BASE, AT, Evidence(starts, exact=True)).source == "table"


def test_the_model_serves_no_kernel_of_8_bits() -> None:
    program = parse(corpus.kernels()["flash_fwd_f8_sm90"].read_text(encoding="utf-8"))
    narrow, few = {**BASE, "T": F8E4M3}, Lengths(1, 2, 2, 512, 512)
    assert choose(program, narrow, few, Evidence(STARTS, exact=True)).setting == STARTS[0]


def test_without_a_gpu_the_first_start_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "device", lambda: ("", 0))
    result = adapt("causal")
    chosen = choose(result.program, BASE, AT, Evidence(({"BM": 192, "BN": 176}, *STARTS)))
    assert chosen.source == "start" and chosen.setting == {"BM": 64, "BN": 64}
    assert choose(result.program, {**BASE, "BM": 128}, AT, Evidence(STARTS)).setting == {"BM": 128, "BN": 128}
    assert choose(result.program, BASE, AT).consts == BASE


def test_programs_that_are_no_attention_stay_as_given() -> None:
    gemm = parse(corpus.programs()["gemm"].read_text(encoding="utf-8"))
    fixed = {"T": F16}
    assert choose(gemm, fixed, AT).consts == fixed
    ring = parse(corpus.programs()["flash_fwd"].read_text(encoding="utf-8"))
    chosen = choose(ring, {"T": F16, "D": 64}, AT)
    assert find_violation(ring, None, chosen.consts) is None, "another attention kernel, with other parameters"


@given(st.integers(1, 1 << 20))
def test_lengths_of_a_class_are_near(n: int) -> None:
    assert round_length(round_length(n)) == round_length(n) and 0.8 <= round_length(n) / n <= 1.25 and round_length(-n) == -round_length(n)
    assert round_length(2 * n) == 2 * round_length(n) or n < 4


@given(st.integers(1000, 20000), st.integers(0, 40))
def test_a_class_has_one_setting(n: int, more: int) -> None:
    """Whatever problem of it comes first: nothing depends on what was called before."""
    result, of = adapt("sliding_window"), work("sliding_window")
    item, second = (Lengths(2, 32, 32, x, x) for x in (n, n + more))
    classes = [problem_class(of, at, {"window": w}) for at, w in ((item, 500), (second, 510))]
    if classes[0] == classes[1]:
        settings = [
            choose(result.program, BASE, at, Evidence(sources=("table", "model")), numbers={"window": w}).setting
            for at, w in ((item, 500), (second, 510))
        ]
        assert settings[0] == settings[1]


def test_numbers_that_change_no_blocks_change_no_class() -> None:
    assert problem_class(work("softcap"), AT, {"cap": 20.0}) == problem_class(work("softcap"), AT, {"cap": 50.0})
    narrow, wide = (problem_class(work("sliding_window"), AT, {"window": w}) for w in (128, 1024))
    assert narrow != wide


@pytest.mark.thorough
def test_few_settings_for_the_lengths_of_a_program() -> None:
    """Each is a kernel that is verified and compiled."""
    for variant, numbers in (("causal", {}), ("full", {}), ("sliding_window", {"window": 1024}), ("document", {})):
        for D in (64, 96, 128, 256):
            fixed = {"T": BF16, "D": D, "DV": D}
            results = {
                str(choose(adapt(variant).program, fixed, Lengths(max(1, 16384 // n), 32, 8, n, n), numbers=numbers).setting)
                for n in range(1024, 16385, 1024)
            }
            assert len(results) <= 3, (variant, D, results)
