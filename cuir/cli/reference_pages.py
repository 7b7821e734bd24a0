"""Reference of the language, from the table of primitives: text, markdown for docs/, data for tools."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..ops import OPERATORS, TABLE, Op
from ..ops.limits import list_architectures

_HEAD = """\
# Primitives and operators

`cuir ops NAME` prints an entry of this page, which is generated from `cuir/ops`, and the files that implement it.
[language.md](language.md) shows how primitives fit together, [semantics.md](semantics.md) their exact meaning.

An entry stands in a role of warps or warpgroups, marked † anywhere, {archs}, unless it says otherwise.
*const* means known at compile time, *later* after the call. Proxies are in parentheses, async groups a worker's own.
"""


def entries() -> dict[str, Op]:
    """Return every entry, primitives first, by name."""
    return {**TABLE, **OPERATORS}


def spelling(op: Op) -> str:
    """Return how an entry is written, with its parameters."""
    if op.family == "operators":
        if op.spelling:
            return op.spelling
        names = [p.name for p in op.params]
        if len(names) == 1:
            return f"{op.name} {names[0]}" if op.name.isalpha() else f"{op.name}{names[0]}"
        return f" {op.name} ".join(names)
    parts: list[str] = []
    star = False
    for p in op.params:
        if p.name == "bar" and receiver(op):
            continue
        if p.keyword and not star:
            parts, star = [*parts, "*"], True
        parts.append(
            f"{p.name}, ..." if p.variadic else f"{p.name}={'...' if _is_hidden(p.default) else p.default}" if p.default else p.name
        )
    return f"{op.written}({', '.join(parts)})"


def _is_hidden(default: str) -> bool:
    """Return whether the spelling does not show a default."""
    return default not in ("", "True", "False")


def receiver(op: Op) -> str:
    """Return words for the object of a barrier's method, to follow its spelling: " of an mbarrier".

    Methods of different barriers are written alike. "" for functions and other methods.
    """
    kind, dot, _ = op.name.partition(".")
    return f" of {'an' if kind.startswith('m') else 'a'} {kind}" if dot and kind.endswith("barrier") else ""


def effects(op: Op) -> list[str]:
    """Return the effects of an entry in words, a line each."""
    e, lines = op.effects, []
    for (mode, late, proxy), accesses in itertools.groupby(e.accesses, lambda a: (a.mode, a.late, a.proxy)):
        verb = {"read": "reads", "write": "writes", "add": "adds to"}[mode]
        lines.append(f"{verb} {' and '.join(f'`{a.arg}`' for a in accesses)}{' after the call' if late else ''} ({proxy} proxy)")
    if e.completes:
        lines.append(f"completes on the barrier `{e.completes}`")
    if e.group:
        lines.append(f"completes in the worker's async group `{e.group}`")
    if e.commits:
        lines.append(f"closes the worker's open async group `{e.commits}`")
    if e.drains:
        lines.append(f"waits for the worker's async group `{e.drains}`")
    if e.arrives:
        lines.append(f"arrives at `{e.arrives}`")
    if e.waits:
        lines.append(f"waits for `{e.waits}`")
    if e.fences:
        lines.append("orders the worker's ordinary writes before async-proxy accesses")
    if e.joins:
        lines.append("synchronises all workers of the CTA")
    return lines


def traits(op: Op) -> dict[str, Any]:
    """Return the traits of an entry that hold."""
    values = ((f.name, getattr(op.traits, f.name), f.default) for f in fields(op.traits))
    return {name: list(value) if isinstance(value, tuple) else value for name, value, default in values if value != default}


def places(name: str) -> dict[str, str]:
    """Return the source locations, `file:line` by consumer, that implement an entry.

    Consumers are the interpreter and the lowering.
    """
    from ..lowering.cuda.registry import IN_THE_IR
    from ..lowering.ir.build_ir import build
    from ..lowering.targets import find_emitter

    lowered = find_emitter(name) or (build if name in IN_THE_IR else None)
    by_consumer = {"interpreter": interpreter_places().get(name), "lowering": _locate(lowered) if lowered is not None else None}
    return {consumer: place for consumer, place in by_consumer.items() if place is not None}


@functools.cache
def interpreter_places() -> dict[str, str]:
    """Return the place of `runs(NAME, ...)` for each name.

    It is read from the text of cuir/interp/ops: importing it would load PyTorch.
    """
    package = Path(__file__).parent.parent
    places_by_name = {}
    for file in sorted((package / "interp" / "ops").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "runs":
                place = f"{file.relative_to(package.parent).as_posix()}:{node.lineno}"
                places_by_name.update({str(name.value): place for name in node.args if isinstance(name, ast.Constant)})
    return places_by_name


def _locate(function: Any) -> str:
    """Return the place of a function, `file:line`."""
    function = inspect.unwrap(function)
    file = Path(inspect.getsourcefile(function) or "")
    package = Path(__file__).parent.parent.parent
    return f"{file.relative_to(package) if file.is_relative_to(package) else file.name}:{inspect.getsourcelines(function)[1]}"


def as_json(op: Op) -> dict[str, Any]:
    """Return an entry as data."""
    return {
        "name": op.name,
        "written": spelling(op),
        "family": op.family,
        "parameters": [
            {"name": p.name, "what": p.description, "default": p.default or None, "keyword": p.keyword, "variadic": p.variadic}
            for p in op.params
        ],
        "doc": op.doc,
        "effects": effects(op),
        "traits": traits(op),
        "archs": list(op.archs),
        "where": op.where,
        "threads": list(op.workers),
    }


def markdown() -> str:
    """Return the whole reference as one page."""
    parts = [_HEAD.format(archs=_name_architectures(list_architectures()))]
    for family, ops in families().items():
        parts.append(f"## {family.capitalize()}\n")
        for body, alike in itertools.groupby(ops, _describe):
            parts.append(f"### {', '.join(map(_title, alike))}\n\n{body}\n")
    return "\n".join(parts)


ANYWHERE = " †"
# words of effects that the page's head explains once
_SHORT = {
    " after the call": " later",
    " proxy)": ")",
    "completes on the barrier": "completes on",
    "completes in the worker's async group": "async group",
    "the worker's open async": "async",
    "the worker's async": "async",
}
_ORDER = ["orchestration", "memory", "asynchronous memory", "compute", "sync", "operators"]
_PLACES = {"declaration": ["before the roles"], "any": []}
_WORKERS: dict[tuple[int, ...], list[str]] = {(32,): ["by a warp"], (128,): ["by a warpgroup"]}


def _shorten(effect: str) -> str:
    for words, short in _SHORT.items():
        effect = effect.replace(words, short)
    return effect


def _title(op: Op) -> str:
    """Return an entry as its heading has it."""
    return f"`{spelling(op)}`{receiver(op)}{ANYWHERE if op.where == 'any' else ''}"


def _describe(op: Op) -> str:
    """Return an entry below its heading as markdown."""
    lines = []
    described = [p for p in op.params if p.description != p.name and not (p.name == "bar" and receiver(op))]
    for about, params in itertools.groupby(
        described, lambda p: p.description + (f"; default: {p.default}" if _is_hidden(p.default) else "")
    ):
        lines.append(f"* {', '.join(f'`{p.name}`' for p in params)}: {about}")
    archs = [] if op.archs == list_architectures() else [_name_architectures(op.archs)]
    position = ["outside of roles"] if op.traits.makes == "workers" else _PLACES.get(op.where, [])
    if facts := [*position, *_WORKERS.get(op.workers, []), *archs]:
        lines.append(f"* {'; '.join(facts)}")
    lines.extend(f"* {_shorten(line)}" for line in effects(op))
    return "\n".join([op.doc, *([""] if lines else []), *lines])


def _name_architectures(archs: tuple[str, ...]) -> str:
    """Return the architectures of an entry; by the first one, if no later one lacks the entry."""
    return f"from {archs[0]} on" if archs == list_architectures()[-len(archs) :] else f"only on {', '.join(archs)}"


def families() -> dict[str, list[Op]]:
    """Return entries by family, in the order of the pages."""
    by_family: dict[str, list[Op]] = {}
    for op in entries().values():
        by_family.setdefault(op.family, []).append(op)
    return dict(sorted(by_family.items(), key=lambda item: _ORDER.index(item[0])))


def in_short(op: Op) -> str:
    """Return the first sentence of an entry's documentation."""
    return re.split(r"(?<=[^\s.])\. (?=[A-Z])", op.doc, maxsplit=1)[0].rstrip(".") + "."
