"""Parser of PTX text: instructions of one function's body, each with its places in the sources.

Scopes of inline assembly are resolved.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import LarkError

from cuir.syntax.lalr import PLUGINS
from cuir.text.diagnostics import CuirError

ENTRY = re.compile(r"^(?:\.visible\s+|\.weak\s+)*\.entry\s+([\w$]+)", re.M)
FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.M)
PLACE = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:\s*,\s*function_name\s+([\w$]+)(?:\+\d+)?\s*,\s*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?")
INFO = re.compile(r"^(\$L__info_string\d+):\n((?:\.b8 [\d,]+\n?)+)", re.M)
SHARED = re.compile(r"\.shared\s+\.align\s+(\d+)\s+\.b8\s+([\w$]+)(?:\[(\d*)\])?")
PARAM = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.\w+\s+([\w$]+)")


@dataclass(frozen=True)
class Frame:
    """Place in a source.

    `function` is the mangled name of the function that it lies in, empty for the kernel itself.
    """

    path: str
    line: int
    column: int
    function: str = ""


Chain = tuple[Frame, ...]  # the innermost first, the kernel's own line last


@dataclass(frozen=True)
class Address:
    """Operand in brackets: base + offset; `rest` are its coordinates."""

    base: str | int
    offset: int
    rest: tuple[Any, ...] = ()


Operand = Any  # str: a register or a symbol; int; None: a number that is no integer; Address; tuple: a vector, a pair or arguments


@dataclass(frozen=True)
class Instruction:
    """Instruction of PTX.

    Attributes:
        op: Dotted name, without operands.
        guard: Predicate, and whether it must hold.
        labels: Labels at the instruction.
        targets: Targets of a branch by index.
    """

    op: str
    operands: tuple[Operand, ...]
    guard: tuple[str, bool] | None
    chain: Chain
    labels: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """Kernel of a PTX file.

    Attributes:
        instructions: Instructions in order.
        shared: Alignment and byte size of shared symbols (None: set by the launch).
        threads: Threads of a CTA along x, y, z, if stated.
        cluster: CTAs of a cluster along x, y, z, if stated.
    """

    name: str
    instructions: tuple[Instruction, ...]
    shared: dict[str, tuple[int, int | None]]
    params: tuple[str, ...]
    threads: tuple[int, int, int] | None
    cluster: tuple[int, int, int] | None
    files: tuple[str, ...]


def entries(ptx: str) -> list[str]:
    """Return the mangled names of a file's kernels."""
    return ENTRY.findall(ptx)


def read_entry(ptx: str, name: str) -> Entry:
    """Parse one kernel of a PTX file. Raises CuirError O123 if the text is not what nvcc writes."""
    start = next(m for m in ENTRY.finditer(ptx) if m[1] == name)
    opening = ptx.index("\n{", start.end())
    head = ptx[start.start() : opening]
    body = ptx[opening + 2 : _closing(ptx, opening + 1)]
    files = {int(number): path for number, path in FILE.findall(ptx)}
    names = {
        m[1]: bytes(int(b) for b in re.findall(r"\d+", m[2].replace(".b8", ""))).rstrip(b"\0").decode("utf-8", "replace")
        for m in INFO.finditer(ptx)
    }
    try:
        tree = _parser().parse(body)
    except LarkError as error:
        raise CuirError.of("O123", f"the PTX of `{name}` could not be read: {str(error).splitlines()[0]}") from None
    shared = {m[2]: (int(m[1]), int(m[3]) if m[3] else None if m[3] == "" else 8) for m in SHARED.finditer(ptx)}
    threads = re.search(r"\.(?:maxntid|reqntid)\s+(\d+)(?:,\s*(\d+))?(?:,\s*(\d+))?", head)
    cluster = re.search(r"\.reqnctapercluster\s+(\d+)(?:,\s*(\d+))?(?:,\s*(\d+))?", head)
    sizes = tuple(int(x or 1) for x in threads.groups()) if threads else None
    ctas = tuple(int(x or 1) for x in cluster.groups()) if cluster else None
    flat = tuple(_flat(cast(tuple[Any, ...], tree), files, names))
    return Entry(name, flat, shared, tuple(PARAM.findall(head)), sizes, ctas, tuple(files.values()))  # type: ignore[arg-type]


def _closing(ptx: str, opening: int) -> int:
    """Return the offset of the brace that closes the one at `opening`; the end of the text if none does."""
    depth = 0
    for brace in re.compile(r"[{}]").finditer(ptx, opening):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return brace.start()
    return len(ptx)


@functools.cache
def _parser() -> Lark:
    """Return the parser of bodies."""
    text = Path(__file__).with_name("grammar.lark").read_text(encoding="utf-8")
    return Lark(text, parser="lalr", transformer=_Build(), _plugins=PLUGINS)


@v_args(inline=True)
class _Build(Transformer[Token, Any]):
    """Transformer of the grammar's matches to tuples: (kind, ...)."""

    def start(self, *statements: Any) -> Any:
        return statements

    def location(self, text: Token) -> Any:
        return "loc", str(text)

    def label(self, name: Token) -> Any:
        return "label", str(name)

    def directive(self, text: Token) -> Any:
        return "directive", str(text)

    def block(self, *statements: Any) -> Any:
        return "block", statements

    def empty(self) -> Any:
        return "empty", ""

    def holds(self, name: Token) -> Any:
        return "guard", str(name), True

    def fails(self, name: Token) -> Any:
        return "guard", str(name), False

    def instruction(self, *parts: Any) -> Any:
        guard = parts[0][1:] if isinstance(parts[0], tuple) else None
        op, *operands = parts[1:] if guard else parts
        return "instruction", str(op), tuple(operands), guard

    def word(self, name: Token) -> Any:
        return str(name)

    def number(self, text: Token) -> Any:
        return number(text)

    def pair(self, first: Token, second: Token) -> Any:
        return (str(first), str(second))

    def negated(self, name: Token) -> Any:
        return "!" + str(name)

    def vector(self, text: Token) -> Any:
        return tuple(p if p[:1] in "%$_" or p[:1].isalpha() else number(p) for p in (q.strip() for q in text[1:-1].split(",")) if p)

    def address(self, place: Any, *rest: Any) -> Any:
        return Address(place[0], place[1], rest)

    def at_word(self, name: Token, offset: Token | None = None) -> Any:
        return str(name), (number(offset) or 0) if offset is not None else 0

    def at_number(self, text: Token) -> Any:
        return number(text) or 0, 0

    def arguments(self, *operands: Any) -> Any:
        return tuple(operands)


def number(text: str) -> int | None:
    """Parse an integer; None for another number."""
    text = text.rstrip("U")
    try:
        return int(text, 0)
    except ValueError:
        return None


def _flat(statements: tuple[Any, ...], files: dict[int, str], names: dict[str, str]) -> Iterator[Instruction]:
    """Yield instructions in order; names that a block declares are local to it."""
    chain: Chain = ()
    pending: list[str] = []
    counter = 0
    targets: dict[str, tuple[str, ...]] = {}

    def find_chain(text: str) -> Chain:
        """Return the chain of places that a `.loc` directive states."""
        m = PLACE.match(text)
        if m is None:
            return chain
        path = files.get(int(m[1]), "")
        if m[4] is None:
            return (Frame(path, int(m[2]), int(m[3])),)
        outer = Frame(files.get(int(m[5]), ""), int(m[6]), int(m[7]))
        around = chain_at.get((outer.path, outer.line, outer.column), (outer,))
        return (Frame(path, int(m[2]), int(m[3]), names.get(m[4], m[4])), *around)

    chain_at: dict[tuple[str, int, int], Chain] = {}  # a chain is written from the kernel's line inwards

    def go(body: tuple[Any, ...], scope: dict[str, str]) -> Iterator[Instruction]:
        """Yield the instructions of statements in a scope."""
        nonlocal chain, counter
        for statement in body:
            kind = statement[0]
            if kind == "loc":
                chain = find_chain(statement[1]) or chain
                chain_at[chain[0].path, chain[0].line, chain[0].column] = chain
            elif kind == "label":
                pending.append(scope.get(statement[1], statement[1]))
            elif kind == "directive":
                text = statement[1]
                if text.startswith(".branchtargets"):
                    for label in pending:
                        targets[label] = tuple(scope.get(t, t) for t in re.findall(r"[\w$]+", text[len(".branchtargets") :]))
            elif kind == "block":
                counter += 1
                inner = dict(scope)
                for s in statement[1]:
                    if s[0] == "directive" and s[1].startswith(".reg"):
                        inner |= {n: f"{n}@{counter}" for n in re.findall(r"[%\w$]+", s[1].split(None, 2)[2]) if not n.isdigit()}
                    elif s[0] == "label":
                        inner[s[1]] = f"{s[1]}@{counter}"
                yield from go(statement[1], inner)
            elif kind == "instruction":
                _, op, operands, guard = statement
                named = tuple(_resolve_in_scope(o, scope) for o in operands) if scope else operands
                guard_in_scope = (scope.get(guard[0], guard[0]), guard[1]) if guard else None
                index = targets.get(named[1], ()) if op.startswith("brx") and len(named) > 1 and isinstance(named[1], str) else ()
                yield Instruction(op, named, guard_in_scope, chain, tuple(pending), index)
                pending.clear()

    yield from go(statements, {})
    if pending:
        yield Instruction("ret", (), None, chain, tuple(pending))


def _resolve_in_scope(operand: Operand, scope: dict[str, str]) -> Operand:
    """Resolve names of an operand in a scope."""
    if isinstance(operand, str):
        return "!" + scope.get(operand[1:], operand[1:]) if operand[:1] == "!" else scope.get(operand, operand)
    if isinstance(operand, Address):
        base = scope.get(operand.base, operand.base) if isinstance(operand.base, str) else operand.base
        return Address(base, operand.offset, tuple(_resolve_in_scope(r, scope) for r in operand.rest))
    if isinstance(operand, tuple):
        return tuple(_resolve_in_scope(o, scope) for o in operand)
    return operand
