"""Parser of PTX text: functions, variables, and instructions, each with its places in the sources.

Scopes of inline assembly are resolved. `read_entry` reads one kernel, `read_module` a file.
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from lark import Lark, Token, Transformer, v_args
from lark.exceptions import LarkError

from ..syntax.lalr import PLUGINS
from ..text.diagnostics import CuirError

ENTRY = re.compile(r"^(?:\.visible\s+|\.weak\s+)*\.entry\s+([\w$]+)", re.M)
FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.M)
PLACE = re.compile(r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:\s*,\s*function_name\s+([\w$]+)(?:\+\d+)?\s*,\s*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?")
INFO = re.compile(r"^(\$L__info_string\d+):\n((?:\.b8 [\d,]+\n?)+)", re.M)
SHARED = re.compile(r"\.shared\s+\.align\s+(\d+)\s+\.b8\s+([\w$]+)(?:\[(\d*)\])?")
FUNCTION = re.compile(r"^[ \t]*(?:\.(?:visible|weak|extern)\s+)*\.(entry|func)\b", re.M)
NAME = re.compile(r"\s*([\w$]+)")
STATES = ("global", "const", "shared", "local", "param")
DECLARED = re.compile(
    r"\.(global|const|shared|local|param)\s*((?:\.\w+\s*(?:\d+\s+)?)*)\s*([\w$%]+)(?:<(\d+)>)?\s*((?:\[\d*\])*)\s*(?:=\s*([^;]*))?$", re.S
)
SIZES = {"pred": 1, "b8": 1, "b16": 2, "f16": 2, "bf16": 2, "f16x2": 4, "b32": 4, "f32": 4, "b64": 8, "f64": 8, "b128": 16}
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
    rest: tuple[Operand, ...] = ()


@dataclass(frozen=True)
class FloatNumber:
    """Floating-point number as an operand: its bits, and how many."""

    bits: int
    width: int


Operand = Any  # str: a register or a symbol; int; FloatNumber; Address; tuple: a vector, a pair or arguments
Statement = tuple[Any, ...]  # what the grammar matched: its kind, and parts


@dataclass(frozen=True)
class Instruction:
    """Instruction of PTX.

    Attributes:
        op: Dotted name, without operands.
        guard: Predicate, and whether it must hold.
        labels: Labels at the instruction.
        targets: Targets of a branch by index.
        line: Line in the PTX text.
    """

    op: str
    operands: tuple[Operand, ...]
    guard: tuple[str, bool] | None
    chain: Chain
    labels: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    line: int = 0


@dataclass(frozen=True)
class Variable:
    """Variable of a state space.

    Attributes:
        space: "global", "const", "shared", "local" or "param".
        size: Bytes; None if the launch sets it.
        data: Initial bytes, or None.
        symbols: Offsets of addresses of variables in `data`, and their names.
        type: Type of an element.
    """

    name: str
    space: str
    alignment: int
    size: int | None
    data: bytes | None = None
    symbols: tuple[tuple[int, str], ...] = ()
    type: str = ""


@dataclass(frozen=True)
class Function:
    """Kernel or device function.

    Attributes:
        parameters, results: Their variables.
        registers: Type of each register, by name.
        variables: Variables that the body declares, in order.
        threads: Threads of a CTA along x, y, z, if stated.
        required: Whether a launch must have exactly these.
        cluster: CTAs of a cluster along x, y, z, if stated.
    """

    name: str
    is_entry: bool
    parameters: tuple[Variable, ...]
    results: tuple[Variable, ...]
    registers: dict[str, str]
    variables: tuple[Variable, ...]
    instructions: tuple[Instruction, ...]
    threads: tuple[int, int, int] | None = None
    required: bool = False
    cluster: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Module:
    """PTX file.

    Attributes:
        target: Architecture that it is for.
        functions: Kernels and functions with a body, by their mangled names.
        declared: Names of functions without a body.
        variables: Variables of the file, by name.
        text: The text itself.
    """

    target: str
    functions: dict[str, Function]
    declared: tuple[str, ...]
    variables: dict[str, Variable]
    text: str


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
    files, names = _read_sources(ptx)
    tree = _parse_body(body, name)
    shared = {m[2]: (int(m[1]), int(m[3]) if m[3] else None if m[3] == "" else 8) for m in SHARED.finditer(ptx)}
    threads = re.search(r"\.(?:maxntid|reqntid)\s+(\d+)(?:,\s*(\d+))?(?:,\s*(\d+))?", head)
    sizes = tuple(int(x or 1) for x in threads.groups()) if threads else None
    flat = tuple(_Body(files, names, _line_of(ptx, opening + 2)).read(tree))
    return Entry(name, flat, shared, tuple(PARAM.findall(head)), sizes, _read_cluster(head), tuple(files.values()))  # type: ignore[arg-type]


def read_module(ptx: str) -> Module:
    """Parse a PTX file. Raises CuirError O123 if the text is not what nvcc writes."""
    files, names = _read_sources(ptx)
    functions: dict[str, Function] = {}
    declared: list[str] = []
    rest: list[str] = []
    end = 0
    text = re.sub(r"//[^\n]*", lambda m: " " * len(m[0]), ptx)
    for start in FUNCTION.finditer(text):
        if start.start() < end:
            continue
        opening, semicolon = text.find("{", start.end()), text.find(";", start.end())
        rest.append(text[end : start.start()])
        if 0 <= semicolon < (opening if opening >= 0 else len(text)):
            declared.append(_read_head(text[start.end() : semicolon])[0])
            end = semicolon + 1
            continue
        end = _closing(text, opening) + 1
        name, results, parameters, head = _read_head(text[start.end() : opening])
        body = _Body(files, names, _line_of(text, opening + 1))
        instructions = tuple(body.read(_parse_body(text[opening + 1 : end - 1], name)))
        threads = re.search(r"\.(maxntid|reqntid)\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", head)
        x, y, z = (int(n or 1) for n in threads.groups()[1:]) if threads else (0, 0, 0)
        functions[name] = Function(
            name,
            start[1] == "entry",
            parameters,
            results,
            body.registers,
            tuple(body.variables),
            instructions,
            (x, y, z) if threads else None,
            threads is not None and threads[1] == "reqntid",
            _read_cluster(head),
        )
    rest.append(re.sub(r"\.section.*", "", text[end:], flags=re.S))
    target = re.search(r"^\s*\.target\s+(\w+)", text, re.M)
    statements = re.sub(
        r"\.(file|version|target|address_size|weak|visible|extern|loc)\b[^\n;]*?(?=\.(?:global|const|shared)|\n)", "", "".join(rest)
    )
    found = (read_variable(statement.strip()) for statement in statements.split(";"))
    variables = {v.name: v for v in found if v is not None}
    return Module(target[1] if target else "", functions, tuple(declared), variables, ptx)


def read_variable(text: str) -> Variable | None:
    """Parse the declaration of a variable without its semicolon; None if it declares none."""
    m = DECLARED.search(text)
    if m is None:
        return None
    space, words, name, _, dims, initial = m.groups()
    aligned = re.search(r"\.align\s+(\d+)", words)
    types = re.findall(r"\.([bsuf]\w*|pred)(?!\w)", re.sub(r"\.align\s+\d+", "", words))
    vector = re.search(r"\.v(\d)", words)
    element = get_type_size(types[-1]) * (int(vector[1]) if vector else 1)
    size: int | None = element
    for dim in re.findall(r"\[(\d*)\]", dims):
        size = size * int(dim) if dim and size is not None else None
    data, symbols = _read_initial(initial, get_type_size(types[-1]), types[-1][0] == "f", size) if initial else (None, ())
    if size is None and data is not None:
        size = len(data)
    return Variable(name, space, int(aligned[1]) if aligned else element, size, data, symbols, types[-1])


def get_type_size(name: str) -> int:
    """Return the bytes of a type: "u32" has 4."""
    return SIZES["b" + name[1:] if name[0] in "us" else name]


def _read_initial(text: str, element: int, floating: bool, size: int | None) -> tuple[bytes, tuple[tuple[int, str], ...]]:
    """Return the bytes of an initialiser, and where addresses of variables stand in them."""
    data, symbols = bytearray(), []
    for part in re.findall(r"[^\s{},]+", text):
        value = number(part)
        if isinstance(value, FloatNumber):
            data += value.bits.to_bytes(element, "little") if value.width == 8 * element else _pack(value, element)
        elif value is not None:
            data += (
                struct.pack("<f" if element == 4 else "<d", value) if floating else (value % (1 << 8 * element)).to_bytes(element, "little")
            )
        else:
            symbols.append((len(data), part))
            data += bytes(element)
    return bytes(data).ljust(size or 0, b"\0"), tuple(symbols)


def _pack(value: FloatNumber, element: int) -> bytes:
    """Return a double's bytes in a narrower type."""
    return struct.pack("<f" if element == 4 else "<e", struct.unpack("<d", value.bits.to_bytes(8, "little"))[0])


def _read_head(text: str) -> tuple[str, tuple[Variable, ...], tuple[Variable, ...], str]:
    """Return name, results and parameters of a function, and the directives behind them."""
    results: tuple[Variable, ...] = ()
    text = text.strip()
    if text.startswith("("):
        inner, _, text = text[1:].partition(")")
        results = _read_parameters(inner)
    m = NAME.match(text)
    if m is None:
        raise CuirError.of("O123", f"a function of the PTX has no name: `{text[:40]}`")
    inner, _, head = text[m.end() :].partition("(")[2].partition(")")
    return m[1], results, _read_parameters(inner), head


def _read_cluster(head: str) -> tuple[int, int, int] | None:
    """Return the CTAs of a cluster that the directives of a kernel state."""
    m = re.search(r"\.reqnctapercluster\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", head)
    x, y, z = (int(n or 1) for n in m.groups()) if m else (0, 0, 0)
    return (x, y, z) if m else None


def _read_parameters(text: str) -> tuple[Variable, ...]:
    """Return the variables of a parameter list."""
    return tuple(
        v for part in text.split(",") if (v := read_variable(re.sub(r"\.ptr\b(\s*\.(global|shared|const|local)\b)?", "", part.strip())))
    )


def _line_of(text: str, offset: int) -> int:
    """Return the number of the line that an offset lies in."""
    return text.count("\n", 0, offset) + 1


def _read_sources(ptx: str) -> tuple[dict[int, str], dict[str, str]]:
    """Return paths of sources by number, and names of inlined functions by label."""
    names = {
        m[1]: bytes(int(b) for b in re.findall(r"\d+", m[2].replace(".b8", ""))).rstrip(b"\0").decode("utf-8", "replace")
        for m in INFO.finditer(ptx)
    }
    return {int(index): path for index, path in FILE.findall(ptx)}, names


def _parse_body(body: str, name: str) -> Statement:
    """Parse the body of a function. Raises CuirError O123."""
    try:
        return cast(Statement, _parser().parse(body))
    except LarkError as error:
        raise CuirError.of("O123", f"the PTX of `{name}` could not be read: {str(error).splitlines()[0]}") from None


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

    def start(self, *statements: Operand) -> Operand:
        return statements

    def location(self, text: Token) -> Operand:
        return "loc", str(text)

    def label(self, name: Token) -> Operand:
        return "label", str(name)

    def directive(self, text: Token) -> Operand:
        return "directive", str(text)

    def block(self, *statements: Operand) -> Operand:
        return "block", statements

    def empty(self) -> Operand:
        return "empty", ""

    def holds(self, name: Token) -> Operand:
        return "guard", str(name), True

    def fails(self, name: Token) -> Operand:
        return "guard", str(name), False

    def instruction(self, *parts: Operand) -> Operand:
        guard = parts[0][1:] if isinstance(parts[0], tuple) else None
        op, *operands = parts[1:] if guard else parts
        return "instruction", str(op), tuple(operands), guard, op.line

    def word(self, name: Token) -> Operand:
        return str(name)

    def number(self, text: Token) -> Operand:
        return number(text)

    def pair(self, first: Token, second: Token) -> Operand:
        return (str(first), str(second))

    def negated(self, name: Token) -> Operand:
        return "!" + str(name)

    def vector(self, text: Token) -> Operand:
        return tuple(p if p[:1] in "%$_" or p[:1].isalpha() else number(p) for p in (q.strip() for q in text[1:-1].split(",")) if p)

    def address(self, place: Operand, *rest: Operand) -> Operand:
        return Address(place[0], place[1], rest)

    def at_word(self, name: Token, offset: Token | None = None) -> Operand:
        return str(name), _read_offset(offset) if offset is not None else 0

    def at_number(self, text: Token) -> Operand:
        return _read_offset(text), 0

    def arguments(self, *operands: Operand) -> Operand:
        return tuple(operands)


def number(text: str) -> int | FloatNumber | None:
    """Parse a number; None for another text."""
    m = re.fullmatch(r"0([fFdD])([0-9A-Fa-f]+)", text)
    if m is not None:
        return FloatNumber(int(m[2], 16), 32 if m[1] in "fF" else 64)
    plain = text.rstrip("U")
    try:
        return int(plain, 8) if re.fullmatch(r"-?0\d+", plain) else int(plain, 0)
    except ValueError:
        pass
    try:
        return FloatNumber(int.from_bytes(struct.pack("<d", float(text)), "little"), 64)
    except ValueError:
        return None


def _read_offset(text: str) -> int:
    """Return the value of an integer in an address."""
    value = number(text)
    return value if isinstance(value, int) else 0


class _Body:
    """Reader of a body's statements.

    Attributes:
        registers: Type of each register, by name.
        variables: Variables that the body declares.
        targets: Labels that a label of `.branchtargets` or `.calltargets` stands for.
    """

    def __init__(self, files: dict[int, str], names: dict[str, str], first_line: int):
        self.files, self.names, self.first_line = files, names, first_line
        self.registers: dict[str, str] = {}
        self.variables: list[Variable] = []
        self.targets: dict[str, tuple[str, ...]] = {}
        self.pending: list[str] = []
        self.counter = 0
        self.chain: Chain = ()
        self.chain_at: dict[tuple[str, int, int], Chain] = {}  # a chain is written from the kernel's line inwards

    def read(self, statements: Statement) -> Iterator[Instruction]:
        """Yield instructions in order; names that a block declares are local to it."""
        yield from self._read_block(statements, {})
        if self.pending:
            yield Instruction("ret", (), None, self.chain, tuple(self.pending))

    def _find_chain(self, text: str) -> Chain:
        """Return the chain of places that a `.loc` directive states."""
        m = PLACE.match(text)
        if m is None:
            return self.chain
        path = self.files.get(int(m[1]), "")
        if m[4] is None:
            return (Frame(path, int(m[2]), int(m[3])),)
        outer = Frame(self.files.get(int(m[5]), ""), int(m[6]), int(m[7]))
        around = self.chain_at.get((outer.path, outer.line, outer.column), (outer,))
        return (Frame(path, int(m[2]), int(m[3]), self.names.get(m[4], m[4])), *around)

    def _read_directive(self, text: str, scope: dict[str, str]) -> None:
        """Enter what a directive declares."""
        if text.startswith((".branchtargets", ".calltargets")):
            named = tuple(scope.get(t, t) for t in re.findall(r"[\w$]+", text.split(None, 1)[1]))
            self.targets |= dict.fromkeys(self.pending, named)
        elif text.startswith(".reg"):
            _, type_name, listed = text.rstrip(";").split(None, 2)
            for name, count in re.findall(r"([%\w$]+)(?:<(\d+)>)?", listed):
                own = [f"{name}{i}" for i in range(int(count))] if count else [scope.get(name, name)]
                self.registers |= dict.fromkeys(own, type_name[1:])
        elif text.startswith(tuple(f".{state}" for state in STATES)):
            variable = read_variable(text.rstrip(";"))
            if variable is None:
                raise CuirError.of("O123", f"the PTX declares what could not be read: `{text[:60]}`")
            self.variables.append(replace(variable, name=scope.get(variable.name, variable.name)))

    def _read_block(self, body: Statement, scope: dict[str, str]) -> Iterator[Instruction]:
        """Yield the instructions of statements in a scope."""
        for statement in body:
            kind = statement[0]
            if kind == "loc":
                self.chain = self._find_chain(statement[1]) or self.chain
                self.chain_at[self.chain[0].path, self.chain[0].line, self.chain[0].column] = self.chain
            elif kind == "label":
                self.pending.append(scope.get(statement[1], statement[1]))
            elif kind == "directive":
                self._read_directive(statement[1], scope)
            elif kind == "block":
                yield from self._read_block(statement[1], self._make_scope(statement[1], scope))
            elif kind == "instruction":
                _, op, operands, guard, line = statement
                named = tuple(_resolve_in_scope(o, scope) for o in operands) if scope else operands
                guard_in_scope = (scope.get(guard[0], guard[0]), guard[1]) if guard else None
                index = self.targets.get(named[1], ()) if op.startswith("brx") and len(named) > 1 and isinstance(named[1], str) else ()
                yield Instruction(op, named, guard_in_scope, self.chain, tuple(self.pending), index, self.first_line + line - 1)
                self.pending.clear()

    def _make_scope(self, body: Statement, scope: dict[str, str]) -> dict[str, str]:
        """Return the names in a block: those around it, and its own."""
        self.counter += 1
        inner = dict(scope)
        for kind, *rest in body:
            if kind == "directive" and rest[0].startswith(".reg"):
                inner |= {n: f"{n}@{self.counter}" for n in re.findall(r"[%\w$]+", rest[0].split(None, 2)[2]) if not n.isdigit()}
            elif kind == "directive" and rest[0].startswith(tuple(f".{state}" for state in STATES)):
                variable = read_variable(rest[0].rstrip(";"))
                inner |= {variable.name: f"{variable.name}@{self.counter}"} if variable is not None else {}
            elif kind == "label":
                inner[rest[0]] = f"{rest[0]}@{self.counter}"
        return inner


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
