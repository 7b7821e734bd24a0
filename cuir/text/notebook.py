"""Display of objects in notebooks: a class names the function that renders it.

The function is imported when an object is shown.
"""

from __future__ import annotations

import importlib
from typing import ClassVar


def render_in_notebook(renderer: str, subject: object) -> str:
    """Return the HTML of an object, with styles and script. renderer: "module:function" below `cuir`."""
    module, _, function = renderer.partition(":")
    body = str(getattr(importlib.import_module(f"cuir.{module}"), function)(subject))
    return str(importlib.import_module("cuir.pages.page").render_fragment(body))


class ShownInNotebooks:
    """Mixin of classes with an HTML form.

    Attributes:
        html_renderer: "module:function" below `cuir`; takes the object, returns HTML.
    """

    html_renderer: ClassVar[str]

    def _repr_html_(self) -> str:
        return render_in_notebook(self.html_renderer, self)
