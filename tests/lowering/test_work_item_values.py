"""Which scalars of a tile loop travel with the unit of work; and that a number means one value, whatever the role rebinds and wherever it branches."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

from hypothesis import given
from hypothesis import strategies as st

from cuir.checking.checked import Checked, Role
from cuir.checking.checker import check
from cuir.lowering.analysis import analyse
from cuir.lowering.flat import integer, operation
from cuir.lowering.work_item_values import BroadcastPlan, Numbering, Value, travelling
from cuir.syntax.nodes import Assign, Call, Expr, For, If, Literal, Name, Stmt
from cuir.syntax.parser import parse

HEAD = """\
@kernel(arch="sm_90a")
def k(I: Global[i32, M], J: Global[i32, M], F: Global[f32, M], n: i32, scale: f32, *, DYNAMIC: const = True):
    work = tiles(n, dynamic=DYNAMIC)
"""


def roles(*bodies: str, **consts: bool) -> Checked:
    """A kernel with a role of a warp for each body, of its loop over t."""
    text = HEAD
    for name, body in zip(("one", "two"), bodies, strict=False):
        lines = "".join(f"            {line}\n" for line in body.strip("\n").split("\n"))
        text += f'    with role("{name}", warps=1):\n        for t in work:\n{lines}'
    return check(parse(text, "k.cuir"), consts=consts)


def travels(*bodies: str) -> tuple[BroadcastPlan, list[str]]:
    checked = roles(*bodies)
    found = travelling(checked, list(checked.roles))
    return found, [found.anchors[v].targets[0] for v in found.values]


# ---- what travels
def test_a_division_travels_and_a_sum_does_not() -> None:
    assert travels("a = t // n\nb = t + n\nstore(I[a], b)")[1] == ["a"]


def test_what_nobody_reads_or_only_travelling_values_read_stays() -> None:
    found, names = travels("a = t // n\nb = a % 7\nstore(I[0], b)")
    assert names == ["b"]
    (part,) = found.parts.values()
    assert len(part.dead) == 1 and list(part.carried.values()) == [1]


def test_what_is_one_step_from_a_travelling_value_is_computed_where_it_is_needed() -> None:
    assert travels("a = t // n\nb = a + 1\nstore(I[a], b)")[1] == ["a"]
    assert travels("a = t // n\nb = a * 3 + 1\nstore(I[a], b)")[1] == ["a", "b"]


def test_what_is_the_same_for_all_units_stays() -> None:
    assert travels("a = n // 3\nb = M // 5 + a\nstore(I[a], b + t)")[1] == []


def test_equal_values_under_different_names_are_one() -> None:
    found, names = travels(
        "a = t // n\nstore(I[0], a)", "x = t\ny = x // n\nz = y\nfor i in range(3):\n    w = t // n\n    store(J[i], w + z)"
    )
    assert names == ["a"]
    assert sorted(found.parts["two"].carried.values()) == [1, 1]  # z and w; nobody reads y


def test_operands_in_another_order_or_of_another_dtype_are_other_values() -> None:
    assert travels("a = t // n\nb = n // t\nstore(I[a], b)")[1] == ["a", "b"]
    assert travels("a = t // n\nb = cast(t, f32) / cast(n, f32)\nstore(I[a], a)\nstore(F[0], b)")[1] == ["a", "b"]


def test_a_name_bound_again_is_its_new_value() -> None:
    found, names = travels("a = t // n\nstore(I[0], a)\na = t // 7\nstore(I[1], a)\na += n\nstore(I[2], a)")
    assert names == ["a", "a"]
    assert sorted(found.parts["one"].carried.values()) == [1, 2]


def test_a_value_of_the_last_round_is_not_the_unit_s() -> None:
    assert travels("store(I[1], 0)\na = t // n\nfor i in range(2):\n    b = a // 3\n    a = b + i\n    store(I[i], a)")[1] == ["a"]


def test_what_is_computed_under_a_condition_does_not_travel_but_meets_one_that_does() -> None:
    assert travels("if t > 3:\n    a = t // n\n    store(I[0], a)")[1] == []
    found, names = travels("if t > 3:\n    a = t // n\n    store(I[0], a)", "b = t // n\nstore(J[0], b)")
    assert names == ["b"] and list(found.parts["one"].carried.values()) == [1]


def test_elements_travel_if_the_kernel_never_writes_the_tensor() -> None:
    assert travels("a = J[t]\nstore(I[0], a)")[1] == ["a"]
    assert travels("a = I[t]\nstore(I[0], a)")[1] == []


def of_workers(body: str, workers: int = 2) -> BroadcastPlan:
    lines = "".join(f"            {line}\n" for line in body.split("\n"))
    checked = check(parse(HEAD + f'    with role("one", warps={workers}) as w:\n        for t in work:\n{lines}'))
    return travelling(checked, list(checked.roles))


def test_a_value_that_depends_on_the_worker_travels_for_each() -> None:
    found = of_workers("a = (t + w) // n\nb = t // n\nstore(I[a], b)")
    assert [found.table[v].copies for v in found.values] == [2, 1]
    assert found.nwords == 4 and sorted(found.words.values()) == [1, 3]
    assert found.parts["one"].own == {1: 2}


def test_a_cheap_value_does_not_travel_for_each_worker() -> None:
    assert of_workers("a = t * 7 + w\nstore(I[a], a)").values == ()
    assert of_workers("a = t * 7 + w\nstore(I[a], a)", 1).nwords == 2  # a worker alone is no other


def test_a_slot_has_room_for_23_values() -> None:
    lines = [f"a{i} = t // {2 * i + 3}\nstore(I[{i}], a{i})" for i in range(40)]
    assert len(travels("\n".join(lines))[1]) == 23


def test_words_that_branches_follow_from() -> None:
    found, names = travels("a = t // n\nb = t % n\nc = b\nif c > 2:\n    store(I[0], a)")
    assert names == ["a", "b"] and found.parts["one"].uniform == (2,)


# ---- a number means one value
OPS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod, "min": min, "max": max,
    "<": operator.lt, "==": operator.eq,
}  # fmt: skip


@st.composite
def bodies(draw: st.DrawFn) -> str:
    names = ["a", "b", "c"]
    lines: list[str] = ["a, b, c = t, n, t // 3"]

    def atom() -> str:
        return draw(st.sampled_from([*names, "t", "w", "n", "2", "5"]))

    def value() -> str:
        op = draw(st.sampled_from(["+", "-", "*", "//", "%", "min", "max", "copy", "choice"]))
        x, y = atom(), atom()
        if op == "copy":
            return x
        if op == "choice":
            return f"{x} if {y} < {atom()} else {atom()}"
        if op in ("//", "%"):
            return f"{x} {op} {draw(st.sampled_from(['3', '4', '7']))}"
        return f"{op}({x}, {y})" if op in ("min", "max") else f"{x} {op} {y}"

    def block(depth: int, indent: str) -> None:
        for _ in range(draw(st.integers(1, 4))):
            kind = draw(st.sampled_from(["assign", "assign", "assign", "if", "for"])) if depth else "assign"
            if kind == "assign":
                lines.append(f"{indent}{draw(st.sampled_from(names))} = {value()}")
            elif kind == "if":
                lines.append(f"{indent}if {atom()} < {atom()}:")
                block(depth - 1, indent + "    ")
                if draw(st.booleans()):
                    lines.append(f"{indent}else:")
                    block(depth - 1, indent + "    ")
            else:
                lines.append(f"{indent}for i in range({draw(st.integers(0, 3))}):")
                block(depth - 1, indent + "    ")

    block(2, "")
    return "\n".join([*lines, "store(I[0], a + b + c)"])


def evaluate(checked: Checked, expr: Expr, name: Callable[[str], int]) -> int:
    if isinstance(expr, Literal):
        return int(expr.value)
    if isinstance(expr, Name):
        return name(expr.id)
    op, args = operation(checked, expr)
    if op == "ifexp":
        return evaluate(checked, args[1] if evaluate(checked, args[0], name) else args[2], name)
    values = [evaluate(checked, a, name) for a in args]
    return OPS[op](*values)


def meaning(table: Mapping[int, Value], number: int, frame: Mapping[str, int], t: int, w: int) -> int:
    v = table[number]
    if v.expr is None:
        return t if v.of_unit else w
    if not v.op:
        return int(v.expr.value) if isinstance(v.expr, Literal) else frame[v.expr.id]  # type: ignore[attr-defined]
    values = [meaning(table, v.operands[id(a)], frame, t, w) for a in v.args]
    return int(values[1] if values[0] else values[2]) if v.op == "ifexp" else OPS[v.op](*values)


@given(bodies(), st.integers(0, 50), st.integers(0, 2), st.integers(1, 9))
def test_an_assignment_gives_what_its_number_means_whenever_it_runs(body: str, t: int, w: int, n: int) -> None:
    lines = "".join(f"            {line}\n" for line in body.split("\n"))
    checked = check(parse(HEAD + f'    with role("one", warps=3) as w:\n        for t in work:\n{lines}'))
    (role,) = checked.roles
    numbering = Numbering(checked)
    numbering.role(role, analyse(checked, role))
    recorded, frame, env = numbering.recorded["one"], {"n": n}, {"t": t, "w": w}

    def run(block: tuple[Stmt, ...]) -> None:
        for stmt in block:
            if isinstance(stmt, Assign):
                env[stmt.targets[0]] = evaluate(checked, stmt.value, lambda x: env[x] if x in env else frame[x])
                if id(stmt) in recorded:
                    assert env[stmt.targets[0]] == meaning(numbering.table, recorded[id(stmt)][1], frame, t, w)
            elif isinstance(stmt, If):
                run(stmt.body if evaluate(checked, stmt.cond, lambda x: env[x] if x in env else frame[x]) else stmt.orelse)
            elif isinstance(stmt, For):
                assert isinstance(stmt.iter, Call)
                for i in range(integer(stmt.iter.args[-1]) or 0):
                    env[stmt.target] = i
                    run(stmt.body)

    run(loop_of(role).body)
    assert recorded and all(
        meaning(numbering.table, numbering.recorded["one"][id(s)][1], frame, t, w) is not None for s in numbering.anchors.values()
    )


def loop_of(role: Role) -> For:
    (loop,) = [s for s in role.body if isinstance(s, For)]
    return loop
