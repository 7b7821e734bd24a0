"""Layout of tables: nothing is lost, lines fit a terminal, and a row is a line for other programs."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuir.cli.tables import GAP, NARROWEST, fit_widths, layout_table

WORDS = st.lists(st.text("abcXYZ_019,.", min_size=1, max_size=20), max_size=8).map(" ".join)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[list[str]]]:
    columns = draw(st.integers(1, 5))
    head = [f"head{c}" for c in range(columns)]
    return head, draw(st.lists(st.lists(WORDS, min_size=columns, max_size=columns), max_size=5))


@given(tables())
def test_elsewhere_a_row_is_a_line_with_columns_at_fixed_places(table: tuple[list[str], list[list[str]]]) -> None:
    head, rows = table
    lines = ["".join(line) for line in layout_table(head, rows, None)]
    assert len(lines) == 1 + len(rows)
    starts = [lines[0].index(name) for name in head]
    for row, text in zip([head, *rows], lines):
        assert re.split(r" {2,}", text) == [cell or "-" for cell in row]
        assert all(text[at - GAP : at] in ("", "  ") and text[at] != " " for at in starts)


@given(tables(), st.integers(20, 200))
def test_on_a_terminal_nothing_is_lost_and_lines_fit(table: tuple[list[str], list[list[str]]], width: int) -> None:
    head, rows = table
    lines = layout_table(head, rows, width)
    text = "".join("".join(line) for line in lines)
    assert sorted(re.sub(r"\s", "", text)) == sorted(re.sub(r"\s", "", "".join(head) + "".join(map("".join, rows))))
    if width >= len(head) * (NARROWEST + GAP):
        assert all(len("".join(line)) <= width for line in lines)


@given(st.lists(st.tuples(st.integers(0, 80), st.integers(0, 80)), min_size=1, max_size=6), st.integers(10, 200))
def test_widths_shrink_no_more_than_they_must(columns: list[tuple[int, int]], total: int) -> None:
    natural = [max(pair) for pair in columns]
    widths = fit_widths(natural, [min(pair) for pair in columns], total)
    assert all(min(n, NARROWEST, min(pair)) <= w <= n for n, w, pair in zip(natural, widths, columns))
    if sum(natural) <= total:
        assert widths == natural
    elif sum(min(n, NARROWEST) for n in natural) <= total:
        assert sum(widths) == total
    if sum(min(pair) for pair in columns) <= total:
        assert all(w >= min(n, min(pair)) for n, w, pair in zip(natural, widths, columns))


def test_words_are_kept_whole_where_they_fit() -> None:
    lines = ["".join(line) for line in layout_table(("variant", "why"), [("global_sliding_window", "one two three four five six")], 41)]
    assert lines == ["variant                why", "global_sliding_window  one two three four", "                       five six"]


def test_settings_are_broken_behind_commas() -> None:
    lines = ["".join(line) for line in layout_table(("shape", "consts"), [("2,32,32,8192,8192,128", "BM=192,BN=80,T=f16,D=128")], 30)]
    assert lines == ["shape           consts", "2,32,32,8192,   BM=192,BN=80,", "8192,128        T=f16,D=128"]


def test_several_lines_of_a_cell() -> None:
    assert ["".join(x) for x in layout_table(("a", "b"), [("x", "1\n2")], None)] == ["a  b", "x  1 2"]
    assert ["".join(x) for x in layout_table(("a", "b"), [("x", "1\n2")], 80)] == ["a  b", "x  1", "   2"]


COMMANDS = [
    ("corpus",),
    ("ops",),
    ("explain",),
    ("cache",),
    ("lower", "--passes"),
    ("lower", "gemm", "--launch"),
    ("tune", "causal", "--choice", "--gpu", "NVIDIA H200"),
]


@pytest.mark.parametrize("argv", COMMANDS, ids=" ".join)
def test_tables_of_commands_follow_the_terminal_alone(cuir: Callable, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...]) -> None:
    def show(columns: int, terminal: bool) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("FORCE_COLOR", "1" if terminal else "")
        output = cuir(*argv)
        assert output.code == 0
        return str(output.out)

    elsewhere = show(60, False)
    assert elsewhere == show(200, False) and not re.search("[\x1b─│╭…]", elsewhere)
    narrow, wide = (re.sub(r"\x1b\[[0-9;]*m", "", show(columns, True)) for columns in (60, 200))
    words = elsewhere.replace(" - ", " ").replace(" -\n", "\n").split()
    for text in (narrow, wide):
        assert sorted("".join(words).replace("-", "")) == sorted("".join(text.split()).replace("-", ""))
    if argv[-1] != "--launch":  # its facts above the table are lines that the terminal wraps
        assert max(map(len, narrow.split("\n"))) <= 60 and max(map(len, wide.split("\n"))) <= 200
