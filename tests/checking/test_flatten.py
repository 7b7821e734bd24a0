"""Inlining: scoping, tuples, laziness, constants, order of effects; and that it keeps the meaning of scalar programs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuir.checking.checker import check
from cuir.syntax.nodes import Assign, Binary, Call, Expr, ExprStmt, For, If, IfExp, Literal, Name, Stmt, Unary
from cuir.syntax.parser import parse
from cuir.syntax.printer import show
from cuir.text.diagnostics import CuirError

HEAD = """
@kernel(arch="sm_80")
def k(X: Global[i32, N], a: i32, b: i32, *, C: const = 3):
    with role("all", warps=1) as w:
"""


def flat(body: str, funcs: str = "") -> tuple[Stmt, ...]:
    text = funcs + HEAD + "\n".join("        " + line for line in body.strip().split("\n")) + "\n"
    return check(parse(text)).roles[0].body


def run_and_store(body: str, funcs: str = "", **env: int) -> list[int]:
    """Runs flat scalar code by a few lines of Python; the values stored."""
    out: list[int] = []
    execute(flat(body, funcs), dict(env), out)
    return out


def execute(body: tuple[Stmt, ...], env: dict[str, int], out: list[int]) -> None:
    for s in body:
        if isinstance(s, Assign):
            env[s.targets[0]] = value(s.value, env)
        elif isinstance(s, If):
            execute(s.body if value(s.cond, env) else s.orelse, env, out)
        elif isinstance(s, For):
            assert isinstance(s.iter, Call)
            for i in range(*(value(x, env) for x in s.iter.args)):
                env[s.target] = i
                execute(s.body, env, out)
        elif isinstance(s, ExprStmt):
            assert isinstance(s.value, Call)
            out.append(value(s.value.args[1], env))


OPS = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "<": lambda x, y: x < y,
    "==": lambda x, y: x == y,
    ">": lambda x, y: x > y,
    "//": lambda x, y: x // y,
    "%": lambda x, y: x % y,
}


def value(e: Expr, env: dict[str, int]) -> int:
    if isinstance(e, Name):
        return env[e.id]
    if isinstance(e, Literal):
        return e.value  # type: ignore[return-value]
    if isinstance(e, Unary):
        return -value(e.operand, env) if e.op == "-" else not value(e.operand, env)
    if isinstance(e, Binary) and e.op in ("and", "or"):
        remaining = value(e.left, env)
        return value(e.right, env) if bool(remaining) == (e.op == "and") else remaining
    if isinstance(e, Binary):
        return OPS[e.op](value(e.left, env), value(e.right, env))
    assert isinstance(e, IfExp), e
    return value(e.then if value(e.cond, env) else e.other, env)


def test_swap_is_parallel() -> None:
    assert run_and_store("x, y = a, b\nx, y = y, x\nstore(X[0], x)\nstore(X[0], y)", a=1, b=2) == [2, 1]


def test_tuples_are_taken_apart() -> None:
    funcs = "@func\ndef f(x):\n    return (x, x + 1), x * 2\n"
    assert run_and_store("p, q = f(a)\nu, v = p\np = v, u\nstore(X[0], p[0] * 10 + p[1] + q)", funcs, a=5) == [6 * 10 + 5 + 10]


def test_arguments_are_values_and_rebinding_is_local() -> None:
    funcs = "@func\ndef f(x):\n    x += 1\n    x = x * 2\n    return x\n"
    assert run_and_store("x = a\ny = f(x)\nstore(X[0], x)\nstore(X[0], y)", funcs, a=4) == [4, 10]


def test_returned_text_is_read_before_the_target_is_written() -> None:
    funcs = "@func\ndef f(x, y):\n    return y, x\n"
    assert run_and_store("x, y = a, b\nx, y = f(x, y)\nstore(X[0], x)\nstore(X[0], y)", funcs, a=1, b=2) == [2, 1]


def test_lazy_sides_stay_lazy() -> None:
    funcs = "@func\ndef f(x):\n    y = 100 // x\n    return y + 1\n"
    body = "r = f(a) if a > 0 else 0\nif a > 0 and f(a) > 5:\n    r = r + 1000\nstore(X[0], r)"
    assert run_and_store(body, funcs, a=0) == [0]
    assert run_and_store(body, funcs, a=10) == [1011]


def test_const_branches_vanish() -> None:
    assert all(not isinstance(s, If) for s in flat("if C == 3 and (True or w >= 0):\n    store(X[0], a)\nelse:\n    store(X[0], b)"))


def test_a_const_ends_with_its_block() -> None:
    assert run_and_store("x = 0\nif a > 0:\n    y = 7\n    x = y + 1\nstore(X[0], x)", a=1) == [8]


def test_effects_keep_their_order() -> None:
    funcs = "@func\ndef f(x):\n    store(X[0], x)\n    return x\n"
    assert run_and_store("y = f(a) + f(b)\nstore(X[0], y)", funcs, a=1, b=2) == [1, 2, 3]


@pytest.mark.parametrize(
    ("funcs", "body", "code"),
    [
        ("@func\ndef f(x):\n    return f(x)\n", "store(X[0], f(a))", "N106"),
        ("@func\ndef f(x):\n    return x\n", "store(X[0], f(a, b))", "N108"),
        ("@func\ndef f(x):\n    return x + w\n", "store(X[0], f(a))", "N101"),
        ("@func\ndef f(x):\n    return x\n", "store(X[0], f(y=a))", "N107"),
        ("@func\ndef f(x):\n    return x, x\n", "store(X[0], f(a) + 1)", "T153"),
        ("", "store(X[0], _)", "N102"),
    ],
)
def test_errors(funcs: str, body: str, code: str) -> None:
    with pytest.raises(CuirError) as caught:
        flat(body, funcs)
    assert code in [d.code for d in caught.value.diagnostics]


@st.composite
def scalar_code(draw: st.DrawFn) -> tuple[str, str]:
    """A @func and statements of scalar code, as text that Python reads too."""
    names = ["x", "y", "z"]
    leaf = st.sampled_from(names) | st.integers(0, 5).map(str)
    expr = st.recursive(
        leaf,
        lambda e: (
            st.tuples(e, st.sampled_from(["+", "-", "*"]), e).map(lambda t: f"({t[0]} {t[1]} {t[2]})")
            | st.tuples(e, e).map(lambda t: f"(f({t[0]}, {t[1]}))[0]")
            | st.tuples(e, e, e, e).map(lambda t: f"({t[0]} if {t[1]} < {t[2]} else {t[3]})")
        ),
        max_leaves=5,
    )
    lines = []
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.integers(0, 3))
        if kind == 0:
            lines.append(f"{draw(st.sampled_from(names))} = {draw(expr)}")
        elif kind == 1:
            lines.append(f"x, y = {draw(expr)}, {draw(expr)}")
        elif kind == 2:
            lines += [
                f"if {draw(expr)} > {draw(expr)}:",
                f"    {draw(st.sampled_from(names))} += {draw(expr)}",
                "else:",
                f"    y, z = f({draw(expr)}, y)",
            ]
        else:
            lines += ["for i in range(3):", f"    x = x + i * {draw(leaf)}", f"    z, y = f(z, {draw(leaf)})"]
    func = f"def f(p, q):\n    r = p - q\n    if r < 0:\n        p = {draw(st.sampled_from(['q', 'r', '2']))}\n    r += p\n    return r, (q + p)\n"
    return func, "\n".join(lines)


@given(scalar_code(), st.integers(-9, 9), st.integers(-9, 9))
def test_flat_code_means_what_the_text_says(code: tuple[str, str], a: int, b: int) -> None:
    func, body = code
    body = f"x, y, z = a, b, a - b\n{body}\nstore(X[0], x)\nstore(X[0], y)\nstore(X[0], z)"
    expected: list[int] = []
    env = {"a": a, "b": b, "store": lambda _, v: expected.append(v), "X": {0: 0}}
    exec(func + body, env)  # our own text, made above; the project itself executes none
    assert run_and_store(body, "@func\n" + func, a=a, b=b) == expected


def test_a_cta_alone_has_rank_0() -> None:
    text = """
@kernel(arch="sm_90a", cluster=C)
def k(X: Global[i32, N], *, C: const = 1):
    first = cta_rank() * 64
    with role("all", warps=1):
        if cta_rank() == 0:
            store(X[first], 1)
        else:
            store(X[first], 2)
"""
    (alone,) = check(parse(text)).roles[0].body
    assert show(alone) == "store(X[0], 1)\n"
    (statement,) = check(parse(text), consts={"C": 2}).roles[0].body
    assert isinstance(statement, If) and show(statement.cond) == "cta_rank() == 0"


def test_a_branch_that_consts_decide_against_binds_nothing() -> None:
    """So a name bound once in the branch that is taken is known, and a loop of no turns leaves no trace."""
    text = """
if C > 2:
    skip = 0
else:
    skip = a
    skip = skip // 2
x = b
for i in range(skip):
    x = x + i
store(X[0], x + skip)
"""
    assert not any(isinstance(s, For) for s in flat(text)) and run_and_store(text, a=5, b=7) == [7]
    selected = text.replace("C > 2", "C > 3")
    assert any(isinstance(s, For) for s in flat(selected)) and run_and_store(selected, a=5, b=7) == [7 + 0 + 1 + 2]
    assert run_and_store(text.replace("C > 2", "a > 2"), a=5, b=7) == [7]  # for the run to decide


def test_a_constant_on_the_right_decides_too() -> None:
    assert flat("if a < b or C > 2:\n    store(X[0], 1)\nelse:\n    store(X[0], 2)") == flat("store(X[0], 1)")
    assert flat("if a < b and C > 3:\n    store(X[0], 1)\nelse:\n    store(X[0], 2)") == flat("store(X[0], 2)")
    assert (
        flat("if a < b or C > 3:\n    store(X[0], 1)")
        == flat("if a < b:\n    store(X[0], 1)")
        == flat("if a < b and C > 2:\n    store(X[0], 1)")
    )
    for remaining in ("a // b > 0", "X[a] > 0"):  # what may fail is worked out
        assert any(isinstance(s, If) for s in flat(f"if {remaining} or C > 2:\n    store(X[0], 1)"))


@pytest.mark.parametrize("ends", ["0", "-1", "3, 3", "C, 2"])
def test_loops_of_no_turns_are_left_out(ends: str) -> None:
    assert [type(s) for s in flat(f"for i in range({ends}):\n    store(X[0], i)\nstore(X[0], 9)")] == [ExprStmt]


def test_a_name_that_the_body_binds_is_no_const_of_its_conditions() -> None:
    text = """
C2 = a
if C2 > 2:
    y = 1
else:
    y = 2
store(X[0], y)
"""
    for a in (1, 3):
        assert run_and_store(text, a=a, b=0) == [1 if a > 2 else 2]
    outer = "def f(C):\n    if C > 2:\n        y = 1\n    else:\n        y = 2\n    return y\n"
    for a in (1, 3):  # a parameter hides the const of its name
        assert run_and_store("store(X[0], f(a))", f"@func\n{outer}", a=a, b=0) == [1 if a > 2 else 2]


@st.composite
def draw_decided_code(draw: st.DrawFn) -> str:
    """`u` and `v` bound in branches that the const C = 3 decides, in loops or not, rebound by some; counts of loops that are known, or not, or 0."""
    value = st.sampled_from(["0", "1", "2", "a % 3", "C - 3", "C - 1"])
    lines: list[str] = []
    inside = draw(st.booleans())
    for name in ("u", "v"):
        cond = draw(st.sampled_from(["C > 2", "C > 3", "C == 3 and C > 2", "not C > 2", "a > 0"]))
        lines += [f"if {cond}:", f"    {name} = {draw(value)}"]
        if draw(st.booleans()):
            lines += [f"    {name} = {name} + {draw(value)}"]
        lines += ["else:", f"    {name} = {draw(value)}"]
        if draw(st.booleans()):
            lines += [f"    for j in range({name}):", f"        {name} = {draw(value)}"]
    for _ in range(draw(st.integers(1, 3))):
        count = draw(st.sampled_from(["u", "v", "u - 1", "C - 3", "2", "1, u"]))
        lines += [f"for j in range({count}):", f"    x = x + j * {draw(st.sampled_from(['u', 'v', '2']))} + 1"]
        if draw(st.booleans()):
            lines += [f"    if {draw(st.sampled_from(['u > 0', 'C > 3', 'j > 0']))}:", f"        x = x + {draw(value)}"]
    lines += ["x = x + 10 * u + 100 * v"]
    return "\n".join(["for i in range(2):", *(f"    {line}" for line in lines)] if inside else lines)


@given(draw_decided_code(), st.integers(-5, 9))
def test_what_consts_decide_means_what_the_text_says(body: str, a: int) -> None:
    body = f"x = a\n{body}\nstore(X[0], x)"
    expected: list[int] = []
    exec(body, {"a": a, "C": 3, "store": lambda _, v: expected.append(v), "X": {0: 0}})  # our own text
    assert run_and_store(body, a=a) == expected
