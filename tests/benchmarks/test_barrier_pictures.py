"""Pictures of docs/memory_and_barriers.md: what they are drawn from, and what the page says of its program."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import cuir
from benchmarks.barrier_pictures import (
    PAGE,
    PICTURES,
    USES,
    describe_step,
    find_holders,
    find_orders,
    find_phases,
    place_chunk,
    read_program,
    record,
    select_steps,
)
from cuir.cli import run as run_command
from cuir.text.diagnostics import Diagnostic

DELETED = re.findall(r"^\| `([^`]+)` \| ([A-Z]\d{3}) \| ", PAGE.read_text(encoding="utf-8"), re.M)
MOVED = re.findall(r"^\| `([^`]+)` moved behind `([^`]+)` \| ([A-Z]\d{3}) \| ", PAGE.read_text(encoding="utf-8"), re.M)


def test_a_stage_has_one_holder_at_a_time() -> None:
    recorder, _ = record(USES)
    for stage, uses in ((0, 3), (1, 2)):
        holders = find_holders(recorder.steps, stage)
        assert [h for h, _, _ in holders] == ["copy engine", "compute"] * uses
        edges = [edge for _, start, stop in holders for edge in (start, stop)]
        assert edges == sorted(edges)
        assert len(find_phases(recorder.steps, f"full[{stage}]")) == len(find_phases(recorder.steps, f"empty[{stage}]")) == uses


def test_orders_go_down_and_name_both_proxies() -> None:
    recorder, _ = record(3)
    steps, lines = select_steps(recorder.steps), read_program().splitlines()
    orders = find_orders(steps)
    assert all(first <= second for first, _, second, _ in orders)
    words = [word for s in steps for word in describe_step(s, lines)]
    assert {(a, b) for _, a, _, b in orders} == {
        ("load[0]", "copy engine"),
        ("copy engine", "compute[0]"),
        ("compute[0]", "tensor core"),
        ("tensor core", "compute[0]"),
        ("compute[0]", "load[0]"),
        ("compute[0]", "copy engine"),
    }
    assert ("tensor core", "reads a[0], b[0]") in words and ("compute[0]", "fence_async()") in words


def test_the_swizzle_keeps_rows_and_spreads_columns_over_the_banks() -> None:
    places = [[place_chunk(row, chunk, 64) for chunk in range(8)] for row in range(8)]
    for row, in_row in enumerate(places):
        assert sorted(in_row) == [128 * row + 16 * i for i in range(8)]
    for chunk in range(8):
        assert len({places[row][chunk] % 128 for row in range(8)}) == 8


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_drawn_and_in_the_page(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    PICTURES[name](tmp_path / name)
    drawn, stored = (
        sorted("".join(t.itertext()) for t in ElementTree.parse(p).iter() if t.tag.endswith("}text"))
        for p in (tmp_path / name, PAGE.parent / "img" / name)
    )
    assert drawn == stored, "run `make picture`"
    assert f"](img/{name})" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(("line", "code"), DELETED, ids=[line for line, _ in DELETED])
def test_each_line_of_the_table_is_needed(line: str, code: str) -> None:
    lines = [text for text in read_program().splitlines() if text.strip() != line]
    assert len(lines) == len(read_program().splitlines()) - 1
    assert find_fault(lines).code == code


@pytest.mark.parametrize(("line", "behind", "code"), MOVED, ids=[line for line, *_ in MOVED])
def test_a_line_that_is_moved_is_named(line: str, behind: str, code: str) -> None:
    lines = read_program().splitlines()
    (moved,) = (text for text in lines if text.strip() == line)
    lines.remove(moved)
    (place,) = (n for n, text in enumerate(lines, 1) if text.strip() == behind)
    lines.insert(place, moved)
    fault = find_fault(lines)
    assert fault.code == code and (fault.hint or "").startswith(f"move {line} from line {place + 1} to in front of")


def test_there_is_a_line_that_is_moved() -> None:
    assert MOVED


def find_fault(lines: Sequence[str]) -> Diagnostic:
    """The fault of the changed program, on one CTA with two units of work."""
    a, b, c = torch.ones(128, 320).half(), torch.ones(320, 64).half(), torch.empty(128, 64).half()
    with pytest.raises(cuir.CuirError) as caught:
        cuir.run(cuir.check(cuir.parse("\n".join(lines) + "\n", "ring.cuir")), {"A": a, "B": b, "C": c}, grid=1)
    return caught.value.diagnostics[0]


def test_the_table_names_every_wait_arrival_and_fence() -> None:
    needed = re.findall(r"^ +(?:\w+\[s\]\.\w+\(.*|mma_wait\(.*|fence_async\(.*|store_wait\(.*)$", read_program(), re.M)
    assert [line.strip() for line in needed] == [line for line, _ in DELETED]


def test_the_page_says_how_many_schedules_are_tried(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "ring.cuir"
    program.write_text(read_program(), encoding="utf-8")
    assert run_command(["run", str(program), "-d", "M=128,N=64,K=320", "--schedule", "all"]) == 0
    runs = re.search(r"(\d+) runs under different schedules", " ".join(capsys.readouterr().out.split()))
    assert runs is not None and f"tries {runs[1]} schedules" in PAGE.read_text(encoding="utf-8")
