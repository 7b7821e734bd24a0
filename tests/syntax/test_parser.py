"""The parser: trees, exact spans, comments, and every error by code and position."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuir.syntax.hints import HINTS
from cuir.syntax.nodes import (
    Assign,
    AugAssign,
    Binary,
    Call,
    Comments,
    Expr,
    For,
    Func,
    GlobalType,
    If,
    IfExp,
    Keyword,
    Literal,
    Name,
    Param,
    Program,
    Return,
    Slice,
    Str,
    Subscript,
    Tuple,
    Unary,
    With,
)
from cuir.syntax.parser import parse
from cuir.syntax.walk import walk
from cuir.text.diagnostics import CuirError
from tests.strategies.selection import examples
from tests.timing import idle_seconds

CORPUS = Path(__file__).parents[2] / "corpus"
PROGRAMS = sorted([*CORPUS.glob("programs/*.cuir"), *CORPUS.glob("kernels/*.cuir")])
a, b, c, d = (Name(n) for n in "abcd")


def expression(text: str) -> Expr:
    return parse(f"@func\ndef f():\n    return {text}\n").funcs()["f"].body[0].value  # type: ignore[union-attr]


def errors(text: str) -> list[tuple[str, int, int]]:
    with pytest.raises(CuirError) as caught:
        parse(text)
    return [(e.code, e.span.line, e.span.column) for e in caught.value.diagnostics if e.span]


def body(text: str) -> str:
    """Statements as the body of a @func (their first line is line 3, column 5)."""
    return "@func\ndef f(a):\n" + "".join(f"    {line}\n" if line else "\n" for line in text.split("\n")) + "    return a\n"


# ---- trees
@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a + b * c", Binary("+", a, Binary("*", b, c))),
        ("a - b - c", Binary("-", Binary("-", a, b), c)),
        ("-a // b", Binary("//", Unary("-", a), b)),
        ("a & b == c | d", Binary("==", Binary("&", a, b), Binary("|", c, d))),
        ("a % 2 ^ 1", Binary("^", Binary("%", a, Literal(2)), Literal(1))),
        ("not a == b and c", Binary("and", Unary("not", Binary("==", a, b)), c)),
        ("a if b else c if d else a", IfExp(b, a, IfExp(d, c, a))),
        ("(a < b) == c", Binary("==", Binary("<", a, b), c)),
        ("a, (b, c)", Tuple((a, Tuple((b, c))))),
        ("()", Tuple(())),
        ("(a)", a),
        ("a[b, :, 0 : c]", Subscript(a, (b, Slice(), Slice(Literal(0), c)))),
        ('a(b, c=1.5, d="x")', Call(a, (b,), (Keyword("c", Literal(1.5)), Keyword("d", Str("x"))))),
        ("a(\n  b,  # why\n  c,\n)", Call(a, (b, c))),
        ("True", Literal(True)),
        ("1_000", Literal(1000)),
        ("1e-3", Literal(0.001)),
    ],
)
def test_expressions(text, tree):
    assert expression(text) == tree


OPERAND = st.builds("{}{}".format, st.sampled_from(["", "", "-", "~"]), st.sampled_from("abcd"))


def alternating(operators: str, operand: st.SearchStrategy[str], most: int) -> st.SearchStrategy[str]:
    more = st.lists(st.tuples(st.sampled_from(operators.split()), operand), max_size=most)
    return st.builds(lambda first, rest: " ".join([first, *(word for pair in rest for word in pair)]), operand, more)


SUMS = alternating("+ - * / // % & | ^", OPERAND, 7)
LOGIC = alternating("and or", st.builds("{}{}".format, st.sampled_from(["", "", "not "]), alternating("< <= > >= == !=", SUMS, 1)), 4)
SIGNS = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.And: "and",
    ast.Or: "or",
    ast.USub: "-",
    ast.Invert: "~",
    ast.Not: "not",
}


def as_python_has_it(e: ast.expr) -> Expr:
    if isinstance(e, ast.Name):
        return Name(e.id)
    if isinstance(e, ast.UnaryOp):
        return Unary(SIGNS[type(e.op)], as_python_has_it(e.operand))
    if isinstance(e, ast.BinOp):
        return Binary(SIGNS[type(e.op)], as_python_has_it(e.left), as_python_has_it(e.right))
    if isinstance(e, ast.Compare):
        return Binary(SIGNS[type(e.ops[0])], as_python_has_it(e.left), as_python_has_it(e.comparators[0]))
    assert isinstance(e, ast.BoolOp)
    first, *rest = map(as_python_has_it, e.values)
    for operand in rest:
        first = Binary(SIGNS[type(e.op)], first, operand)
    return first


@given(LOGIC)
def test_operators_bind_as_in_python(text):
    assert expression(text) == as_python_has_it(ast.parse(text, mode="eval").body)


def test_kinds_of_literals_differ():
    assert expression("1") != expression("1.0") != expression("True") != expression("1")


def test_statements():
    text = 'for i in work:\n    if i > 0:\n        b, _ = i, 1\n    elif b: c = 1\n    else:\n        c += 2\nwith role("x", warps=1) as w:\n    sync()'
    loop, role, _ = parse(body(text)).funcs()["f"].body
    i, item = Name("i"), Literal(1)
    inner = If(b, (Assign(("c",), item),), (AugAssign("c", "+", Literal(2)),))
    assert loop == For("i", Name("work"), (If(Binary(">", i, Literal(0)), (Assign(("b", "_"), Tuple((i, item))),), (inner,)),))
    assert isinstance(role, With) and role.name == "w" and role.call.args == (Str("x"),)


def test_a_kernel():
    text = 'N = -3\n@kernel(arch="sm_90a", cluster=2)\ndef k(Q: Global[T, B, 64], s: f32, *, T: const, X: const = 128):\n    x = 1\n'
    k = parse(text).kernels()["k"]
    assert (k.arch, k.cluster) == ("sm_90a", Literal(2))
    assert [(p.name, type(p.type).__name__, p.default) for p in k.params] == [
        ("Q", "GlobalType", None),
        ("s", "ScalarType", None),
        ("T", "ConstType", None),
        ("X", "ConstType", Literal(128)),
    ]
    assert k.params[0] == Param("Q", GlobalType("T", ("B", 64)))
    assert parse(text).constants()["N"].value == Unary("-", Literal(3))


def test_both_spellings_of_the_decorators_give_one_tree():
    text = '@func\ndef f(x):\n    return x\n@kernel(arch="sm_80")\ndef k(A: Global[f32, N]):\n    y = f(1)\n'
    assert parse(text) == parse(text.replace("@", "@cuir."))


def test_windows_line_ends_and_a_missing_last_one():
    text = "A = 1\n@func\ndef f():\n    return A"
    assert parse(text) == parse(text + "\n") == parse(text.replace("\n", "\r\n"))


def test_the_empty_text_is_the_empty_program():
    assert parse("") == parse("\n  \n# c\n") == Program(())
    assert parse("# c\n").tail == ("# c",)


# ---- spans
@pytest.mark.sweep
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_the_text_of_a_span_is_its_node(path):
    program = parse(path.read_text(), path.name, first_line=7)
    lines = path.read_text().split("\n")
    count = 0
    for node in walk(program):
        if not isinstance(node, Expr):
            continue
        s = node.span
        part = lines[s.line - 7 : s.end_line - 6]
        part[-1] = part[-1][: s.end_column - 1]
        part[0] = part[0][s.column - 1 :]
        assert expression(f"({' '.join(line.split('#')[0] for line in part)})") == node
        count += 1
    assert count > 100


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        (Func, (1, 1, 9, 13)),
        (Assign, (3, 5, 4, 13)),
        (Slice, (3, 11, 3, 16)),
        (For, (5, 5, 8, 21)),
        (If, (6, 9, 8, 21)),
        (AugAssign, (8, 15, 8, 21)),
        (Return, (9, 5, 9, 13)),
    ],
)
def test_exact_spans(kind, place):
    text = "@func\ndef f(a):\n    x = a[1 : 2,\n    b +  1 ]\n    for i in a:\n        if i:  # why\n            a = 1\n        else: a += 2\n    return a\n"
    s = next(n for n in walk(parse(text)) if isinstance(n, kind)).span
    assert (s.line, s.column, s.end_line, s.end_column) == place


# ---- comments
def test_comments_attach_to_what_they_stand_at():
    text = (
        "# one\n\n# two\n@func  # three\ndef f(a,  # four\n      b):  # five\n    # six\n    x = g(a,  # seven\n          # eight\n          b)  # nine\n"
        "    if a:  # ten\n        x = 1\n        # eleven\n    # twelve\n    else:  # thirteen\n        # fourteen\n        x = 2  # fifteen\n    return x\n# end\n"
    )
    f = parse(text).funcs()["f"]
    x, branch, _ = f.body
    assert f.comments == Comments(("# one", "", "# two", "# three", "# five"), "# four")
    assert x.comments == Comments(("# six", "# eight", "# nine"), "# seven")
    assert isinstance(branch, If)
    assert branch.comments == Comments((), "# ten")
    assert branch.orelse[0].comments == Comments(("# eleven", "# twelve", "# thirteen", "# fourteen"), "# fifteen")
    assert parse(text).tail == ("# end",)


def test_documentation_becomes_comment_lines_above_the_definition():
    f = parse('# above\n@func\ndef f(a):\n    """One.\n\n    Two # no comment."""\n    return a\n').funcs()["f"]
    assert f.comments.lead == ("# above", "# One.", "#", "# Two # no comment.")
    assert f.body == (Return(a),)


def test_a_hash_in_a_string_is_no_comment():
    f = parse(body("b(x='# no')  # yes")).funcs()["f"]
    assert f.body[0].comments.trail == "# yes"


# ---- errors
@pytest.mark.parametrize("h", HINTS, ids=lambda h: h.example)
def test_each_slip_gets_its_own_words(h):
    text = h.example if h.example.startswith("@") else body(h.example)
    with pytest.raises(CuirError) as caught:
        parse(text)
    assert (caught.value.diagnostics[0].code, caught.value.diagnostics[0].message) == (h.code, h.message)


@pytest.mark.parametrize(
    ("text", "code", "line", "column"),
    [
        (body("x = "), "P001", 3, 9),
        (body("x = a b"), "P001", 3, 11),
        (body("x = (a, b c)"), "P001", 3, 15),
        (body("x = a if b"), "P001", 3, 15),
        (body("x = a ? b"), "P002", 3, 11),
        (body("x = ä"), "P002", 3, 9),
        (body("if a:\nx = 1"), "P003", 4, 5),
        (body("x = 1\n  y = 2"), "P003", 4, 7),
        (body("if a:\n        x = 1\n    y = 2"), "P003", 5, 9),
        ("@func\ndef f(a):\n\treturn a\n", "P003", 3, 1),
        ("  A = 1\n", "P003", 1, 1),
        ("@func\ndef f(a):\n", "P003", 2, 10),
        (body("x = g(a,\ny = 2"), "P004", 3, 10),
        (body("x = (a]"), "P004", 3, 11),
        (body("x = a)"), "P004", 3, 10),
        ("@func\ndef f(a):\n    return a[1", "P004", 3, 13),
        (body("@func\ndef g(a):\n    return a"), "P005", 3, 5),
        (body("with a: x = 1"), "P005", 3, 10),
        (body("x = +a"), "P006", 3, 9),
        (body("x = a < b < c"), "P007", 3, 15),
        (body("if a\n    x = 1"), "P008", 3, 9),
        ("@func\ndef f(a)\n    return a\n", "P008", 2, 9),
        (body("a[0] = 1"), "P009", 3, 5),
        (body("a = b = 1"), "P009", 3, 11),
        (body("a, = b"), "P009", 3, 5),
        (body("for x, y in a:\n    z = 1"), "P009", 3, 9),
        (body("if a:\n    return 1"), "P010", 4, 9),
        ("@func\ndef f(a):\n    x = a\n", "P010", 3, 5),
        ("@func\ndef f(a):\n    return\n", "P010", 3, 5),
        ('@kernel(arch="sm_80")\ndef k():\n    return 1\n', "P010", 3, 5),
        ('@kernel(arch="sm_80")\ndef k(a):\n    x = 1\n', "P011", 2, 7),
        ('@kernel(arch="sm_80")\ndef k(a: Tensor[f32, M]):\n    x = 1\n', "P011", 2, 10),
        ('@kernel(arch="sm_80")\ndef k(a: Global[f32, M + 1]):\n    x = 1\n', "P011", 2, 22),
        ('@kernel(arch="sm_80")\ndef k(a: const):\n    x = 1\n', "P011", 2, 7),
        ('@kernel(arch="sm_80")\ndef k(*, a: f32):\n    x = 1\n', "P011", 2, 10),
        ('@kernel(arch="sm_80")\ndef k(a: f32 = 1.0):\n    x = 1\n', "P011", 2, 16),
        ("@func\ndef f(a: f32):\n    return a\n", "P011", 2, 7),
        ("@kernel\ndef k():\n    x = 1\n", "P012", 1, 1),
        ("@kernel(arch=sm_80)\ndef k():\n    x = 1\n", "P012", 1, 14),
        ('@kernel(arch="sm_80", cluster="2")\ndef k():\n    x = 1\n', "P012", 1, 31),
        ("@triton.jit\ndef k():\n    x = 1\n", "P012", 1, 1),
        ("def f(a):\n    return a\n", "P013", 1, 1),
        ("f(1)\n", "P013", 1, 1),
        (body("g(a=1, 2)"), "P014", 3, 12),
        (body("g(a=1, a=2)"), "P014", 3, 12),
        (body("x = a[1:]"), "P015", 3, 11),
        (body("x = a[0:4:2]"), "P015", 3, 14),
        (body("x = 1\n'text'"), "P016", 4, 5),
        (body('x = """text"""'), "P016", 3, 9),
        ("A = f16\n", "P017", 1, 5),
        ("A, B = 1, 2\n", "P017", 1, 1),
        ("A = 007\n", "P017", 1, 5),
        ("A = 1e999\n", "P017", 1, 5),
        (body("x = " + "-" * 500 + "a"), "P018", 3, 5),
        (body("x = " + "(" * 500 + "a" + ")" * 500 + ".T" * 200), "P018", 3, 5),
        (
            "@func\ndef f(a):\n" + "".join(f"{'    ' * (i + 1)}if a:\n" for i in range(50)) + "    " * 51 + "x = 1\n    return a\n",
            "P018",
            2,
            1,
        ),
        ("A = 1\nA = 2\n", "N001", 2, 1),
        ("@func\ndef f(a, a):\n    return a\n", "N002", 2, 10),
    ],
)
def test_errors_by_code_and_place(text, code, line, column):
    assert errors(text)[0] == (code, line, column)


def test_one_syntax_error_per_definition_and_all_errors_of_form():
    text = (
        "A = 1 +\n"
        + body("while a:\n    x = 1")
        + body("x = a < b < c\nb[0] = 1").replace("f(", "g(")
        + body("x = = 1").replace("f(", "h(")
    )
    assert [e[:2] for e in errors(text)] == [("P001", 1), ("P005", 4), ("P007", 9), ("P009", 10), ("P001", 14)]


def test_messages_speak_of_text_and_not_of_the_grammar():
    with pytest.raises(CuirError) as caught:
        parse(body("x = a b"))
    assert caught.value.diagnostics[0].message == "expected an operator, the end of the line or `,`, found `b`"


def test_lines_are_counted_from_the_first_line():
    with pytest.raises(CuirError) as caught:
        parse(body("x ="), "file.py", first_line=100)
    assert str(caught.value.diagnostics[0].span) == "file.py:102:8"
    assert "  102 |     x =" in str(caught.value)


# ---- anything at all
CHARACTERS = st.sampled_from(list("()[]{}:,.=+-*/%&|^~<>!@#\"'\\ \n\t;_a1")) | st.sampled_from(
    ["    ", "\n    ", "if ", "def ", "\r\n", "\0", "é", "@func"]
)


@examples(4)
@given(st.data())
def test_mutated_programs_parse_or_are_refused(data):
    text = data.draw(st.sampled_from(PROGRAMS)).read_text()
    start = data.draw(st.integers(0, len(text)))
    text = text[start : start + 1200] if data.draw(st.booleans()) else text
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        kind = data.draw(st.sampled_from(["delete", "insert", "swap", "copy"]))
        if kind == "delete":
            text = text[:at] + text[at + data.draw(st.integers(1, 9)) :]
        elif kind == "insert":
            text = text[:at] + data.draw(CHARACTERS) + text[at:]
        elif kind == "swap":
            text = text[:at] + text[at + 1 : at + 2] + text[at : at + 1] + text[at + 2 :]
        else:
            text = text[:at] + text[at : at + data.draw(st.integers(1, 40))] + text[at:]
    _parse_or_refuse(text)


@examples(4)
@given(st.lists(CHARACTERS | st.characters(), max_size=60).map("".join))
def test_any_text_parses_or_is_refused(text):
    _parse_or_refuse(text)


def _parse_or_refuse(text: str) -> None:
    try:
        parse(text)
    except CuirError as error:
        for diagnostic in error.diagnostics:
            assert diagnostic.span and diagnostic.render()
            assert 1 <= diagnostic.span.line <= text.count("\n") + 2


# ---- speed
def test_a_kernel_is_parsed_fast():
    text = (CORPUS / "kernels" / "flash_fwd_sm90.cuir").read_text()
    parse("A = 1\n")  # the grammar is built once a process
    assert idle_seconds(lambda turn: parse(f"{text}# {turn}\n")) < 0.4e-3 * len(text.splitlines())


def test_importing_the_package_does_not_load_the_parser():
    code = "import sys, cuir; sys.exit(any(m in sys.modules for m in ('lark', 'cuir.syntax.parser', 'litellm', 'cuda', 'hypothesis')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=CORPUS.parent).returncode == 0
