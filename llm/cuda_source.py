"""Annotator of expert CUDA: finds low-level calls, with the threads that reach them.

It looks through macros and inlined functions, is deterministic and uses no compiler. The threads that reach a call are
found by evaluating the conditions around it for every thread of a CTA; a condition on data or loops is taken to hold
for all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cuir.text.diagnostics import CuirError
from cuir.text.source import Source, Span

from .cuda_calls import METHODS, LocatedCall, ptx_calls, wrapper_call, wrapper_of
from .cuda_text import CudaText, Statement, arguments, blank, closing, read, statements
from .reading import Array, LowCall, Reading
from .whole_numbers import evaluate

CALLEE = re.compile(r"((?:[A-Za-z_]\w*\s*(?:<[^<>;(){}]*>\s*)?::\s*)*)([A-Za-z_]\w*)\s*(<[^<>;(){}]*>)?\s*\(")
METHOD = re.compile(r"([A-Za-z_][\w.\->]*(?:\[[^\]]*\])*)\s*(?:\.|->)\s*(\w+)\s*\(")
DECLARED = re.compile(
    r"^\s*(?:\[\[[^\]]*\]\]\s*)*(?:const\s+|constexpr\s+|static\s+)*(?:unsigned\s+|signed\s+)?(?:int|auto|bool|long|short|unsigned|u?int\d+_t|size_t)\s+(?=[A-Za-z_]\w*\s*=)"
)
ALIAS = re.compile(r"\b(?:using|namespace)\s+([A-Za-z_]\w*)\s*=\s*([\w:]+(?:<[^;]*>)?)\s*;|\busing\s+((?:\w+::)+(\w+))\s*;")
MEMBER = re.compile(
    r"\s*(?:alignas\s*\([^)]*\)\s*|__align__\s*\([^)]*\)\s*|__shared__\s+|extern\s+|static\s+|volatile\s+)*([A-Za-z_][\w:]*(?:<[^;<>]*>)?)\s+(?=[A-Za-z_])"
)
POINTER = re.compile(r"([A-Za-z_][\w:]*)\s*\*\s*(?:const\s+|__restrict__\s+)*(\w+)\s*=\s*([^;{}]*);")  # carved out of shared memory by hand
MEMBERS_NAME = re.compile(r"(\w+)\s*((?:\[[^\]]*\]\s*)*)")
SIZES = {
    "__half": 2,
    "half": 2,
    "half_t": 2,
    "__nv_bfloat16": 2,
    "bfloat16_t": 2,
    "float": 4,
    "int": 4,
    "uint8_t": 1,
    "char": 1,
    "uint32_t": 4,
    "uint64_t": 8,
}
ASM = {"asm", "volatile", "__asm__", "__volatile__"}  # the word before the parenthesis
THREAD = "threadIdx_x"
DEPTH = 8  # of macros and functions inside of each other
MOST_CALLS = 5000
MOST_EXPANDED = 3000  # macros and functions
MOST_EVALUATED = 1000  # expressions of the thread: more are taken for unknown


@dataclass
class Annotated(Reading):
    """Reading of a source from its text.

    Attributes:
        cuda: Parsed text.
        lines: Source and line of each line of the text, if not all lie in one source.
    """

    cuda: CudaText
    lines: tuple[tuple[Source, int], ...] = ()

    by = "text"

    @property
    def constants(self) -> Mapping[str, int]:
        """Whole-number constants of the source."""
        return self.cuda.constants

    @property
    def sources(self) -> tuple[Source, ...]:
        """Sources that hold the text, the kernel's source first."""
        return tuple(dict.fromkeys([self.source, *(self.place(c.at)[0] for c in self.calls)]))

    def place(self, at: int) -> tuple[Source, int]:
        """Return source and line of an offset in the text."""
        line = self.cuda.line(at)
        return self.lines[line - 1] if line <= len(self.lines) else (self.source, line)

    def span(self, at: int) -> Span:
        """Return the span from an offset to the end of its line."""
        source, line = self.place(at)
        column = self.cuda.column(at)
        return Span(source, line, column, line, max(len(source.line(line)) + 1, column + 1))


def annotate(
    text: str,
    name: str,
    defines: Mapping[str, int] | None = None,
    kernel: str | None = None,
    threads: int | None = None,
    lines: tuple[tuple[Source, int], ...] = (),
) -> Annotated:
    """Annotate a CUDA source.

    Args:
        text: CUDA C++, perhaps with headers put in.
        name: Name of the source.
        defines: Macros with their values.
        kernel: Name of the `__global__` function, None for the first.
        threads: Threads of a CTA, if `__launch_bounds__` does not say.
        lines: Source and line of each line of a text that headers were put into.

    Raises CuirError O122: no kernel, or none of that name.
    """
    cuda = read(text, defines)
    kernels = [f for f in cuda.functions.values() if f.kernel]
    chosen = next((f for f in kernels if kernel in (None, f.name)), None)
    if chosen is None:
        offered = ", ".join(f.name for f in kernels)
        raise CuirError.of("O122", f"`{name}` must hold a __global__ function{f' `{kernel}`' if kernel else ''}, found {offered or 'none'}")
    bounds = re.search(r"__launch_bounds__\s*\(", cuda.code)
    if threads is None and bounds is not None:
        inside = cuda.code[bounds.end() : closing(cuda.code, bounds.end() - 1)]
        threads = evaluate(arguments(inside)[0], cuda.constants)
    if threads is None or not 0 < threads <= 1024:
        raise CuirError.of(
            "O122",
            f"how many threads a CTA of `{chosen.name}` has must be known, found {threads}",
            hint="a __launch_bounds__ that is a constant expression, or `threads` of the launch description",
        )
    walker = _Walker(cuda, threads)
    walker.statements(cuda.code, statements(cuda.code, chosen.start, chosen.end), (1 << threads) - 1, None, (), False)
    main_source = next((s for s, _ in lines if s.name == name), None) or Source(name, cuda.text)
    return Annotated(main_source, chosen.name, threads, walker.calls, walker.arrays, cuda, lines)


class _Walker:
    """Walk over statements that collects calls, with the masks of threads that reach them."""

    def __init__(self, cuda: CudaText, threads: int):
        self.cuda, self.threads = cuda, threads
        self.calls: list[LowCall] = []
        self.arrays = _arrays(cuda)
        self.aliases = _aliases(cuda)
        self.thread_values: dict[str, list[int | None]] = {THREAD: list(range(threads))}
        self.constants: dict[str, int] = dict(cuda.constants)
        self.cache: dict[str, list[int | None]] = {}
        self.evaluated = self.expanded = 0
        self.trips: int | None = 1

    # ---- statements
    def statements(self, code: str, body: tuple[Statement, ...], mask: int, at: int | None, via: tuple[str, ...], loop: bool) -> None:
        """Walk statements under a mask of threads.

        `at` is the place for all calls; None: where they stand in `code`.
        """
        branch_mask = 0  # by the `if` before an `else`
        certain = True
        for s in body:
            if s.kind == "if":
                self.text(code, s.head, self._place(code, s, at), mask, via, loop)
                branch_mask, certain = self.condition(s.head, mask)
                self.statements(code, s.body, branch_mask, at, via, loop)
                if _returns(code, s) and certain:
                    mask &= ~branch_mask
            elif s.kind == "else":
                self.statements(code, s.body, mask & ~branch_mask if certain else mask, at, via, loop)
            elif s.kind in ("loop", "block"):
                before = self.trips
                if s.kind == "loop":
                    turns = self.turns(s.head)
                    self.trips = None if before is None or turns is None else before * turns
                if s.head:
                    self.text(code, s.head, self._place(code, s, at), mask, via, loop or s.kind == "loop")
                self.statements(code, s.body, mask, at, via, loop or s.kind == "loop")
                self.trips = before
            else:
                self.plain(code, s, mask, at, via, loop)

    def turns(self, head: str) -> int | None:
        """Return the trip count of a loop `int i = 0; i < n; ++i` of constants, None for other loops."""
        match = re.fullmatch(r"\s*(?:\w+\s+)+(\w+)\s*=\s*0\s*;\s*(\w+)\s*<\s*([^;]*);\s*(?:\+\+\s*(\w+)|(\w+)\s*\+\+)\s*", head)
        if match is None or len({match[1], match[2], match[4] or match[5]}) != 1:
            return None
        return evaluate(match[3], self.constants)

    def _place(self, code: str, s: Statement, at: int | None) -> int:
        """Return the place of a statement."""
        return s.start if at is None else at

    def plain(self, code: str, s: Statement, mask: int, at: int | None, via: tuple[str, ...], loop: bool) -> None:
        """Walk a statement without a body: its declarations and its calls."""
        text = code[s.start : s.end]
        declared = DECLARED.match(text)
        if declared:
            for part in arguments(text[declared.end() :].rstrip().rstrip(";")):
                name, equals, value = part.partition("=")
                if equals and not value.startswith("="):
                    self.bind(name.strip(), value)
        self.text(code, text, s.start if at is None else at, mask, via, loop, at is None)

    def bind(self, name: str, value: str) -> None:
        """Record the values that a variable has in each thread, if its initializer depends on the thread."""
        values = self.of_threads(value)
        if self.thread_values.pop(name, None) is not None:
            self.cache.clear()
        if values is not None and any(v is not None for v in values):
            self.thread_values[name] = values
            self.cache.clear()
        elif name in self.constants and name not in self.cuda.constants:
            del self.constants[name]

    # ---- values of threads
    def of_threads(self, text: str) -> list[int | None] | None:
        """Compute an expression's value in each thread.

        None if it does not depend on the thread, or cannot be known.
        """
        text = text.replace("threadIdx.x", THREAD)
        if re.search(r"threadIdx\.[yz]", text):
            return None
        text = re.sub(r"(?:\w+::)*elect_one_sync\s*\(\s*\)", f"({THREAD} % 32 == 0)", text)
        text = re.sub(r"(?:\w+::)*canonical_warp_group_idx(?:_sync)?\s*\(\s*\)", f"({THREAD} / 128)", text)
        text = re.sub(r"(?:\w+::)*canonical_warp_idx(?:_sync)?\s*\(\s*\)", f"({THREAD} / 32)", text)
        shuffle = re.search(r"\b__shfl_sync\s*\(", text)
        if shuffle:
            end = closing(text, shuffle.end() - 1)
            parts = arguments(text[shuffle.end() : end])
            inner = self.of_threads(parts[1]) if len(parts) >= 3 else None
            lane = evaluate(parts[2], self.constants) if len(parts) >= 3 else None
            if inner is None or lane is None:
                return None
            self.thread_values["shuffled"] = [inner[min(i - i % 32 + lane, self.threads - 1)] for i in range(self.threads)]
            self.cache.clear()
            return self.of_threads(text[: shuffle.start()] + "shuffled" + text[end + 1 :])
        names = set(re.findall(r"[A-Za-z_]\w*", text))
        if not names & self.thread_values.keys():
            return None
        if text not in self.cache and self.evaluated >= MOST_EVALUATED:
            return None
        if text not in self.cache:
            self.evaluated += 1
            values: list[int | None] = []
            used = [n for n in names if n in self.thread_values]
            bindings = dict(self.constants)
            for i in range(self.threads):
                at = {n: self.thread_values[n][i] for n in used}
                if any(v is None for v in at.values()):
                    values.append(None)
                    continue
                bindings.update({n: v for n, v in at.items() if v is not None})
                values.append(evaluate(text, bindings))
                if i == 0 and values[0] is None:
                    values = [None] * self.threads
                    break
            self.cache[text] = values
        return self.cache[text]

    def condition(self, text: str, mask: int) -> tuple[int, bool]:
        """Return the threads of a mask for which a condition may hold, and whether that is exact."""
        holds, certain = mask, True
        for part in _conjuncts(text):
            values = self.of_threads(part)
            if values is None:
                constant = evaluate(part, self.constants)
                if constant is None:
                    certain = False
                elif not constant:
                    return 0, True
            elif any(v is None for v in values):
                certain = False
            else:
                holds &= sum(1 << i for i, v in enumerate(values) if v)
        return holds, certain

    # ---- calls in a piece of text
    def text(self, code: str, text: str, at: int, mask: int, via: tuple[str, ...], loop: bool, exact: bool = False) -> None:
        """Collect the calls in a text.

        Args:
            code: Code that holds the statement.
            text: The statement.
            at: Its place in the source.
            mask: Threads that reach it.
            via: Macros and functions through which it was reached.
            loop: Whether it is in a loop.
            exact: Whether the text stands at `at` in the source, so that the exact place of a call is known.
        """
        if len(self.calls) > MOST_CALLS or not mask:
            return
        i, plain = 0, blank(text, keep_strings=False)
        while callee := CALLEE.search(plain, i):
            i = callee.end()
            end = closing(text, callee.end() - 1)
            inside = text[callee.end() : end]
            place = at + callee.start() if exact else at
            name, template = callee[2], tuple(arguments(callee[3][1:-1])) if callee[3] else ()
            if name in ASM:
                for f in ptx_calls(inside):
                    self.add(f, text[callee.start() : end + 1], place, mask, via, loop)
                continue
            qualifier = re.sub(r"\s|<[^<>]*>", "", callee[1])
            qualified = self.resolve(qualifier + name)
            wrapper = wrapper_of(qualified)
            if wrapper is None and name not in METHODS and name not in self.cuda.macros and name not in self.cuda.functions:
                continue
            parts = tuple(arguments(inside))
            low = wrapper_call(wrapper, qualified, template, parts) if wrapper is not None else self.method(text, callee, name, parts)
            if low is not None:
                self.add(low, text[callee.start() : end + 1], place, mask, via, loop)
            elif len(via) < DEPTH and name not in via and self.expanded < MOST_EXPANDED:
                self.expanded += 1
                self.expand(name, template, parts, place, mask, via, loop)

    def resolve(self, name: str) -> str:
        """Return a qualified name with all aliases in it followed, each once."""
        parts, used, i = name.split("::"), set[str](), 0
        while i < len(parts) - 1:
            if parts[i] in self.aliases and parts[i] not in used:
                used.add(parts[i])
                parts[i : i + 1] = self.aliases[parts[i]].split("::")
            else:
                i += 1
        return "::".join(parts)

    def method(self, text: str, callee: re.Match[str], name: str, parts: tuple[str, ...]) -> LocatedCall | None:
        """Return the call of a method of a declared barrier, None for other methods.

        An example is `sh.k_full[s].wait(phase)`.
        """
        if name not in METHODS or callee[1]:
            return None
        before = re.search(r"([A-Za-z_][\w.]*(?:->\w+)*(?:\[[^\]]*\])*)\s*(?:\.|->)\s*$", text[: callee.start(2)])
        if before is None or not self.find_declared(before[1]):
            return None
        kind, number = METHODS[name]
        return LocatedCall(kind, name, parts, (before[1],), parts[number] if number is not None and number < len(parts) else "")

    def expand(
        self, name: str, template: tuple[str, ...], parts: tuple[str, ...], at: int, mask: int, via: tuple[str, ...], loop: bool
    ) -> None:
        """Walk the body of a macro or a function with its arguments in place of its parameters."""
        macro, function = self.cuda.macros.get(name), self.cuda.functions.get(name)
        if macro is not None:
            body = re.sub(r"\\\n", " \n", self.cuda.bodies[macro.start : macro.end])
            replacements = dict(zip(macro.parameters, parts))
        elif function is not None and not function.kernel:
            body = self.cuda.code[function.start : function.end]
            replacements = {
                **dict(zip(function.template, template)),
                **dict(zip(function.parameters, (f"({p})" if " " in p else p for p in parts))),
            }
            for local in re.finditer(r"(?:uint32_t|unsigned|uint64_t|auto|int)\s+(?:const\s+)?(\w+)\s*=\s*([^;]*);", body[:4000]):
                if local[1] not in replacements and any(re.search(rf"\b{re.escape(p)}\b", local[2]) for p in replacements):
                    replacements[local[1]] = f"({_put(local[2], replacements)})"  # an address made of a parameter
        else:
            return
        body = _put(body, replacements)
        self.statements(body, statements(body, 0, len(body)), mask, at, (*via, name), loop)

    def add(self, f: LocatedCall, text: str, at: int, mask: int, via: tuple[str, ...], loop: bool) -> None:
        """Record a call, with the barriers, numbers and threads that it concerns."""
        objects = tuple(n for o in f.objects if (n := self.find_declared(o)))
        ids: tuple[tuple[int, int], ...] = ()
        if f.kind in ("named_sync", "named_arrive") and f.objects:
            ids = self.by_value(f.objects[0], mask)
            objects = tuple(re.findall(r"[A-Za-z_]\w*", f.objects[0]))[:1]
        if f.kind == "arrive" and len(f.arguments) > 1:  # at the barrier of a CTA of the cluster, perhaps under a condition
            mask = self.condition(f.arguments[2], mask)[0] if len(f.arguments) > 2 else mask
            ids = self.by_value(f.arguments[1], mask)
        number = evaluate(f.number, self.constants) if f.number else None
        self.calls.append(
            LowCall(
                f.kind, f.name, " ".join(text.split()), at, mask, objects, number, ids, f.arguments, via, loop, self.trips, f.number.strip()
            )
        )

    def by_value(self, text: str, mask: int) -> tuple[tuple[int, int], ...]:
        """Return the values that an expression has in the threads of a mask, each with its threads."""
        values = self.of_threads(text) or [evaluate(text, self.constants)] * self.threads
        masks: dict[int, int] = {}
        for i, v in enumerate(values):
            if v is not None and mask >> i & 1:
                masks[v] = masks.get(v, 0) | 1 << i
        return tuple(sorted(masks.items()))

    def find_declared(self, text: str) -> str:
        """Return the shared array or barrier that an expression names, "" if none.

        Of `constant ? a : b` the chosen branch counts.
        """
        condition, question, rest = text.partition("?")
        if question and ":" in rest and (value := evaluate(condition, self.constants)) is not None:
            positive, _, negative = rest.partition(":")
            text = positive if value else negative
        return next((n for n in re.findall(r"[A-Za-z_]\w*", text) if n in self.arrays), "")


def _put(body: str, replacements: Mapping[str, str]) -> str:
    """Replace parameters by arguments in a body; line breaks are kept."""
    if not replacements:
        return body
    names = re.compile(r"\b(" + "|".join(map(re.escape, replacements)) + r")\b")
    return names.sub(lambda m: replacements[m[1]].replace("\n", " "), body)


def _conjuncts(text: str) -> list[str]:
    """Return the parts of `a && b`; the whole text where there is an `||` at the top."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "([{") - (c in ")]}")
        if depth == 0 and text.startswith("||", i):
            return [text]
        if depth == 0 and text.startswith("&&", i):
            parts.append(text[start:i])
            start = i + 2
    return [*parts, text[start:]]


def _returns(code: str, s: Statement) -> bool:
    """Return whether the threads that enter an `if` leave the kernel there."""
    last = s.body[0] if s.body else None
    if last is not None and last.kind == "block":
        last = last.body[-1] if last.body else None
    return last is not None and last.kind == "plain" and code[last.start : last.end].split(";")[0].strip() == "return"


def _aliases(cuda: CudaText) -> dict[str, str]:
    """Return the aliases of qualified names: `using`, `namespace`, and macros without parameters."""
    aliases: dict[str, str] = {}
    for m in ALIAS.finditer(cuda.code):
        aliases[m[1] or m[4]] = re.sub(r"<.*>", "", m[2]) if m[1] else m[3]
    for macro in cuda.macros.values():
        body = cuda.bodies[macro.start : macro.end].strip()
        if not macro.parameters and re.fullmatch(r"[A-Za-z_][\w:]*", body):
            aliases[macro.name] = body
    return aliases


def _arrays(cuda: CudaText) -> dict[str, Array]:
    """Return the shared arrays by name.

    These are members of structs, `__shared__` variables, and pointers into shared memory.
    """
    arrays: dict[str, Array] = {}
    ranges = [(m.end(), closing(cuda.code, m.end() - 1)) for m in re.finditer(r"\bstruct\s+(?:alignas\s*\(\w+\)\s*)?\w*\s*\{", cuda.code)]
    pieces = [(start, cuda.code[start:end]) for start, end in ranges]
    shared = set(re.findall(r"\bextern\s+__shared__[^;]*?(\w+)\s*\[\s*\]", cuda.code))
    pieces += [(m.start(), m[0]) for m in re.finditer(r"__shared__[^;]*;", cuda.code)]
    for start, piece in pieces:
        at = start
        for statement in piece.split(";"):
            member = MEMBER.match(statement)
            if member and member[1] not in ("return", "using", "struct"):
                for part in arguments(statement[member.end() :]):
                    name = MEMBERS_NAME.fullmatch(part)
                    if name:
                        dims = tuple(evaluate(d, cuda.constants) for d in re.findall(r"\[([^\]]*)\]", name[2]))
                        arrays[name[1]] = Array(name[1], member[1].rpartition("::")[2], dims, at + len(statement) - len(statement.lstrip()))
            at += len(statement) + 1
    for m in POINTER.finditer(cuda.code):
        if set(re.findall(r"\w+", m[3])) & shared and not m[3].lstrip().startswith("*"):
            arrays[m[2]] = Array(m[2], m[1].rpartition("::")[2], (), m.start())
    return arrays
