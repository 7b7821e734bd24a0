"""Pictures of pages: each page that is drawn has its part, and each picture stands in a page and is small."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.page_pictures import SHOTS
from tests.pages.chromium import find_reason_to_skip, visit

ROOT = Path(__file__).parents[2]
TEXTS = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize("name", SHOTS)
def test_a_picture_stands_in_a_page(name: str) -> None:
    assert any(f"img/{name}.webp)" in text for text in TEXTS)
    assert 1_000 < (ROOT / f"docs/img/{name}.webp").stat().st_size < 50_000


@pytest.mark.browser
def test_each_page_has_the_part_that_is_drawn(tmp_path: Path) -> None:
    if reason := find_reason_to_skip():
        pytest.skip(reason)
    for name, shot in SHOTS.items():
        (tmp_path / f"{name}.html").write_text(shot.make(), encoding="utf-8")
    size = "const r = document.querySelector('%s').getBoundingClientRect(); return [r.width, r.height]"
    visits = visit({tmp_path / f"{name}.html": [shot.script, size % shot.clip] for name, shot in SHOTS.items()})
    for name, page in visits.items():
        assert all(length > 100 for length in page.results[1]), name
        assert not page.messages
