"""Hooks of mkdocs: what pages link to outside of docs/ is named, not linked, since the site holds pages alone.

The footer has the version of the package.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.M | re.S)


def on_config(config: Any) -> Any:
    """Add the version to the footer."""
    text = (Path(__file__).parent.parent / "cuir" / "__init__.py").read_text(encoding="utf-8")
    (version,) = re.findall(r'^__version__ = "([^"]+)"', text, re.M)
    config["copyright"] = f"{config['copyright']} {version}"
    return config


def on_page_markdown(markdown: str, page: Any, **rest: Any) -> str:
    """Replace links that lead out of docs/ by their text."""
    folder = posixpath.dirname(page.file.src_uri)

    def name_only(match: re.Match[str]) -> str:
        text, target = match[1], match[2].partition("#")[0]
        if ":" in target or not posixpath.normpath(posixpath.join(folder, target)).startswith(".."):
            return match[0]
        return text

    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [LINK.sub(name_only, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, LINK.sub(name_only, markdown[end:])])
