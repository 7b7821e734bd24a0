"""Rules of the house that no other test sees: sizes, directions of imports, completeness of the table, nothing evaluated, no machine's paths."""

from __future__ import annotations

import ast
import functools
import lzma
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("cuir", "corpus", "llm")
LINES = 550  # of code: docstrings do not count
# `performance` stands in the order by its folders: flex asks the selection, the suites time flex.
ROOMS = (
    "text",
    "caching",
    "campaigns",
    "syntax",
    "ops",
    "checking",
    "lowering/layouts",
    "lowering/ir",
    "lowering/analyses",
    "arguments",
    "sync",
    "interp",
    "ptx",
    "explore",
    "attn/outputs",
    "spec",
    "attn/tracing",
    "attn/masks",
    "attn/splicing",
    "verification/values",
    "attn/verification",
    "lowering",
    "runtime",
    "ptx/launch",
    "performance/timing",
    "performance/search",
    "verification",
    "mutation",
    "rewrites",
    "performance/selection",
    "attn/capture",
    "attn/kernels",
    "attn/api",
    "attn/serving",
    "flex",
    "distributed",
    "integrations",
    "performance/suites",
    "pages",
    "testing",
    "judge",
    "cli",
)
# Imports by a computed name: the packages' own registries and lazy names. A user's file is imported in one place, by explicit request.
COMPUTED_IMPORTS = {
    "cuir/__init__.py",
    "cuir/ops/__init__.py",
    "cuir/interp/ops/__init__.py",
    "cuir/lowering/cuda/registry.py",
    "cuir/lowering/select/selector.py",
    "cuir/lowering/lowered.py",  # `lowered.pycuda()`, a door to the runtime
    "cuir/lowering/targets/__init__.py",
    "cuir/sync/race_rules/__init__.py",
    "cuir/verification/__init__.py",
    "cuir/text/notebook.py",
    "corpus/__init__.py",
}
USER_IMPORTS = {"cuir/spec/loading.py"}


def sources(*folders: str) -> list[Path]:
    return sorted(p for folder in folders for p in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@functools.cache
def nodes(path: Path) -> tuple[ast.Module, list[ast.AST]]:
    """The tree of a file, and all its nodes."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return tree, list(ast.walk(tree))


@functools.cache
def imports(path: Path) -> set[str]:
    """Absolute names of all modules that a file imports, anywhere in it; of `from m import n` both m and m.n."""
    package = list(path.relative_to(ROOT).with_suffix("").parts[:-1])
    results = set()
    for node in nodes(path)[1]:
        if isinstance(node, ast.Import):
            results |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            results |= {module} | {f"{module}.{a.name}" for a in node.names}
    return results


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def importers(package: str, *folders: str) -> set[str]:
    return {name_of(p) for p in sources(*folders) if any(within(m, package) for m in imports(p))}


def lines_of(path: Path) -> int:
    """Count the lines of a file, those of docstrings left out if it would be long with them."""
    count = len(path.read_text(encoding="utf-8").splitlines())
    if path.suffix != ".py" or count <= LINES:  # docstrings need not be found
        return count
    documented = (
        n for n in nodes(path)[1] if isinstance(n, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(n, clean=False)
    )
    return count - sum(n.body[0].end_lineno - n.body[0].lineno + 1 for n in documented)  # type: ignore[operator]


def test_files_stay_short() -> None:
    files = [*sources(*PACKAGES, "tests", "benchmarks", "examples"), *(ROOT / "cuir").rglob("*.lark")]
    long = {name_of(p): n for p in files if (n := lines_of(p)) > LINES}
    assert not long, f"files over {LINES} lines hold more than one thing"


def test_few_lines_are_exempt_from_the_formatter() -> None:
    marks = ("# fmt: " + "skip", "# fmt: " + "off")
    folders = (*PACKAGES, "tests", "benchmarks", "examples")
    files = (f for folder in folders for f in (ROOT / folder).rglob("*.py"))
    assert sum(f.read_text(encoding="utf-8").count(m) for f in files for m in marks) <= 60, "for tables alone"


def test_few_stems_repeat() -> None:
    """A file's name alone, in a traceback or an editor's tab, says which it is. Those that repeat are twins: the families of primitives, and their printers."""
    stems = [p.stem for p in sources("cuir", "llm") if p.stem != "__init__"]
    repeated = {stem for stem in stems if stems.count(stem) > 1}
    assert len(repeated) < 15, sorted(repeated)


def test_the_page_names_files_that_are_there() -> None:
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    named = [n for n in re.findall(r"`([a-z_]+/[\w/]+\.(?:py|cuh|toml|lark|cuir))`", page) if "NAME" not in n]
    assert len(named) > 100
    assert not [n for n in named if not (ROOT / n).exists() and not (ROOT / "cuir" / n).exists()]


def test_cuir_imports_neither_llm_nor_corpus() -> None:
    assert not importers("llm", "corpus")
    assert all(name.startswith("cuir/cli/") for name in importers("llm", "cuir"))  # the commands that ask a model
    front_doors = ("cuir/cli/", "cuir/attn/")  # for users who bring no kernel of their own
    assert all(name.startswith(front_doors) for name in importers("corpus", "cuir"))


@pytest.mark.parametrize(("item", "second"), [("interp", "lowering"), ("lowering", "interp")])
def test_interpreter_and_lowering_never_meet(item: str, second: str) -> None:
    assert not importers(f"cuir.{second}", f"cuir/{item}")


def room_of(module: str) -> str | None:
    """The room of a module: a folder of cuir/, or the folder in it that is a room itself."""
    parts = module.split(".")
    return next((r for r in ("/".join(parts[1:3]), parts[1] if len(parts) > 1 else "") if r in ROOMS), None) if parts[0] == "cuir" else None


def test_rooms_import_only_what_is_above_them() -> None:
    """The folders of cuir/ in the order of docs/architecture.md: a reader who goes through them from the first to the last meets no name that was not explained."""
    rooms = {
        room_of(".".join(p.relative_to(ROOT).with_suffix("").parts))
        for p in (ROOT / "cuir").glob("*/**/*.py")
        if p.parent.name not in ("attn", "performance")
    }
    assert rooms == set(ROOMS)
    wrong = {
        name_of(p): m
        for p in sources("cuir")
        for m in imports(p)
        if (local := room_of(".".join(p.relative_to(ROOT).with_suffix("").parts)))
        and (remote := room_of(m))
        and ROOMS.index(remote) > ROOMS.index(local)
    }
    assert not wrong


def test_rooms_of_the_lowering_import_only_what_is_above_them() -> None:
    """The IR, analyses, selection and passes, printing; targets are a part of printing."""
    place = {"ir": 0, "analyses": 1, "select": 2, "passes": 2, "cuda": 3, "targets": 3}
    wrong = {
        name_of(p): m
        for room in place
        for p in sources(f"cuir/lowering/{room}")
        for m in imports(p)
        if m.startswith("cuir.lowering.") and place.get(m.split(".")[2], -1) > place[room]
    }
    assert not wrong


def test_passes_import_no_pass() -> None:
    """Passes share analyses, or modules of `passes` that are no pass; the pipeline alone runs passes."""
    passes = {p: imports(p) for p in sources("cuir/lowering/passes")}
    is_pass = {p.stem for p in passes if any(isinstance(n, ast.FunctionDef) and n.name == "run" for n in nodes(p)[0].body)}
    importing = {
        p.stem: {m.split(".")[3] for m in modules if m.startswith("cuir.lowering.passes.")} & is_pass for p, modules in passes.items()
    }
    assert {stem for stem, found in importing.items() if found} == {"pipeline"}


def test_rules_of_synchronisation_know_no_program() -> None:
    """They judge events with places, so that programs of another language may use them."""
    wrong = {name_of(p): m for p in sources("cuir/sync") for m in imports(p) if within(m, "cuir") and room_of(m) not in ("text", "sync")}
    assert not wrong


def test_printers_read_the_ir_alone() -> None:
    """What CUDA is printed from stands in the IR, so that a file of it is enough."""
    assert not importers("cuir.checking", "cuir/lowering/cuda", "cuir/lowering/targets")
    assert "cuir/lowering/ir/build_ir.py" in importers("cuir.checking", "cuir/lowering"), "the test finds what there is"


@pytest.mark.parametrize("analysis", ["ranges", "float_ranges", "uniformity", "memory", "stores", "warp_sync", "arrivals"])
def test_printers_analyse_no_values(analysis: str) -> None:
    """Selection records conclusions of analyses in the IR; printers choose only C++ variables."""
    assert not importers(f"cuir.lowering.analyses.{analysis}", "cuir/lowering/cuda")
    assert importers(f"cuir.lowering.analyses.{analysis}", "cuir/lowering"), "the test finds what there is"


def test_printers_refuse_nothing() -> None:
    """What a target cannot do is said before anything is printed, by the selection."""
    assert not importers("cuir.text.diagnostics", "cuir/lowering/cuda", "cuir/lowering/targets")
    assert "cuir/lowering/select/selector.py" in importers("cuir.text.diagnostics", "cuir/lowering"), "the test finds what there is"


def test_no_import_circles() -> None:
    """Type-only imports included."""
    files = {".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p for p in sources("cuir")}
    graph = {m: {i for i in imports(p) if i in files and i != m} - {m.rpartition(".")[0]} for m, p in files.items()}
    assert not [c for c in strongly_connected(graph) if len(c) > 1]


def strongly_connected(graph: dict[str, set[str]]) -> list[list[str]]:
    """Sets of modules that reach each other: Tarjan's."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    results: list[list[str]] = []

    def visit(v: str) -> None:
        index[v] = low[v] = len(index)
        stack.append(v)
        for w in sorted(graph[v]):
            if w not in index:
                visit(w)
            if w in stack:
                low[v] = min(low[v], low[w])
        if low[v] == index[v]:
            at = stack.index(v)
            results.append(stack[at:])
            del stack[at:]

    for v in sorted(graph):
        if v not in index:
            visit(v)
    return results


def test_one_importer_of_lark_and_litellm() -> None:
    assert importers("lark", *PACKAGES)
    front_end = {f"cuir/syntax/{name}.py" for name in ("parser", "lalr", "build", "build_expressions", "hints", "comments")} | {
        "cuir/ptx/module.py"
    }  # PTX has a grammar too
    assert importers("lark", *PACKAGES) <= front_end
    assert len(importers("litellm", *PACKAGES)) <= 1


def test_only_the_command_line_uses_its_libraries() -> None:
    for library in ("typer", "rich"):
        assert all(name.startswith("cuir/cli/") for name in importers(library, *PACKAGES))


def test_every_primitive_runs_and_lowers() -> None:
    from cuir.interp.ops import gaps as interpreter_gaps
    from cuir.lowering.targets import gaps as lowering_gaps

    for gaps in (interpreter_gaps, lowering_gaps):
        missing, unknown = gaps()
        assert not missing, "entries of the table without a meaning"
        assert not unknown, "meanings of something that the table does not have"


# Sentences that name an architecture as an example: explanations of codes, hints of the parser, help of the command line, documentation of primitives.
SENTENCES = ("cuir/text/codes.py", "cuir/syntax/build.py", "cuir/cli/", "cuir/ops/")


def test_an_architecture_is_known_by_its_name_in_its_folder_alone() -> None:
    """Everybody else asks features and limits (ops/limits.py)."""
    name, wrong = re.compile(r"\b(sm|compute)_\d\d+a?\b"), []
    for path in sources("cuir"):
        if name_of(path).startswith("cuir/lowering/targets/"):
            continue
        tree = nodes(path)[1]
        docs = {
            id(n.body[0].value)
            for n in tree
            if isinstance(n, (ast.Module, ast.ClassDef, ast.FunctionDef))
            if n.body and isinstance(n.body[0], ast.Expr)
        }
        for node in tree:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs and name.search(node.value):
                sentence = name_of(path).startswith(SENTENCES) and " " in node.value.strip()
                wrong += [] if sentence else [f"{name_of(path)}:{node.lineno} {node.value[:60]}"]
    assert not wrong


def test_nothing_that_a_program_says_is_evaluated() -> None:
    results = []
    for path in sources(*PACKAGES):
        tree = nodes(path)[1]
        ours = {a.asname or a.name for n in tree if isinstance(n, ast.ImportFrom) for a in n.names}
        ours |= {n.name for n in tree if isinstance(n, ast.FunctionDef)} | {n.arg for n in tree if isinstance(n, ast.arg)}
        for node in tree:
            if not isinstance(node, ast.Call):
                continue
            called = node.func.id if isinstance(node.func, ast.Name) else node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if isinstance(node.func, ast.Name) and called in {"eval", "exec", "compile", "__import__"} - ours:
                results.append(f"{name_of(path)}:{node.lineno} {called}")
            if called == "import_module" and name_of(path) not in COMPUTED_IMPORTS:
                results.append(f"{name_of(path)}:{node.lineno} {called}")
            if called in {"exec_module", "spec_from_file_location", "run_path"} and name_of(path) not in USER_IMPORTS:
                results.append(f"{name_of(path)}:{node.lineno} {called}")
    assert not results


def list_tracked() -> list[Path]:
    """The files of the project, without those that git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode == 0:
        return [p for name in listed.stdout.splitlines() if (p := ROOT / name).is_file()]
    return [p for p in ROOT.rglob("*") if p.is_file() and ".venv" not in p.parts]


def test_no_path_of_a_machine_and_no_package_index() -> None:
    forbidden = re.compile(
        r"(?<![\w.])/(work|farm|root|home|Users)/|/tmp/bash_jobs|(index-url|find-links)[ =]|https?://[\w.]*(pypi|pytorch\.org/whl)"
    )
    wrong = []
    for path in list_tracked():
        if path.suffix in {".png", ".webp", ".svg", ".cubin"} or path == Path(__file__):
            continue
        for name, text in read_texts(path):
            for number, line in enumerate(text.splitlines() if forbidden.search(text) else (), 1):
                if forbidden.search(line):
                    wrong.append(f"{name}:{number}: {line.strip()[:80]}")
    assert not wrong


def read_texts(path: Path) -> Iterator[tuple[str, str]]:
    """Yield name and text of a file, or of each member of an archive."""
    if path.name.endswith(".jsonl.xz"):
        yield name_of(path), lzma.decompress(path.read_bytes()).decode("utf-8")
        return
    if not path.name.endswith(".tar.xz"):
        yield name_of(path), path.read_text(encoding="utf-8")
        return
    with tarfile.open(path) as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None:
                yield f"{name_of(path)}:{member.name}", file.read().decode("utf-8")


def test_nothing_is_left_for_later() -> None:
    mark = re.compile(r"\b(TODO|FIXME|XXX)\b")
    wrong = [
        f"{name_of(p)}:{n}"
        for p in sources(*PACKAGES, "tests", "benchmarks", "examples")
        if p != Path(__file__)
        for n, line in enumerate(p.read_text(encoding="utf-8").splitlines(), 1)
        if mark.search(line)
    ]
    assert not wrong


def test_module_docstrings_say_what_a_file_owns() -> None:
    missing = [name_of(p) for p in sources(*PACKAGES) if p.read_text(encoding="utf-8").strip() and not ast.get_docstring(nodes(p)[0])]
    assert not missing


def test_the_library_logs_and_does_not_print() -> None:
    """It runs inside of servers; commands print in `cuir/cli`."""
    printed = [
        f"{name_of(p)}:{n.lineno}"
        for p in sources("cuir")
        if not within(".".join(p.relative_to(ROOT).parts), "cuir.cli")
        for n in nodes(p)[1]
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "print"
    ]
    assert not printed


# Rooms through which a call of attention travels as a request.
REQUESTED = ("cuir/attn", "cuir/flex")
# Public functions, and a specification, which takes by name what a kernel reads.
LONG_SIGNATURES = {"flex_attention", "create_block_mask", "attention_with_kv_cache", "selected_attention", "varlen_attention", "reference"}
PARAMETERS = 8
ANY_OF_A_THOUSAND = 15


def test_functions_take_few_parameters() -> None:
    """More of them travel together: they are a request, options or tensors with a name."""
    functions = [n for p in sources(*REQUESTED) for n in nodes(p)[1] if isinstance(n, ast.FunctionDef)]
    long = {f.name for f in functions if len([*f.args.posonlyargs, *f.args.args, *f.args.kwonlyargs]) > PARAMETERS}
    assert len(functions) > 1000 and long == LONG_SIGNATURES


def test_attention_has_types() -> None:
    for room in {p.parent for p in sources(*REQUESTED)}:
        files = list(room.glob("*.py"))
        total = sum(isinstance(n, ast.Name) and n.id == "Any" for p in files for n in nodes(p)[1])
        lines = sum(len(p.read_text(encoding="utf-8").splitlines()) for p in files)
        assert 1000 * total <= ANY_OF_A_THOUSAND * lines, room
