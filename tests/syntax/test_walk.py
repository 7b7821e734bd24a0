"""New trees out of old ones: what stays is shared, what is made anew keeps its place and what the checker wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.syntax.nodes import Assign, Binary, Call, ExprStmt, For, If, Keyword, Literal, Name, Node, Program, Stmt
from cuir.syntax.parser import parse
from cuir.syntax.printer import show
from cuir.syntax.walk import NamesRead, copy_tree, names_read, replace_node, rewrite, rewrite_block, substitute, walk, with_children

CORPUS = Path(__file__).parents[2] / "corpus"
FILES = sorted([*(CORPUS / "programs").glob("*.cuir"), *(CORPUS / "kernels").glob("*.cuir")])
TEXT = """\
@kernel(arch="sm_90a")
def k(X: Global[f16, M, 64], Y: Global[f16, M, 64], n: i32):
    s = shared(f16, [64, 64])
    full = mbarrier(1)
    with role("all", warps=1):
        full.wait(n % 2)
        for i in range(n):
            if i > 0:
                j = max(i, n) + 1
                full.arrive()
            else:
                j = n
            full.wait(j % 2)
        full.arrive()
"""


def program() -> Program:
    return parse(TEXT, "k.cuir")


def check_program() -> Checked:
    return check(program())


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_tree_in_which_nothing_changes_is_itself(path: Path) -> None:
    tree = parse(path.read_text(), path.name)
    assert rewrite(tree, lambda n: n) is tree
    assert substitute(tree, {"no such name": Literal(1)}) is tree
    for kernel in tree.kernels().values():
        assert rewrite_block(kernel.body, lambda s: s) is kernel.body


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_copy_is_equal_and_shares_no_node(path: Path) -> None:
    tree = parse(path.read_text(), path.name)
    copy = copy_tree(tree)
    assert copy == tree and show(copy) == show(tree)
    pairs = list(zip(walk(tree), walk(copy), strict=True))
    assert all(a is not b and a.span is b.span for a, b in pairs)


def test_children_come_first_and_what_stays_is_shared() -> None:
    observed: list[str] = []

    def double(node: Node) -> Node:
        if isinstance(node, Literal):
            observed.append(show(node))
            return Literal(node.value * 2, span=node.span)
        if isinstance(node, Binary):
            observed.append(show(node))
        return node

    left, right = Binary("-", Name("x"), Name("y")), Binary("*", Literal(3), Name("z"))
    result = rewrite(Binary("+", left, right), double)
    assert show(result) == "x - y + 6 * z" and result.left is left
    assert observed == ["x - y", "3", "6 * z", "x - y + 6 * z"]


def test_several_nodes_or_none_in_the_place_of_one() -> None:
    call = Call(Name("f"), (Name("a"), Name("b")), (Keyword("c", Literal(1)),))
    put: dict[str, tuple[Node, ...]] = {"a": (), "b": (Name("x"), Name("y"))}
    assert show(rewrite(call, lambda n: put.get(n.id, n) if isinstance(n, Name) else () if isinstance(n, Keyword) else n)) == "f(x, y)"


def test_statements_are_rewritten_from_the_inside_and_expressions_stay() -> None:
    (role,) = check_program().roles

    def without_arrivals(s: Stmt) -> Stmt | tuple[Stmt, ...]:
        if isinstance(s, If):
            return s.body
        return () if isinstance(s, ExprStmt) and show(s).strip() == "full.arrive()" else s

    result = rewrite_block(role.body, without_arrivals)
    assert [show(s).split("\n")[0] for s in result] == ["full.wait(n % 2)", "for i in range(n):"]
    loop, old = result[1], role.body[1]
    assert isinstance(loop, For) and isinstance(old, For) and loop.iter is old.iter
    assert [show(s).strip() for s in loop.body] == ["j = max(i, n) + 1", "full.wait(j % 2)"]


def test_names_are_replaced_but_not_what_is_called() -> None:
    tree = parse("@func\ndef f(x):\n    return max(x, g(max, y=x)) + max\n").funcs()["f"].body[0]
    assert (
        show(substitute(tree, {"max": Name("least"), "x": Binary("+", Name("x"), Literal(1))})).strip()
        == "return max(x + 1, g(least, y=x + 1)) + least"
    )


def test_names_of_shared_trees_are_names_read() -> None:
    names, tree = NamesRead(), program()
    assert all(names(n) == names_read(n) for n in walk(tree))


def test_a_name_for_a_name_stands_where_that_one_stood() -> None:
    tree = Binary("+", Name("a", span=program().span), Literal(1))
    result = substitute(tree, {"a": Name("b")})
    assert result == Binary("+", Name("b"), Literal(1)) and result.left.span is tree.left.span


def test_new_nodes_have_the_types_and_the_arguments_of_those_whose_place_they_take() -> None:
    kernel = check_program()
    for stmt in kernel.roles[0].body:
        new = substitute(stmt, {"n": Name("m")})
        for a, b in zip(walk(stmt), walk(new), strict=True):
            assert kernel.find_type(a) == kernel.find_type(b) and a.span is b.span
            old, bound = kernel.find_call(a), kernel.find_call(b)
            assert (old is None) == (bound is None)
            if bound is not None and old is not None:
                below = list(walk(b))
                assert bound.op is old.op and list(bound.args) == list(old.args)
                assert all(any(e is n for n in below) for e in bound.args.values())
        assert "n" not in names_read(new)


def test_a_call_with_fewer_operands_is_no_longer_bound() -> None:
    kernel = check_program()
    (call,) = (n for s in kernel.roles[0].body for n in walk(s) if isinstance(n, Call) and n.func == Name("max"))
    assert kernel.find_call(call) is not None
    assert with_children(call, lambda child: () if child is call.args[0] else child).bound is None
    assert replace(call).bound is None and replace(call).type is None


def test_an_edit_along_a_path() -> None:
    tree = program()
    path = (("items", 0), ("body", 2), ("body", 1), ("body", 0), ("body", 0))
    result = replace_node(tree, path, (Assign(("a",), Literal(1)), Assign(("b",), Literal(2))))
    assert "                a = 1\n                b = 2\n                full.arrive()" in show(result)
    assert replace_node(tree, path, ()).items[0].body[0] is tree.items[0].body[0]  # type: ignore[union-attr]
    assert "j = " not in show(replace_node(tree, path, ())).split("else")[0]
