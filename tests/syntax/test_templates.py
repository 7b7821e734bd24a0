"""Templates: the parser's trees, with made trees in their holes."""

from __future__ import annotations

from cuir.syntax.nodes import Binary, Literal, Name, Return, Unary
from cuir.syntax.parser import parse
from cuir.syntax.templates import Holes


def test_a_filled_template_is_what_the_text_of_its_trees_parses_to() -> None:
    holes = Holes()
    negative = Binary("*", Literal(-3), Binary("+", Name("x"), Literal(-0.5)))
    made = holes.fill(f"@func\ndef f(x):  # twice\n    y = {holes.put(negative)}\n    return {holes.put(Name('y'))}, y\n")["f"]
    assert made == parse("@func\ndef f(x):\n    y = -3 * (x + -0.5)\n    return y, y\n").funcs()["f"]
    assert made.comments.trail == "# twice"


def test_trees_of_other_holes_and_names_of_the_template_do_not_mix() -> None:
    holes = Holes()
    other = Holes()
    first, second = holes.put(Unary("-", Name("x"))), other.put(Name("z"))
    assert first == second, "names are those of one template"
    made = holes.fill(f"@func\ndef f(x):\n    return {first}\n")["f"]
    assert made.body == (Return(Unary("-", Name("x"))),)
    assert other.fill(f"@func\ndef f(x):\n    return {second}\n")["f"].body == (Return(Name("z")),)
