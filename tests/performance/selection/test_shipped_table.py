"""Shipped tables: every row is of a setting that the checker takes, and problems find the row that is meant for them."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cuir.performance.selection
from cuir.performance.search.space import find_violation
from cuir.performance.selection import Device
from cuir.performance.selection import shipped_table as table
from cuir.performance.selection.shipped_table import Kind, Row, find_nearest, list_shipped_devices, load_rows, make_file_stem, rank_rows
from cuir.performance.timing.problem import Shape
from cuir.syntax.types import BF16, F16
from tests.performance.selection.conftest import adapt, work

H200 = Device("NVIDIA H200 sm_90 132", 132)
ALL = [(name, row) for name in list_shipped_devices() for row in load_rows(name)]


@pytest.mark.sweep
@pytest.mark.parametrize(("gpu", "row"), ALL, ids=[f"{r.variant} {r.head_dims[0]} {r.least:.0f}" for _, r in ALL])
def test_rows_name_settings_that_the_checker_takes(gpu: str, row: Row) -> None:
    result = adapt(row.variant)
    for T in (F16, BF16):
        assert find_violation(result.program, result.kernel, {"T": T, "D": row.head_dims[0], "DV": row.head_dims[1], **row.setting}) is None
    assert row.kind == Kind.of(work(row.variant)), "the row is of its variant as it is traced today"
    assert 64 <= row.least <= row.most


def test_tables_are_what_the_command_writes() -> None:
    for path in Path(str(files(cuir.performance.selection) / "tables")).glob("*.json"):
        data = json.loads(path.read_text(encoding="utf-8"))
        assert path.stem == make_file_stem(data["gpu"]) and data["sms"] > 0
        assert [Row.parse(r).as_json() for r in data["rows"]] == data["rows"]


def test_rows_of_a_variant_do_not_overlap() -> None:
    for gpu, row in ALL:
        rest = [
            r for g, r in ALL if g == gpu and r is not row and (r.variant, r.head_dims, r.heads) == (row.variant, row.head_dims, row.heads)
        ]
        assert all(row.most < o.least or o.most < row.least for o in rest)


def test_few_settings_for_a_variant_and_head_dim() -> None:
    """Each is a kernel to compile, and a user's lengths vary."""
    for gpu, row in ALL:
        ours = {json.dumps(r.as_json()["setting"]) for g, r in ALL if (g, r.variant, r.head_dims) == (gpu, row.variant, row.head_dims)}
        assert len(ours) <= 3


@given(st.sampled_from(ALL), st.floats(0, 1))
def test_a_row_serves_its_own_keys(entry: tuple[str, Row], part: float) -> None:
    _, row = entry
    keys = row.least * (row.most / row.least) ** part
    assert row.distance(row.kind, keys) == pytest.approx(0)
    assert row.distance(row.kind, row.most * 4) == pytest.approx(2) and row.distance(row.kind, row.least / 2) == pytest.approx(1)


@given(st.integers(0, 40), st.integers(0, 3), st.integers(0, 40), st.sampled_from(["all", "closed", "listed"]))
def test_kinds_are_as_far_as_their_arithmetic(score: int, special: int, keep: int, blocks: str) -> None:
    kind = Kind(blocks, score, special, keep)
    assert kind.distance(kind) == 0
    for second in (Kind(blocks, score + 1, special, keep), Kind(blocks, score, special + 1, keep), Kind(blocks, score, special, keep + 1)):
        assert 0 < kind.distance(second) == second.distance(kind) <= 1
    assert kind.distance(Kind("of another form", score, special, keep)) == 1


@pytest.mark.parametrize(
    ("variant", "like"),
    [("causal_top_left", "causal"), ("relative_position", "alibi"), ("causal_document", "document"), ("softcap", "softcap")],
)
def test_programs_of_a_kind_share_rows(variant: str, like: str) -> None:
    """The same mask by another name, another bias, another mask on documents."""
    item = next(rank_rows(work(variant), Shape(2, 32, 32, 8192, 8192, 128), {}, H200))
    assert item[1].variant == like


def test_the_number_of_keys_decides_not_the_length() -> None:
    of, shape = work("sliding_window"), Shape(2, 32, 32, 8192, 8192, 64)
    narrow, wide = (find_nearest(of, shape, {"window": w}, H200, lambda s: True) for w in (64, 4096))
    assert narrow is not None and wide is not None and narrow.setting["BM"] < wide.setting["BM"]  # type: ignore[operator]


def test_what_no_row_holds_for() -> None:
    of = work("causal")
    assert find_nearest(of, Shape(2, 32, 32, 8192, 8192, 128), {}, Device("NVIDIA B9000 sm_120 132", 132), lambda s: True) is None, (
        "another GPU"
    )
    assert find_nearest(of, Shape(2, 32, 32, 8192, 8192, 48), {}, H200, lambda s: True) is None, "another head dim"
    assert find_nearest(of, Shape(2, 32, 32, 8192, 8192, 128, 64), {}, H200, lambda s: True) is None, "of values"
    assert find_nearest(of, Shape(1, 4, 4, 1024, 1024, 128), {}, H200, lambda s: True) is None, "few tiles"
    assert find_nearest(of, Shape(2, 32, 32, 8192, 8192, 128), {}, H200, lambda s: False) is None, "nothing fits"
    assert find_nearest(of, Shape(2, 32, 32, 8192, 8192, 120), {}, H200, lambda s: True) is not None, (
        "products of head dim 120 take the columns of 128"
    )


def test_rows_of_a_relative_serve_where_the_gpu_has_none() -> None:
    """A GPU of the same generation with as many multiprocessors; its own rows come first where both are as near."""
    of, shape = work("causal"), Shape(2, 32, 32, 8192, 8192, 128)
    ours = find_nearest(of, shape, {}, H200, lambda s: True)
    relative = find_nearest(of, shape, {}, Device("NVIDIA H300 sm_90 132", 132), lambda s: True)
    assert (
        ours is not None
        and relative is not None
        and ours.setting == relative.setting
        and "as measured on NVIDIA H200 for such" in relative.why
    )
    for second in (Device("NVIDIA H300 sm_90 114", 114), Device("NVIDIA H300 sm_100 132", 132), Device("NVIDIA H300", 132)):
        assert find_nearest(of, shape, {}, second, lambda s: True) is None
    lacking = find_nearest(of, shape, {}, list_shipped_devices()["NVIDIA H100 80GB HBM3"], lambda s: True)
    assert lacking is not None and "H200" in lacking.why


def test_a_row_for_some_heads_comes_before_one_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    of, shape = work("causal"), Shape(2, 32, 32, 8192, 8192, 128)
    shared = Row("causal", Kind.of(of), (128, 128), 64.0, 1e5, {"BM": 128, "BN": 128})
    ours = Row("causal", Kind.of(of), (128, 128), 64.0, 1e5, {"BM": 192, "BN": 80}, spilled=8, heads=4)
    assert Row.parse(ours.as_json()) == ours
    monkeypatch.setattr(table, "load_rows", lambda name: (shared, ours) if name == "NVIDIA H200" else ())
    for key_heads, expected in ((32, shared), (8, ours), (16, shared)):
        actual = find_nearest(of, replace(shape, HK=key_heads), {}, H200, lambda s: True)
        assert actual is not None and actual.setting == expected.setting and actual.spilled == expected.spilled


def test_a_file_is_named_after_its_gpu() -> None:
    assert (
        table.make_file_stem("NVIDIA H200") == "nvidia_h200"
        and load_rows("NVIDIA H200")
        and load_rows("") == ()
        and load_rows("../cost") == ()
    )
