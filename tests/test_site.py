"""The site has every page once, and names what lies outside of docs/ without a link."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parent.parent
NAV = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]


def test_every_page_is_in_the_navigation_once() -> None:
    named = re.findall(r"[\w/]+\.md", NAV)
    pages = {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")}
    assert sorted(named) == sorted(pages)


@pytest.mark.parametrize(
    ("page", "text", "output"),
    [
        ("flex.md", "see [the class](../cuir/x.py) and [tests](../tests)", "see the class and tests"),
        ("flex.md", "[a page](serving.md#one) and [b](notes/x.md)", "[a page](serving.md#one) and [b](notes/x.md)"),
        ("notes/x.md", "[up](../flex.md), [out](../../cuir/x.py)", "[up](../flex.md), out"),
        ("flex.md", "```\n[a](../b)\n```\n[a](../b)", "```\n[a](../b)\n```\na"),
        ("flex.md", "![picture](../img.png) [web](https://a.b/../c)", "![picture](../img.png) [web](https://a.b/../c)"),
    ],
)
def test_links_out_of_the_pages_are_names(page: str, text: str, output: str) -> None:
    hook = runpy.run_path(str(ROOT / "docs" / "site_hooks.py"))["on_page_markdown"]
    assert hook(text, page=SimpleNamespace(file=SimpleNamespace(src_uri=page))) == output


def test_the_footer_has_the_version() -> None:
    import cuir

    hook = runpy.run_path(str(ROOT / "docs" / "site_hooks.py"))["on_config"]
    assert hook({"copyright": "CuBridge"}) == {"copyright": f"CuBridge {cuir.__version__}"}


def test_the_api_page_names_what_programs_import() -> None:
    import cuir

    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^::: [\w.]+\.(\w+)$", page, re.M))
    classes_of_annotations = {"Global", "Scratch", "Shared", "Tile", "bf16", "const", "f16", "f32", "i32", "kernel", "func"}
    missing = set(cuir.__all__) - named - classes_of_annotations
    assert not missing
