"""Functions from templates: CuIR text that is written by hand, and made trees in its holes."""

from __future__ import annotations

from .nodes import Expr, Func
from .parser import parse
from .printer import read_literals
from .walk import substitute


class Holes:
    """Trees by the names that stand for them in the text of a template.

    Only the template's own text is parsed: it is the same for trees of all kinds.
    """

    def __init__(self) -> None:
        self.trees: dict[str, Expr] = {}

    def put(self, tree: Expr) -> str:
        """Return the name of a new hole for a tree."""
        name = f"_hole{len(self.trees)}"
        self.trees[name] = read_literals(tree)
        return name

    def fill(self, text: str) -> dict[str, Func]:
        """Return the functions of a template, by name, with the trees in its holes."""
        functions = parse(text, "splice points").funcs()
        return {name: substitute(f, self.trees) for name, f in functions.items()}


__all__ = ["Holes"]
