"""Writer of C++ text: indentation, names, and the map from lines to CuIR spans."""

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


# Functions of C's <math.h> and CUDA's, for double and float: printers call them, and a variable of that name would
# hide one.
_MATH = """acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh cospi erf erfc erfcinv erfcx erfinv exp exp10 exp2 expm1 fabs fdim floor fma
    fmax fmin fmod frexp hypot ilogb isfinite isinf isnan ldexp lgamma llrint llround log log10 log1p log2 logb lrint lround modf nearbyint nextafter norm normcdf
    normcdfinv pow rcbrt remainder remquo rhypot rint round rsqrt scalbln scalbn signbit sin sincos sinh sinpi sqrt tan tanh tgamma trunc"""
FUNCTIONS = frozenset(name + suffix for name in _MATH.split() for suffix in ("", "f"))

# Macros of the headers: of errno, of formats, of signals, of CUDA's interfaces, and by prefixes up to the first `_`.
_MACRO_PREFIXES = """ADJ AIO BC BIG BOOL BYTE CCCL CHAR CHARCLASS CLOCK CLOCKS CLONE COLL CPU CU CUDA CUDART CUDARTAPI CUTE CUTLASS DBL DECIMAL DELAYTIMER
    EXIT EXPR FD FILENAME FLT FOPEN FP HOST HUGE IF INT INT16 INT32 INT64 INT8 INTMAX INTPTR IOV L LC LDBL LIBCUDACXX LINE LITTLE LLONG
    LOGIN LONG M MATH MB MOD MQ NAME NGROUPS NL NV P PATH PDP PIPE PTHREAD PTRDIFF RAND RE RENAME RESOURCE RTSIG SCHAR SCHED SEEK SEM
    SHRT SIG SIZE SSIZE STA TIME TIMER TMP TTY UCHAR UINT UINT16 UINT32 UINT64 UINT8 UINTMAX UINTPTR ULLONG ULONG USHRT WCHAR WINT WORD
    XATTR assert math pthread sched"""
_MACROS = re.compile(
    r"cu(?:da)?[A-Z]\w*|E[A-Z0-9]{2,}|(?:PRI|SCN)[diouxX]\w*|W(?:EXIT|IF|STOP|TERM|NO|CONT|UNTR|EOF)\w*|SNAN\w*|[bl]e\d+toh|hto[bl]e\d+"
    r"|is[a-z]+_l|isascii|issubnormal|toascii(?:_l)?|strn?dupa|alloca|MAX_(?:CANON|INPUT|HANDLE_SZ)|BUFSIZ|CSIGNAL|CUDAAPI|CUDARTAPI|MAXFLOAT|NFDBITS|NZERO|offsetof|(?:"
    + "|".join(_MACRO_PREFIXES.split())
    + r")_\w*"
)

# Names of the emitter: loop variables, parameters of tensors, temporaries; and names that C++ reserves.
_EMITTED = re.compile(r"__.*|_[A-Z].*|.*_u|.*_|map_.*|.*_stride\d+|descriptor_.*|.*__\d+")


def identifier(name: str) -> str:
    """Return a C++ identifier for a CuIR name, distinct for distinct names and from the emitter's names."""
    return f"{name}_u" if name in RESERVED or name in FUNCTIONS or _EMITTED.fullmatch(name) or _MACROS.fullmatch(name) else name


def symbol(kernel: str) -> str:
    """Return the C++ name of a kernel.

    Functions of CUDA and C are in scope, whose names are words without `_`.
    """
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
        """Append lines at the current depth."""
        for part in text.split("\n"):
            directive = part.startswith("#")
            self.lines.append(part if directive or not part else "  " * self.depth + part)
            self.spans.append(self.span)

    def mark(self, span: Span | None) -> None:
        """Start a statement of the CuIR text.

        Emits a comment with its line number and text, once for consecutive statements of one line, if its place is known.
        """
        repeated = self.span is not None and span is not None and (self.span.source, self.span.line) == (span.source, span.line)
        self.span = span
        if span is None or repeated:
            return
        text = span.source.line(span.line).strip()
        self.line(f"// {span.line}: {text}".rstrip("\\ ") or "//")

    @contextmanager
    def block(self, head: str, tail: str = "}") -> Iterator[None]:
        """Emit a block around the lines that are emitted inside."""
        self.line(f"{head} {{".lstrip())
        self.depth += 1
        yield
        self.depth -= 1
        self.line(tail)

    def temp(self, stem: str) -> str:
        """Return a fresh name.

        CuIR names never hold two underscores followed by digits, see `identifier`.
        """
        self._temps += 1
        return f"{stem}__{self._temps}"

    def insert(self, at: int, lines: list[str]) -> None:
        """Insert lines that belong to no statement before line `at`."""
        self.lines[at:at] = ["  " * self.depth + line for line in lines]
        self.spans[at:at] = [None] * len(lines)

    def take(self, begin: int) -> list[tuple[str, Span | None]]:
        """Remove the lines from `begin` on and return them without their common indentation."""
        lines = (
            list(zip(textwrap.dedent("\n".join(self.lines[begin:])).split("\n"), self.spans[begin:], strict=True))
            if self.lines[begin:]
            else []
        )
        del self.lines[begin:], self.spans[begin:]
        return lines

    def text(self) -> str:
        """Return the whole text."""
        return "\n".join(self.lines) + "\n"
