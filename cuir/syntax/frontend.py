"""Sources of programs: `@cuir.kernel` and `@cuir.func` on Python functions, and files.

A decorated function is read as text by the same parser as a file; Python never runs its body, and a file is never
imported.

Names for annotations in decorated Python functions, for editors and linters.

The parser reads text and never looks here.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import os
import select
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple, NoReturn

from ..text.diagnostics import CuirError, Diagnostic, Note
from ..text.source import Source, Span
from .nodes import Constant, Expr, Func, GlobalType, Kernel, Literal, Name, Program, Unary
from .parser import parse, parse_source
from .types import BF16, F16, F32, I32
from .walk import count_assignments, walk

LONGEST, SILENCE = 2**20, 5  # most bytes of a file; most seconds that a pipe may stay silent


class _Decorated:
    """A Python function taken as CuIR text: `source` (with the Python file's name and lines) and `ast`."""

    def __init__(self, function: Callable[..., Any]):
        if not isinstance(function, FunctionType):
            raise CuirError.of("U205", f"@cuir.kernel and @cuir.func decorate a Python function, found {type(function).__name__}")
        functools.update_wrapper(self, function)
        self._function = function
        self.name = function.__name__
        self.source, self._text, self._indent = _get_source(function)

    @functools.cached_property
    def _definition(self) -> Func | Kernel:
        program = parse_source(self.source, self._text, self._indent)
        item = program.items[0]
        assert isinstance(item, Func | Kernel)
        return item

    def visible(self) -> dict[str, Any]:
        """Return the Python values of the function's free names: its module's globals and enclosing variables."""
        cells = zip(self._function.__code__.co_freevars, self._function.__closure__ or ())
        closure = {}
        for name, cell in cells:
            try:
                closure[name] = cell.cell_contents
            except ValueError:  # not bound yet
                continue
        return {**self._function.__globals__, **closure}

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise CuirError.of(
            "U207",
            f"`{self.name}` is CuIR: Python does not run it",
            Span(self.source, *_get_first_line(self.source)),
            "cuir.check(kernel.program) checks it, cuir.run runs it in the interpreter, cuir.compile makes a GPU kernel of it",
        )

    def __repr__(self) -> str:
        return f"<cuir {type(self).__name__.lower().removeprefix('decorated')} {self.name}>"


class DecoratedFunc(_Decorated):
    """The result of `@cuir.func`: `name`, `source`, `ast`."""

    @property
    def ast(self) -> Func:
        """The function's AST.

        Raises CuirError if its text is wrong.
        """
        assert isinstance(self._definition, Func)
        return self._definition


class DecoratedKernel(_Decorated):
    """The result of `@cuir.kernel(...)`: `name`, `source`, `ast`, and `program` with all it uses."""

    @property
    def ast(self) -> Kernel:
        """The kernel's AST alone.

        Raises CuirError if its text is wrong.
        """
        assert isinstance(self._definition, Kernel)
        return self._definition

    @property
    def program(self) -> Program:
        """The kernel with the @funcs and constants that it uses by name, looked up in the functions' globals.

        They are looked up at each access. Constants come first, then functions by their line, then the kernel. Raises
        CuirError if a text is wrong, or if two different things are used under one name.
        """
        used: dict[str, tuple[object, Constant | Func]] = {}
        bound = _list_bound(self.ast)
        waiting: list[tuple[_Decorated, Func | Kernel]] = [(self, self.ast)]
        while waiting:
            handle, node = waiting.pop(0)
            visible = handle.visible()
            for name in (n for n in _list_free(node) if n.id not in bound):
                value = visible.get(name.id)
                if isinstance(value, DecoratedFunc):
                    item: Constant | Func = replace(value.ast, name=name.id)
                    meaning: object = value
                elif isinstance(value, int | float):
                    item = Constant(name.id, _make_literal(name, value), span=name.span)
                    meaning = (type(value), value)
                else:
                    continue
                if name.id not in used:
                    used[name.id] = (meaning, item)
                    if isinstance(value, DecoratedFunc) and isinstance(item, Func):
                        waiting.append((value, item))
                elif used[name.id][0] != meaning:
                    raise CuirError(
                        [
                            Diagnostic(
                                "N001",
                                f"`{name.id}` stands for two different things",
                                name.span,
                                (Note("it means another one here", used[name.id][1].span),),
                                "rename one of them",
                            )
                        ]
                    )
        items = [item for _, item in used.values()]
        constants = [i for i in items if isinstance(i, Constant)]
        funcs = sorted((i for i in items if isinstance(i, Func)), key=lambda f: (f.span.source.name, f.span.line))
        return Program((*constants, *funcs, self.ast), span=self.ast.span)


def kernel(function: Callable[..., Any] | None = None, /, *, arch: str = "", cluster: int | tuple[int, int] = 1) -> Any:
    """Decorate a Python function as a CuIR kernel: `@cuir.kernel(arch="sm_90a", cluster=1)`.

    Returns a `DecoratedKernel`. The options are read from the text of the decorator, like all else; Python evaluates
    them, too, so a const that `cluster` names needs some value in the module. Raises CuirError (U205) if the source
    cannot be found.
    """
    return DecoratedKernel if function is None else DecoratedKernel(function)


def func(function: Callable[..., Any], /) -> DecoratedFunc:
    """Decorate a Python function as a CuIR function: `@cuir.func`.

    Raises CuirError (U205) if the source cannot be found.
    """
    return DecoratedFunc(function)


def load(path: str | os.PathLike[str]) -> Program:
    """Read a program from a `.cuir` file, or from the definitions in a `.py` file, without importing it.

    Of a Python file: the functions decorated with `@cuir.kernel(...)` or `@cuir.func` at its top level, and the
    constants `NAME = literal` that they use. Raises CuirError: U201 to U204 for the file, P... and N00. for its text.
    """
    file = Path(path)
    text = read_text(file)
    if file.suffix == ".py":
        return _load_python(str(path), text)
    program = parse(text, str(path))
    if not program.items:
        raise CuirError.of("U204", f"{path} holds no definition", hint="write a kernel: @kernel(arch=...) def name(...):")
    return program


def read_text(file: Path) -> str:
    """Read a file of text. Raises CuirError U201 to U203."""
    try:
        return _read_bytes(file).decode("utf-8-sig").replace("\r\n", "\n")
    except FileNotFoundError:
        raise CuirError.of("U201", f"there is no file {file}", hint="check the path") from None
    except IsADirectoryError:
        raise CuirError.of("U202", f"{file} is a folder, not a file", hint="name a .cuir or .py file in it") from None
    except OSError as error:
        raise CuirError.of("U202", f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        if not isinstance(error, UnicodeDecodeError):  # a zero byte in the path
            raise CuirError.of("U201", f"no file can be called {str(file)!r}", hint="check the path") from None
        raise CuirError.of("U203", f"{file} is not UTF-8 text (byte {error.start})", hint="save it as UTF-8") from None


def _read_bytes(file: Path) -> bytes:
    """Read all of a file, pipe or terminal, which must come to an end.

    Raises CuirError U202 for more than LONGEST bytes, or a pipe that stays silent.
    """
    content, place = b"", os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        kind = os.fstat(place).st_mode
        if stat.S_ISDIR(kind):
            raise IsADirectoryError
        waited = not stat.S_ISFIFO(kind)  # a pipe without a writer yet reads as empty, and is not at its end
        while len(content) <= LONGEST:
            try:
                part = os.read(place, LONGEST + 1)
            except BlockingIOError:
                part = None
            if part or (part == b"" and (content or waited)):
                if not part:
                    return content
                content += part
            elif select.select([place], [], [], SILENCE)[0]:
                waited = True
            else:
                raise CuirError.of(
                    "U202", f"{file} is a pipe from which nothing came for {SILENCE} seconds", hint="write the program to a file"
                )
    finally:
        os.close(place)
    raise CuirError.of("U202", f"{file} has more than {LONGEST:,} bytes, and no program has", hint="name a .cuir or .py file")


# ---- Python files
def _load_python(name: str, text: str) -> Program:
    source = Source(name, text)
    try:
        module = ast.parse(text)
    except SyntaxError as error:
        line, column = error.lineno or 1, max(1, error.offset or 1)
        raise CuirError.of("P001", f"this is no Python: {error.msg}", Span(source, line, column, line, column + 1)) from None
    except (ValueError, RecursionError, MemoryError):
        raise CuirError.of("U204", f"{name} cannot be read as Python", hint="move the kernel into a .cuir file") from None
    definitions = [s for s in module.body if isinstance(s, ast.FunctionDef) and any(map(_is_cuir, s.decorator_list))]
    if not definitions:
        raise CuirError.of("U204", f"{name} holds no function decorated with @cuir.kernel(...) or @cuir.func at its top level")
    used = {n.id for d in definitions for n in ast.walk(d) if isinstance(n, ast.Name)}
    constants = [s for s in module.body if isinstance(s, ast.Assign) and _get_constant_name(s) in used]
    lines = text.split("\n")
    selected = [""] * len(lines)
    for node in [*definitions, *constants]:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))]) - 1
        while first and lines[first - 1].startswith("#"):
            first -= 1
        selected[first : node.end_lineno] = lines[first : node.end_lineno]
    program = parse_source(source, "\n".join(selected))
    free = {n.id for d in program.items if not isinstance(d, Constant) for n in _list_free(d)}
    return replace(program, items=tuple(i for i in program.items if not isinstance(i, Constant) or i.name in free))


def _is_cuir(decorator: ast.expr) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    if isinstance(target, ast.Attribute):
        return isinstance(target.value, ast.Name) and target.value.id == "cuir" and target.attr in ("func", "kernel")
    return isinstance(target, ast.Name) and target.id in ("func", "kernel")


def _get_constant_name(stmt: ast.Assign) -> str | None:
    value = stmt.value.operand if isinstance(stmt.value, ast.UnaryOp) and isinstance(stmt.value.op, ast.USub) else stmt.value
    target = stmt.targets[0]
    number = isinstance(value, ast.Constant) and isinstance(value.value, int | float)
    return target.id if number and len(stmt.targets) == 1 and isinstance(target, ast.Name) else None


# ---- decorated functions
class _FunctionText(NamedTuple):
    """Source of a function, its text moved to the left margin, and by how many columns."""

    source: Source
    text: str
    indent: int


def _get_source(function: FunctionType) -> _FunctionText:
    """Return the source and the text of a function."""
    code = function.__code__
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        raise CuirError.of(
            "U205",
            f"the source text of `{function.__name__}` cannot be found ({code.co_filename})",
            hint="write the function in a file; code typed at a prompt or given to exec() has no source",
        ) from None
    text = "".join(lines).replace("\r\n", "\n").removesuffix("\n")
    width = len(lines[0]) - len(lines[0].lstrip(" "))
    moved = (line[width:] if not line[:width].strip() else line.lstrip() for line in text.split("\n"))
    return _FunctionText(Source(code.co_filename, text, first), "\n".join(moved), width)


def _get_first_line(source: Source) -> tuple[int, int, int, int]:
    line = source.lines[0]
    return source.first_line, len(line) - len(line.lstrip()) + 1, source.first_line, len(line.rstrip()) + 1


def _list_bound(node: Func | Kernel) -> set[str]:
    """Return names defined in a definition: parameters, dims, dtypes that are consts, and assigned names."""
    return {*_list_parameters(node), *count_assignments(node.body)}


def _list_free(node: Func | Kernel) -> Iterator[Name]:
    bound = _list_bound(node)
    return (n for n in walk(node) if isinstance(n, Name) and n.id not in bound)


def _list_parameters(node: Func | Kernel) -> Iterator[str]:
    if isinstance(node, Func):
        yield from node.params
        return
    for p in node.params:
        yield p.name
        if isinstance(p.type, GlobalType):
            yield from _list_names(p.type.dims)


def _list_names(dims: Iterable[str | int]) -> Iterator[str]:
    return (d for d in dims if isinstance(d, str))


def _make_literal(name: Name, value: int | float) -> Expr:
    """Return the AST of a Python number's literal."""
    if isinstance(value, float) and not math.isfinite(value):
        raise CuirError.of(
            "P017", f"the constant `{name.id}` is {value}, which no literal says", name.span, "write `inf` or `-inf` in the text"
        )
    plain = bool(value) if isinstance(value, bool) else int(value) if isinstance(value, int) else float(value)
    negative = not isinstance(plain, bool) and math.copysign(1, plain) < 0
    literal = Literal(-plain if negative else plain, span=name.span)
    return Unary("-", literal, span=name.span) if negative else literal


f16, bf16, f32, i32 = F16, BF16, F32, I32


class _Shaped:
    """Base of annotations such as `Global[f16, B, H, M, D]`.

    Kept as text by `from __future__ import annotations`, harmless if evaluated.
    """

    def __class_getitem__(cls, item: object) -> type:
        return cls


class Global(_Shaped):
    """A tensor in device memory."""


class Scratch(_Shaped):
    """A tensor in device memory that a launch allocates."""


class Shared(_Shaped):
    """A view of shared memory."""


class Tile(_Shaped):
    """A tile in registers."""


class const:  # noqa: N801 - a word of the language
    """A parameter known when the kernel is specialised."""
