"""Every value becomes JSON that a strict reader takes."""

from __future__ import annotations

import json
import lzma
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuir.text.jsontext import append_line, read_lines, to_json

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(Path("a") / "b"),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=4))
def test_strict_json(value: dict[str, Any]) -> None:
    data = json.loads(to_json(value), parse_constant=refuse)
    assert data.keys() == value.keys()


def test_numbers() -> None:
    assert json.loads(to_json({"a": [1.5, math.nan, -math.inf], "b": True, "c": Path("x")})) == {
        "a": [1.5, None, None],
        "b": True,
        "c": "x",
    }


LINE = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=2).map(json.dumps)


@given(st.lists(LINE, min_size=1, max_size=3), LINE, st.data())
def test_a_line_cut_short_is_gone_when_a_file_goes_on(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], new: str, data: st.DataObject
) -> None:
    """Whatever an interruption leaves of the last line, the file holds whole lines after the next one."""
    path = tmp_path_factory.getbasetemp() / "results.jsonl"
    remaining = data.draw(st.integers(0, len(lines[-1]) + 1))
    path.write_text("".join(f"{line}\n" for line in lines[:-1]) + f"{lines[-1]}\n"[:remaining])
    append_line(path, new)
    retained = lines if remaining >= len(lines[-1]) else lines[:-1]
    assert path.read_text() == "".join(f"{line}\n" for line in [*retained, new])


def test_lines_of_a_compressed_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.xz"
    path.write_bytes(lzma.compress(b"{}\n{}\n"))
    assert read_lines(path) == ["{}", "{}"]
    path.write_bytes(b"no archive")
    with pytest.raises(lzma.LZMAError):
        read_lines(path)
