"""Reading the flat kernel: operands of expressions, names that a statement reads and writes. Owns no meaning."""

from __future__ import annotations

from collections.abc import Iterator

from ..checking.checked import Checked, Role
from ..syntax.nodes import Assign, Attribute, Binary, Call, Expr, ExprStmt, For, If, IfExp, Literal, Name, Node, Stmt, Subscript, Unary
from ..syntax.types import Scalar, TileType
from ..syntax.walk import children

# What one lane can do for its whole worker: a role of such calls and scalars alone runs on one lane.
SINGLE_LANE = {"mbarrier.expect", "mbarrier.arrive", "mbarrier.wait", "copy_async.bulk", "store_async", "store_wait", "fence_async", "nbytes", "cta_rank",
               "min", "max", "abs", "cast", "cdiv", "exp2", "log2", "tanh"}  # fmt: skip

UNARY = {"-": "neg", "~": "~", "not": "not"}


def operation(checked: Checked, expr: Expr) -> tuple[str, list[Expr]]:
    """The table's name of an expression's operation and its operands; ("", []) for names and literals."""
    if isinstance(expr, Unary):
        return UNARY[expr.op], [expr.operand]
    if isinstance(expr, Binary):
        return expr.op, [expr.left, expr.right]
    if isinstance(expr, IfExp):
        return "ifexp", [expr.cond, expr.then, expr.other]
    if isinstance(expr, Call):
        bound = checked.call(expr)
        return bound.op.name, list(bound.args.values())
    if isinstance(expr, Attribute):
        return "T", [expr.value]
    if isinstance(expr, Subscript):
        kind = checked.type_of(expr)
        name = "gather" if isinstance(kind, TileType) else "element" if isinstance(kind, Scalar) else "view"
        return name, [expr]
    return "", []


def subexpressions(node: Node) -> Iterator[Node]:
    """The node and all below it, parents first; a called primitive's name is none."""
    yield node
    for child in children(node):
        if not (isinstance(node, Call) and child is node.func and isinstance(child, Name)):
            yield from subexpressions(child)


def names(expr: Node) -> set[str]:
    return {e.id for e in subexpressions(expr) if isinstance(e, Name)}


def own_expressions(stmt: Stmt) -> list[Expr]:
    """The expressions of a statement itself, not of the statements inside it."""
    if isinstance(stmt, (Assign, ExprStmt)):
        return [stmt.value]
    if isinstance(stmt, For):
        return list(stmt.iter.args) if isinstance(stmt.iter, Call) else [stmt.iter]
    if isinstance(stmt, If):
        return [stmt.cond]
    return []


def bodies(stmt: Stmt) -> list[tuple[Stmt, ...]]:
    if isinstance(stmt, For):
        return [stmt.body]
    if isinstance(stmt, If):
        return [stmt.body, stmt.orelse]
    return []


def statements(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """All statements of a block, nested ones too, in order of the text."""
    for stmt in body:
        yield stmt
        for inner in bodies(stmt):
            yield from statements(inner)


def called(checked: Checked, expr: Expr) -> str:
    """The table's name of a call, "" for anything else."""
    return checked.call(expr).op.name if isinstance(expr, Call) and checked.find_call(expr) is not None else ""


def calls(checked: Checked, body: tuple[Stmt, ...]) -> Iterator[Call]:
    """Every call of a primitive in a block."""
    for stmt in statements(body):
        for expr in own_expressions(stmt):
            for sub in subexpressions(expr):
                if isinstance(sub, Call) and checked.find_call(sub) is not None:
                    yield sub


def integer(expr: Expr | None) -> int | None:
    """The value of an integer literal, possibly negated."""
    if isinstance(expr, Literal) and expr.kind == "int":
        return int(expr.value)
    if isinstance(expr, Unary) and expr.op == "-":
        inner = integer(expr.operand)
        return None if inner is None else -inner
    return None


def single_lane(checked: Checked, role: Role) -> bool:
    """Whether a role runs on one lane of its warp."""
    return (
        role.threads == 32
        and checked.arch != "sm_80"
        and not any(isinstance(t, TileType) for t in role.locals.values())
        and all(checked.call(call).op.name in SINGLE_LANE for call in calls(checked, role.body))
    )
