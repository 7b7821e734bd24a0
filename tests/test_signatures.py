"""Limits of signatures: how many parameters a function takes, how often `Any` stands in place of a type, and no function of a circle set from outside."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_architecture import ROOT, name_of, nodes, sources

PARAMETERS = 8
ANY = 15  # in 1,000 lines of a folder
# Signatures that others decide: packages that call them, and kernels whose parameters a specification names.
DECIDED_BY_OTHERS = {
    "cuir/integrations/transformers.py:mask_for",
    "cuir/integrations/vllm.py:__init__",
    "cuir/integrations/vllm.py:forward",
    "cuir/integrations/vllm.py:supports_combination",
    "cuir/integrations/vllm_mla.py:__init__",
    "cuir/spec/gradients.py:reference",
    "cuir/attn/verification/serving_specifications.py:reference",
}
# Folders that do not hold the limits yet: their functions with too many parameters, `Any` in 1,000 lines, and setters. Numbers only fall.
TOO_MANY_PARAMETERS = {"cuir/attn/api": 10, "cuir/attn/kernels": 3, "cuir/attn/serving": 17}
TOO_OFTEN_ANY = {"cuir/attn/api": 99, "cuir/attn/serving": 65}
SETTERS = {"cuir/attn/api": 2}
SHOWN_TO_MODELS = "llm/examples"  # answers, as models write them


def count_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the parameters of a function, without self and cls, `*args` and `**kwargs`."""
    positional = [*function.args.posonlyargs, *function.args.args]
    return len([p for p in positional if p.arg not in ("self", "cls")]) + len(function.args.kwonlyargs)


def list_public_names() -> set[str]:
    """Return the names that the package, its calls over several GPUs and its tools for tests export."""
    exported = set[str]()
    for path in (ROOT / f"cuir/{folder}__init__.py" for folder in ("", "flex/", "distributed/", "testing/")):
        for node in nodes(path)[0].body:
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
                exported |= set(ast.literal_eval(node.value))
    return exported


def list_long_signatures() -> Iterator[tuple[Path, str]]:
    """Yield file and name of each function with too many parameters that is neither public, a command, nor decided by others."""
    public = list_public_names()
    for path in sources("cuir", "llm"):
        tree, every = nodes(path)
        is_command = path.parent == ROOT / "cuir/cli/commands"
        open_ones = {
            id(n) for n in tree.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_") and (n.name in public or is_command)
        }
        functions = [n for n in every if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)) and count_parameters(n) > PARAMETERS]
        for node in functions:
            if id(node) not in open_ones and f"{name_of(path)}:{node.name}" not in DECIDED_BY_OTHERS:
                yield path, node.name


def test_what_the_package_exports_is_found() -> None:
    assert {"flex_attention", "bridge", "verify", "run", "assert_attention_matches"} <= list_public_names()


def test_functions_take_few_parameters() -> None:
    """More travel as a request: a frozen dataclass whose fields have names at every caller."""
    results: dict[str, list[str]] = {}
    for path, name in list_long_signatures():
        results.setdefault(name_of(path.parent), []).append(f"{path.name}:{name}")
    too_many = {folder: names for folder, names in results.items() if len(names) > TOO_MANY_PARAMETERS.get(folder, 0)}
    assert not too_many, f"functions with more than {PARAMETERS} parameters"


def test_signatures_that_others_decide_are_there() -> None:
    places = {
        f"{name_of(p)}:{n.name}"
        for p in sources("cuir")
        for n in nodes(p)[1]
        if isinstance(n, ast.FunctionDef) and count_parameters(n) > PARAMETERS
    }
    assert places >= DECIDED_BY_OTHERS, "leave out those that are gone"


def test_any_is_rare() -> None:
    """`object` is for what may be anything, a protocol for what has some methods, a typed dictionary for rows of data."""
    uses, lines = dict[str, int](), dict[str, int]()
    for path in sources("cuir", "llm"):
        folder = name_of(path.parent)
        lines[folder] = lines.get(folder, 0) + len(path.read_text(encoding="utf-8").splitlines())
        uses[folder] = uses.get(folder, 0) + sum(isinstance(n, ast.Name) and n.id == "Any" for n in nodes(path)[1])
    often = {
        folder: f"{1000 * n / lines[folder]:.0f}"
        for folder, n in uses.items()
        if folder != SHOWN_TO_MODELS and n > 1 and 1000 * n > TOO_OFTEN_ANY.get(folder, ANY) * lines[folder]
    }
    assert not often, f"`Any` stands more than {ANY} times in 1,000 lines"


def list_setters(tree: ast.Module) -> list[str]:
    """Return functions that put their own parameter into a list of the module: the way to call what cannot be imported."""
    module_names = {
        t.id
        for n in tree.body
        if isinstance(n, (ast.Assign, ast.AnnAssign))
        for t in ast.walk(n)
        if isinstance(t, ast.Name) and re.match(r"_*[A-Z]", t.id)
    }
    return [
        f.name
        for f in tree.body
        if isinstance(f, ast.FunctionDef)
        for n in ast.walk(f)
        if isinstance(n, ast.Assign)
        and isinstance(t := n.targets[0], ast.Subscript)
        and isinstance(t.value, ast.Name)
        and t.value.id in module_names
        and isinstance(t.slice, ast.Slice)
        and isinstance(n.value, ast.List)
        and any(isinstance(x, ast.Name) and x.id in {p.arg for p in f.args.args} for x in n.value.elts)
    ]


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("_CALL: list = []\ndef register(call):\n    _CALL[:] = [call]", ["register"]),
        ("_CALL: list = []\ndef clear(call):\n    _CALL[:] = []", []),
        ("def f(x):\n    own = [1]\n    own[:] = [x]", []),
    ],
)
def test_a_setter_is_recognised(text: str, result: list[str]) -> None:
    assert list_setters(ast.parse(text)) == result


def test_no_circle_is_dissolved_by_a_setter() -> None:
    """No module sets a name of another one to dissolve a circle of imports."""
    results: dict[str, list[str]] = {}
    for path in sources("cuir", "llm"):
        if setters := list_setters(nodes(path)[0]):
            results.setdefault(name_of(path.parent), []).extend(f"{path.name}:{s}" for s in setters)
    assert not {folder: names for folder, names in results.items() if len(names) > SETTERS.get(folder, 0)}
