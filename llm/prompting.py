"""Messages from templates (prompts/*.md), with the facts of the language from its table of primitives.

Templates hold the words. A template's `{{name}}` are filled once, by the pass; what users wrote is data: fenced, with a
fence that it does not hold, and named as data.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from importlib.resources import files

from cuir.checking.prelude_functions import prelude
from cuir.cli import reference_pages as reference
from cuir.ops import Op
from cuir.ops.expressions import traits
from cuir.syntax.nodes import Call, Program
from cuir.syntax.walk import walk
from cuir.text.diagnostics import Diagnostic
from cuir.text.source import Span

_BEGIN = re.compile(r"^<!-- template: (\w+) -->\n", re.MULTILINE)
_SLOT = re.compile(r"\{\{(\w+)\}\}")
_PRELUDE = "# Functions that every program has\n\n"
MOST_DIAGNOSTICS = 8  # of a report for a model


@functools.cache
def templates() -> dict[str, str]:
    """Return the texts of all templates by name.

    A file prompts/NAME.md begins with the template of its name; others stand behind lines `<!-- template: NAME -->`.
    """
    texts = dict[str, str]()
    for place in sorted((files("llm") / "prompts").iterdir(), key=lambda p: p.name):
        if place.name.endswith(".md"):
            text, *parts = _BEGIN.split(place.read_text(encoding="utf-8"))
            texts[place.name.removesuffix(".md")] = text
            texts.update(zip(parts[::2], parts[1::2], strict=True))
    return {name: text.strip("\n") + "\n" for name, text in texts.items()}


def template(name: str) -> str:
    """Return the text of a template. Raises KeyError for an unknown name."""
    return templates()[name]


def fill(name: str, **slots: str) -> str:
    """Fill the slots of a template; inserted text is not searched for further slots.

    Raises ValueError for a slot that is missing or unknown.
    """
    text = template(name)
    expected = set(_SLOT.findall(text))
    if expected != set(slots):
        raise ValueError(f"template {name} has the slots {sorted(expected)}, found {sorted(slots)}")
    return _SLOT.sub(lambda match: slots[match[1]], text).strip() + "\n"


def fence(text: str, language: str = "") -> str:
    """Put data into a fence that is longer than any run of backticks in it."""
    runs = [len(run) for run in re.findall(r"`+", text)]
    fence = "`" * max(3, 1 + max(runs, default=0))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


@functools.cache
def prompts_hash() -> str:
    """Return a hash of all templates."""
    digest = hashlib.sha256()
    for name, text in sorted(templates().items()):
        digest.update(f"{name}.md\0{text}".encode())
    return digest.hexdigest()[:16]


@functools.cache
def language_reference(archs: frozenset[str] = frozenset(), interleaves: bool = True) -> str:
    """Return primitives and operators with their parameters, meaning and effects, a few lines each.

    archs: architectures, at least one of which has each primitive; by default all primitives are returned.
    interleaves: those for products of 8-bit floats in registers are returned, too.
    """
    parts: list[str] = []
    for family, ops in reference.families().items():
        available = [op for op in ops if not archs or not archs.isdisjoint(op.archs)]
        available = [op for op in available if interleaves or not op.traits.interleaves]
        if not available:
            continue
        parts.append(f"### {family}")
        for meaning, alike in itertools.groupby(available, _meaning):
            parts.append(f"* {', '.join(f'`{reference.spelling(op)}`{reference.receiver(op)}' for op in alike)}: {meaning}")
    return "\n".join(parts)


def _meaning(op: Op) -> str:
    """Return meaning, place, threads and effects of a primitive in a line."""
    facts = reference.effects(op)
    position = " Before the roles." if op.where == "declaration" else ""  # a sentence of the prompt covers the rest
    threads = "" if len(op.workers) != 1 else " By a warpgroup." if op.workers[0] == 128 else " By a warp."
    return f"{op.doc}{position}{threads}" + (f" It {'; '.join(facts)}." if facts else "")


def language(program: Program | None = None) -> str:
    """Return the system's message: the language, its primitives, and the prelude.

    The prelude is left out where the program holds all of its functions, primitives that no architecture of its kernels
    has, and those for products of 8-bit floats in registers where the program has none.
    """
    has_prelude = program is not None and prelude().funcs().keys() <= program.funcs().keys()
    archs = frozenset(kernel.arch for kernel in program.kernels().values()) if program is not None else frozenset()
    interleaves = program is None or any(isinstance(n, Call) and traits(n).interleaves for n in walk(program))
    return fill(
        "system", reference=language_reference(archs, interleaves), prelude="" if has_prelude else _PRELUDE + fence(_prelude_text(), "cuir")
    )


def _prelude_text() -> str:
    """Return the text of the prelude."""
    return (files("cuir") / "checking" / "prelude.cuir").read_text(encoding="utf-8")


def report(diagnostics: tuple[Diagnostic, ...]) -> str:
    """Format diagnostics for a model: code, place with the line's text, expected and found, notes, hint."""
    distinct = list({(d.code, d.message, d.span and (d.span.line, d.span.column)): d for d in reversed(diagnostics)}.values())[
        ::-1
    ]  # a fault of a @func is one, however often it is called
    parts = [_format_diagnostic(number, d) for number, d in enumerate(distinct[:MOST_DIAGNOSTICS], 1)]
    if len(distinct) > MOST_DIAGNOSTICS:
        parts.append(f"({len(distinct) - MOST_DIAGNOSTICS} more are left out; they may follow from these.)")
    return "\n\n".join(parts)


def _format_diagnostic(number: int, d: Diagnostic) -> str:
    """Format a diagnostic."""
    lines = [f"{number}. {d.code}: {d.message}", *_place("at", d.span)]
    for note in d.notes[:6]:
        lines += [f"   note: {note.message}", *_place("  at", note.span)]
    if d.hint:
        lines.append(f"   hint: {d.hint}")
    return "\n".join(lines)


def _place(word: str, span: Span | None) -> list[str]:
    """Format a place with the calls that lead to it."""
    if span is None:
        return []
    lines = [f"   {word} line {span.line}, column {span.column}: {span.source.line(span.line).strip()}"]
    via = span.via
    while via is not None:
        lines.append(f"   called from line {via.line}: {via.source.line(via.line).strip()}")
        via = via.via
    return lines
