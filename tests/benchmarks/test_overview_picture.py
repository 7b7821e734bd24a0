"""The picture of docs/index.md is up to date: its lines are those of the programs of today."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from benchmarks.overview_picture import collect_lines

PICTURE = Path(__file__).parents[2] / "docs/img/overview.svg"


def without_numbers(line: str) -> str:
    """Leave out numbers of lines and of registers, which other changes of the kernel move."""
    return re.sub(r"\d+", "0", line).strip()


def test_lines_of_the_picture_are_those_of_the_programs() -> None:
    lines = collect_lines()
    assert lines["expert"] != lines["adapted"]
    texts = ("".join(t.itertext()) for t in ElementTree.parse(PICTURE).iter() if t.tag.endswith("}text"))
    drawn = {without_numbers(text) for text in texts}
    assert {without_numbers(line) for text in lines.values() for line in text.splitlines()} <= drawn, "run `make picture`"
    assert "](img/overview.svg)" in (PICTURE.parents[1] / "index.md").read_text(encoding="utf-8")
