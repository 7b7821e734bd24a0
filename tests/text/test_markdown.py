"""Tables of Markdown: what a cell holds is no border and no line end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cuir.text.markdown import table


def test_a_table() -> None:
    assert table(("a", "b"), [("1", "x | y"), ("2", "two\nlines")]) == ["| a | b |", "|---|---|", "| 1 | x \\| y |", "| 2 | two lines |"]


@given(st.lists(st.lists(st.text("a|\n "), min_size=3, max_size=3)))
def test_every_row_has_as_many_cells(rows: list[list[str]]) -> None:
    lines = table(("a", "b", "c"), rows)
    assert len(lines) == 2 + len(rows)
    assert all("\n" not in line and line.replace("\\|", "").count("|") == 4 for line in lines)
