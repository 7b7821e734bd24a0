"""Writing C++: indentation, names, the map from lines to CuIR spans. Owns no meaning."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

from ...text.source import Span

# Words that C++, CUDA or the emitted frame use; a CuIR name that is one of them gets a `_u` behind it.
RESERVED = frozenset(
    [
        "alignas",
        "alignof",
        "and",
        "and_eq",
        "asm",
        "auto",
        "bitand",
        "bitor",
        "bool",
        "break",
        "case",
        "catch",
        "char",
        "char16_t",
        "char32_t",
        "class",
        "compl",
        "const",
        "constexpr",
        "const_cast",
        "continue",
        "decltype",
        "default",
        "delete",
        "do",
        "double",
        "dynamic_cast",
        "else",
        "enum",
        "explicit",
        "export",
        "extern",
        "false",
        "float",
        "for",
        "friend",
        "goto",
        "if",
        "inline",
        "int",
        "long",
        "mutable",
        "namespace",
        "new",
        "noexcept",
        "not",
        "not_eq",
        "nullptr",
        "operator",
        "or",
        "or_eq",
        "private",
        "protected",
        "public",
        "register",
        "reinterpret_cast",
        "return",
        "short",
        "signed",
        "sizeof",
        "static",
        "static_assert",
        "static_cast",
        "struct",
        "switch",
        "template",
        "this",
        "thread_local",
        "throw",
        "true",
        "try",
        "typedef",
        "typeid",
        "typename",
        "union",
        "unsigned",
        "using",
        "virtual",
        "void",
        "volatile",
        "wchar_t",
        "while",
        "xor",
        "xor_eq",
        "main",
        "asm",
        "min",
        "max",
        "abs",
        "half",
        "threadIdx",
        "blockIdx",
        "blockDim",
        "gridDim",
        "warpSize",
        "cuir",
        "cute",
        "cutlass",
        "GMMA",
        "DEV",
        "NULL",
        "INFINITY",
        "NAN",
        "M_PI",
        "M_E",
        "CUtensorMap",
        "uint32_t",
        "uint64_t",
        "uint8_t",
        "int32_t",
        "int64_t",
        "size_t",
        "smem",
        "tile_count",
        "counter",
        "slots",
        "smem_address",
        "lane",
        "warp",
        "warpgroup",
        "row",
        "col",
        "atomicAdd",
        "atomicInc",
        "make_int4",
        "uint16_t",
        "printf",
        "assert",
        "errno",
        "stdin",
        "stdout",
        "stderr",
        "linux",
        "unix",
    ]
)


# Functions of C's <math.h> and CUDA's, of double and of float: printers call them, and a variable of that name would hide one.
_MATH = """acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh cospi erf erfc erfcinv erfcx erfinv exp exp10 exp2 expm1 fabs fdim floor fma
    fmax fmin fmod frexp hypot ilogb isfinite isinf isnan ldexp lgamma llrint llround log log10 log1p log2 logb lrint lround modf nearbyint nextafter norm normcdf
    normcdfinv pow rcbrt remainder remquo rhypot rint round rsqrt scalbln scalbn signbit sin sincos sinh sinpi sqrt tan tanh tgamma trunc"""
FUNCTIONS = frozenset(name + suffix for name in _MATH.split() for suffix in ("", "f"))

# Names that the emitter makes: loop variables, parameters of tensors, temporaries.
_EMITTED = re.compile(r"__.*|.*_u|.*_|map_.*|.*_stride\d+|descriptor_.*|.*__\d+")


def identifier(name: str) -> str:
    """A C++ identifier for a CuIR name, different for different names and from the emitter's own."""
    return f"{name}_u" if name in RESERVED or name in FUNCTIONS or _EMITTED.fullmatch(name) else name


def symbol(kernel: str) -> str:
    """What a kernel is called in C++, where functions of CUDA and of C are in scope: their names are words without `_`."""
    return identifier(kernel) if "_" in kernel else f"{kernel}_u"


class Writer:
    """Lines of one file with the CuIR span that each comes from."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.spans: list[Span | None] = []
        self.depth = 0
        self.span: Span | None = None
        self._temps = 0

    def line(self, text: str = "") -> None:
        for part in text.split("\n"):
            directive = part.startswith("#")
            self.lines.append(part if directive or not part else "  " * self.depth + part)
            self.spans.append(self.span)

    def mark(self, span: Span) -> None:
        """Start a statement of the CuIR text: a comment with its line number and text, once for what one line gives in a row."""
        again = self.span is not None and (self.span.source, self.span.line) == (span.source, span.line)
        self.span = span
        if again:
            return
        text = span.source.line(span.line).strip()
        self.line(f"// {span.line}: {text}".rstrip("\\ ") or "//")

    @contextmanager
    def block(self, head: str, tail: str = "}") -> Iterator[None]:
        self.line(f"{head} {{".lstrip())
        self.depth += 1
        yield
        self.depth -= 1
        self.line(tail)

    def temp(self, stem: str) -> str:
        """A fresh name; CuIR names never hold two underscores in a row followed by digits of ours, see `identifier`."""
        self._temps += 1
        return f"{stem}__{self._temps}"

    def insert(self, at: int, lines: list[str]) -> None:
        """Lines that belong to no statement, before line `at`."""
        self.lines[at:at] = ["  " * self.depth + line for line in lines]
        self.spans[at:at] = [None] * len(lines)

    def take(self, begin: int) -> list[tuple[str, Span | None]]:
        """Lines from `begin` on, which are taken away, without the indentation that all have."""
        taken = (
            list(zip(textwrap.dedent("\n".join(self.lines[begin:])).split("\n"), self.spans[begin:], strict=True))
            if self.lines[begin:]
            else []
        )
        del self.lines[begin:], self.spans[begin:]
        return taken

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"
