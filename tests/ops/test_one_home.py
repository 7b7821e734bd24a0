"""One home for each primitive: its name stands in cuir/ops, in its twins (what it does in interp/ops and the evaluator, what it is printed as), and nowhere else. Everybody
else asks traits and effects, and makes operations with what `ops/build` and `lowering/ir/make` have."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuir.ops import OPERATORS, TABLE

ROOT = Path(__file__).parent.parent.parent
HOMES = (
    "cuir/ops/",
    "cuir/interp/ops/",
    "cuir/lowering/cuda/operator_text.py",
    "cuir/lowering/cuda/primitives/",
    "cuir/lowering/targets/",
    "cuir/lowering/ir/evaluate_operations.py",
)
MAKERS = (
    "cuir/lowering/ir/constructors.py",
    "cuir/lowering/ir/machine_ops.py",
    "cuir/lowering/ir/machine_tiles.py",
)  # that take entries by words: elsewhere that would be a name too
ROOMS = sorted({path.relative_to(ROOT / "cuir").parts[0] for path in (ROOT / "cuir").rglob("*.py")})
ABOVE = ("cuir/syntax/", "cuir/text/")  # rooms above the table: how the operators are written is theirs
# opcodes of PTX share words with primitives: there only what refers to the table is a primitive's name
PTX = "cuir/ptx/", "cuir/mutation/ptx_mutants.py"
NAMES = {*TABLE, *OPERATORS, *(op.written for op in (*TABLE.values(), *OPERATORS.values()))}
SIGNS = {name for name in NAMES if not name[0].isalpha()}
WORDS = {
    "abs",
    "and",
    "cast",
    "cols",
    "element",
    "floor",
    "full",
    "gather",
    "load",
    "max",
    "min",
    "neg",
    "not",
    "or",
    "role",
    "rows",
    "shared",
    "store",
    "sync",
    "T",
    "tiles",
    "view",
    "where",
    "zeros",
}
PRIMITIVE = {"op", "sign", "func", "root", "primitive", "called", "written"}  # variables and attributes that hold what a node does
TRANSPOSE = "T"  # also what kernels call their dtype
CALLED = {"name", "word", "attr", "id", "function"}  # those that may hold it
TABLES = {"TABLE", "OPERATORS", "WRITTEN", "RUNS"}
NAMING_FUNCTIONS = {"Name", "apply", "perform", "entry"}  # functions of a primitive's name


def last(e: ast.expr) -> str:
    """The last word of `a.b.c`, of `f(...)` and of `x[...]`."""
    while isinstance(e, (ast.Call, ast.Subscript)):
        e = e.func if isinstance(e, ast.Call) else e.value
    return e.attr if isinstance(e, ast.Attribute) else e.id if isinstance(e, ast.Name) else ""


def words(e: ast.AST | None) -> list[str]:
    """The strings that an expression is, or that a tuple, list or set written there holds."""
    if isinstance(e, ast.Constant) and isinstance(e.value, str):
        return [e.value]
    return [w for x in e.elts for w in words(x)] if isinstance(e, (ast.Tuple, ast.List, ast.Set)) else []


def list_compared(node: ast.Compare) -> list[str]:
    sides = [node.left, *node.comparators]
    results = [w for side in sides for w in words(side) if w in NAMES]
    rest = {last(side) for side in sides}
    substring = isinstance(node.ops[0], (ast.In, ast.NotIn)) and isinstance(node.left, ast.Constant)  # "/" in a path
    if "attr" not in rest:
        results = [w for w in results if w != TRANSPOSE]
    if rest & PRIMITIVE or (rest & CALLED and not substring):
        return results
    return [w for w in results if w not in WORDS | SIGNS]


def keys(result: list[ast.expr | None]) -> list[str]:
    """The names among the keys of a dict or the items of a set. Ordinary words are none if there are keys of other kinds, or if it is the only key."""
    messages = [w for e in result for w in words(e)]
    alone = (
        len(messages) == len(result) and all(w in NAMES for w in messages) and (len(messages) > 1 or messages[0] in SIGNS)
        if messages
        else False
    )
    return [w for w in messages if w in NAMES and (alone or w not in WORDS | SIGNS)]


def refers_to_table(node: ast.AST) -> bool:
    """Whether a node looks a name up in a table of primitives, or makes an operation of a name."""
    if isinstance(node, ast.Subscript):
        return last(node.value) in TABLES
    return isinstance(node, ast.Call) and (
        last(node.func) in NAMING_FUNCTIONS or (isinstance(node.func, ast.Attribute) and last(node.func.value) in TABLES)
    )


def uses(tree: ast.AST, foreign: bool = False) -> Iterator[tuple[int, str]]:
    """Lines at which a primitive is known by its name; foreign: the tree is about another language with such words."""
    for node in ast.walk(tree):
        results: list[str] = []
        if foreign and not refers_to_table(node):
            continue
        if isinstance(node, ast.Compare):
            results = list_compared(node)
        elif isinstance(node, ast.Dict):
            results = keys(node.keys)
        elif isinstance(node, ast.Set):
            results = keys(list(node.elts))
        elif isinstance(node, (ast.Tuple, ast.List)) and len(node.elts) > 1:
            messages = [e.value for e in node.elts if isinstance(e, ast.Constant)]
            results = [w for w in messages if w in NAMES] if len(messages) == len(node.elts) and all(w in NAMES for w in messages) else []
        elif isinstance(node, ast.Call) and last(node.func) in NAMING_FUNCTIONS and node.args:
            results = [w for w in words(node.args[0]) if w in NAMES]
        elif isinstance(node, ast.Subscript) or (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            table, key = (node.value, node.slice) if isinstance(node, ast.Subscript) else (node.func.value, node.args[0])  # type: ignore[attr-defined]
            begins = isinstance(node, ast.Call) and last(node.func) in ("startswith", "endswith")  # op.name.startswith("mbarrier")
            results = [w for w in words(key) if w in NAMES and (last(table) in TABLES or (begins and w not in SIGNS))]
        elif isinstance(node, ast.MatchValue):
            results = [w for w in words(node.value) if w in NAMES]
        yield from ((node.lineno, w) for w in results)  # type: ignore[attr-defined]


def files(room: str, word: str = "") -> Iterator[tuple[str, ast.AST]]:
    """The files of a room that are no home, by their paths; only those with a word, if one is given."""
    for path in sorted((ROOT / "cuir" / room).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(HOMES) and word in (text := path.read_text(encoding="utf-8")):
            yield name, ast.parse(text)


@pytest.mark.parametrize("room", ROOMS)
def test_a_primitive_is_known_by_its_name_at_home_alone(room: str) -> None:
    """No file outside of the homes compares with the name or the spelling of a primitive, has it as a key of a dict or an item of a set or a tuple, looks it up in a table of
    primitives, or makes a `Name(...)` or an operation of the tile IR of it.

    Words that are ordinary English too, and signs, are names of primitives where they are compared with what a node does (`e.op`, `call.func.id`, `op.name`, `word`),
    where all keys of a dict or all items of a set or of a tuple are names, where they are looked up in a table of primitives, and in a `Name(...)`: `level == "full"` and a
    report's `"rows"` are none. Not meant are arguments (`handles("exp2")` enters a function of PyTorch's), signs given to a `Binary` or `Unary`, whose syntax they
    are, and texts of programs.
    """
    wrong = []
    for name, tree in files(room):
        wrong += [
            f"{name}:{line} {word}"
            for line, word in uses(tree, name.startswith(PTX))
            if not (name.startswith(ABOVE) and word in SIGNS | WORDS)
        ]
    assert not wrong


@pytest.mark.parametrize("text", ['TABLE["max"]', 'OPERATORS.get("+")', 'apply("max", x)'])
def test_a_reference_to_the_table_is_found_also_where_opcodes_have_such_names(text: str) -> None:
    assert list(uses(ast.parse(text), foreign=True))
    assert not list(uses(ast.parse('opcode == "max"'), foreign=True))


def takes_entries_by_words(tree: ast.AST) -> bool:
    """Return whether a file takes entries by words."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return any(
        (node.module or "").endswith("ops.entries") or ((node.module or "").endswith("ops") and "entries" in {a.name for a in node.names})
        for node in imports
    )


def test_entries_by_words_are_for_making_alone() -> None:
    """`op.entry is entries.ADD` would be a name in other letters."""
    takers = (name for room in ROOMS for name, tree in files(room, "entries") if takes_entries_by_words(tree))
    assert sorted(takers) == sorted(MAKERS)
    for name in MAKERS:
        tree = ast.parse((ROOT / name).read_text(encoding="utf-8"))
        sides = [side for node in ast.walk(tree) if isinstance(node, ast.Compare) for side in (node.left, *node.comparators)]
        assert not [ast.unparse(side) for side in sides if "entries." in ast.unparse(side)]


@pytest.mark.parametrize(
    "use",
    [
        'e.attr == "T"',
        'e.op == "+"',
        'e.op in ("and", "or")',
        '"//" == sign',
        'call.func.id == "cast"',
        'call.func == Name("tiles")',
        'op.name != "mbarrier.expect"',
        'b.kind == "named_barrier"',
        'word in ("shared", "mbarrier")',
        '{"-": "neg"}',
        '{"min": 0, "max": 0}',
        '{"<", "<="}',
        'TABLE["cta_rank"]',
        'OPERATORS["+"]',
        'op.name.startswith("mbarrier")',
        'COMPARISONS = ("<", "<=")',
        'ELSEWHERE = ("load", "zeros")',
        'TABLE.get("where")',
        'RUNS["shared"]',
        'Name("where")',
        'name == "where"',
        'root(n.func) in ("rows", "cols")',
        'COSTS["exp2"] if x == "exp2" else 1',
        'ops.apply("+", [x, y], t)',
        'perform("load", {})',
        'ops.entry("mbarrier").traits',
        'op.op in ("rows", "cols")',
        'value.owner.op == "full"',
        'a.op != "*"',
    ],
)
def test_the_rule_sees_a_use(use: str) -> None:
    assert list(uses(ast.parse(use)))


@pytest.mark.parametrize(
    "use",
    [
        'level == "full"',
        '{"rows": rows, "ok": True}',
        '{"rows": rows}',
        'handles("exp2")',
        '"/" in path.name',
        'Binary("+", x, y)',
        'consts["T"]',
        'name not in ("T", "D")',
        'kind == "store"',
        'step.kind == "wait"',
        '{"+": "green", "-": "red", "@": "cyan"}',
        'line.startswith("-")',
        't.layout.data in ("full", "columns")',
        't.layout.data == "rows"',
        'of.extremum == "min"',
        "apply(name, values)",
    ],
)
def test_the_rule_lets_words_be(use: str) -> None:
    assert not list(uses(ast.parse(use)))
