"""The list of codes and the codes in the sources are the same; the page made from the list is up to date."""

from __future__ import annotations

import re
from pathlib import Path

from cuir.text import codes

ROOT = Path(__file__).parents[2]
CODE = re.compile(r'"([A-Z]\d{3})"')


def list_used() -> dict[str, str]:
    """Every code that a source names, with one place."""
    results = {}
    for path in sorted([*(ROOT / "cuir").rglob("*.py"), *(ROOT / "llm").rglob("*.py")]):
        if path.name != "codes.py":
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                for code in CODE.findall(line):
                    results[code] = f"{path.relative_to(ROOT)}:{number}"
    return results


def test_every_code_in_use_is_explained() -> None:
    unlisted = {code: place for code, place in list_used().items() if code not in codes.CODES}
    assert not unlisted, "add these to cuir/text/codes.py"


def test_every_explained_code_is_in_use() -> None:
    assert not codes.CODES.keys() - list_used().keys()


def test_families_are_known_and_texts_are_there() -> None:
    for entry in codes.CODES.values():
        assert codes.get_family(entry.code)
        assert entry.title and entry.help.endswith(".")


def test_errors_page_is_up_to_date() -> None:
    assert (ROOT / "docs/errors.md").read_text(encoding="utf-8") == codes.render_markdown(), "run `make docs`"
