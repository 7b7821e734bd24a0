"""The printer: text and tree say the same, printing is idempotent, comments survive."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

from cuir.syntax.nodes import Binary, Call, Literal, Name, Program, Slice, Subscript, Unary
from cuir.syntax.parser import parse
from cuir.syntax.printer import WIDTH, place_in_text, show
from cuir.syntax.walk import MAX_DEPTH, walk
from cuir.text.diagnostics import CuirError
from tests.strategies.programs import expressions, programs
from tests.strategies.selection import examples

PROGRAMS = sorted((Path(__file__).parents[2] / "corpus").glob("*/*.cuir"))
PROGRAMS = [p for p in PROGRAMS if p.parent.name != "faulty"]


def expression(text: str):
    return parse(f"@func\ndef f():\n    return {text}\n").items[0].body[0].value


@pytest.mark.thorough
@examples(3)
@given(programs())
def test_parse_of_show_is_the_program_with_its_comments(program):
    text = show(program)
    repeated = parse(text)
    assert repeated == program
    assert show(repeated) == text
    assert _comments(repeated) == _comments(program)


def assert_places_are_the_parser_s(program):
    placed = place_in_text(program, "made.cuir")
    parsed = parse(show(program), "made.cuir")
    assert placed == parsed and placed.span == parsed.span
    for mine, node in zip(walk(placed), walk(parsed), strict=True):
        assert type(mine) is type(node) and mine.span == node.span, node


@pytest.mark.thorough
@examples(3)
@given(programs())
def test_places_of_a_made_program_are_the_parser_s(program):
    assert_places_are_the_parser_s(program)


def test_a_shared_part_has_a_place_at_each_use():
    shared = Binary("*", Name("x"), Literal(-2.0))
    function = parse("@func\ndef f(x):\n    return x\n").items[0]
    made = replace(function, body=(replace(function.body[0], value=Binary("-", shared, shared)),))
    value = place_in_text(Program((made,)), "made.cuir").items[0].body[0].value
    assert [value.left.span.column, value.right.span.column] == [12, 23] and value.span.text() == "x * -2.0 - x * -2.0"
    assert_places_are_the_parser_s(Program((made,)))


def test_what_is_nested_too_deep_is_refused_at_its_place():
    function = parse("@func\ndef f(x):\n    return x\n").items[0]
    deep = Name("x")
    for _ in range(MAX_DEPTH + 1):
        deep = Unary("~", deep)
    deep = Binary("+", Name("long_name_of_the_first_operand_" * 3), deep)
    with pytest.raises(CuirError) as refused:
        place_in_text(Program((replace(function, body=(replace(function.body[0], value=deep),)),)), "made.cuir")
    assert refused.value.diagnostics[0].code == "P018" and str(refused.value.diagnostics[0].span) == "made.cuir:3:5"


@examples(8)
@given(expressions(4))
def test_parse_of_show_is_the_expression(e):
    assert expression(show(e) if not show(e).startswith("#") else "0") == e


@pytest.mark.sweep
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_corpus_round_trip(path):
    program = parse(path.read_text(), path.name)
    text = show(program)
    assert parse(text) == program
    assert show(parse(text)) == text
    assert _comments(parse(text)) == _comments(program)
    assert _comment_lines(text) == _comment_lines(path.read_text())
    assert_places_are_the_parser_s(program)


@pytest.mark.parametrize(
    "text",
    [
        "a - (b - c)",
        "a - b - c",
        "(a + b) * c",
        "-a.T",
        "(-a).T",
        "not a == b",
        "(not a) == b",
        "a & b == c",
        "a & (b == c)",
        "(a < b) == c",
        "a if b else c if d else e",
        "(a if b else c) if d else e",
        "a if (b if x else y) else c",
        "(a and b) or c and d",
        "a and (b or c)",
        "x[a, :, b + 1 : b + 1 + c]",
        "x[(a, b)]",
        "f(a, (b, c), k=[d, 1])",
        "()",
        "((a, b), ())",
        "-(a ** b)".replace(" ** ", " * "),
        "~(a | b) & ~c",
        "(1).T",
        "(a + b)[0](c).d",
    ],
)
def test_canonical_text_has_the_fewest_parentheses(text):
    assert show(expression(text)) == (text if text != "(a and b) or c and d" else "a and b or c and d")


def test_floats_print_their_shortest_form_and_infinity_is_a_name():
    assert show(Literal(1.4426950408889634)) == "1.4426950408889634"
    assert show(Unary("-", Name("inf"))) == "-inf"
    assert show(Literal(float("-inf"))) == "-inf"
    assert show(Binary("-", Name("a"), Literal(-1))) == "a - -1"


def test_slices():
    assert show(Subscript(Name("x"), (Slice(), Slice(Literal(0), Name("n"))))) == "x[:, 0 : n]"


def test_trailing_comments_line_up():
    text = show(parse("@func\ndef f(a): # one\n    return a # two\n"))
    assert text == f"@func\n{'def f(a):':41}# one\n{'    return a':41}# two\n"


def test_long_signatures_and_calls_are_wrapped_below_their_bracket():
    names = ", ".join(f"operand_{i}: Global[f32, M, N]" for i in range(6))
    text = show(parse(f'@kernel(arch="sm_90a")\ndef k({names}, *, D: const):\n    f({", ".join(f"argument_{i}" for i in range(20))})\n'))
    lines = text.split("\n")
    assert max(map(len, lines)) <= WIDTH
    assert lines[2].startswith("      operand_3")
    assert lines[3] == "      D: const):"
    assert lines[5].startswith("      argument_")
    assert parse(text).kernels()["k"].body[0].value == Call(Name("f"), tuple(Name(f"argument_{i}") for i in range(20)))


def test_blank_lines_between_definitions_and_before_roles():
    text = 'A = 1\nB = 2\n@func\ndef f():\n    return A\n@kernel(arch="sm_90a")\ndef k():\n    x = 1\n    with role("a", warps=1):\n        y = 1\n'
    assert show(parse(text)) == (
        'A = 1\nB = 2\n\n@func\ndef f():\n    return A\n\n@kernel(arch="sm_90a")\ndef k():\n    x = 1\n\n    with role("a", warps=1):\n        y = 1\n'
    )


def _comments(node) -> Counter:
    """Every comment of a tree with what it is attached to."""
    counts: Counter = Counter()
    stack = [node]
    while stack:
        n = stack.pop()
        c = getattr(n, "comments", None)
        if c is not None:
            counts.update(("lead", type(n).__name__, line) for line in c.lead)
            counts.update([("trail", type(n).__name__, c.trail)] if c.trail else [])
        counts.update(("tail", line) for line in getattr(n, "tail", ()))
        for value in vars(n).values():
            for child in value if isinstance(value, tuple) else (value,):
                if hasattr(child, "span"):
                    stack.append(child)
    return counts


def _comment_lines(text: str) -> list[str]:
    return sorted(line[line.index("#") :].rstrip() for line in text.split("\n") if "#" in line)
