"""Reads what commands are given: programs, kernels, `NAME=value` options. Every mistake is a CuirError of a call (exit code 2)."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..checked import Const
from ..diagnostics import CuirError
from ..nodes import ConstType, Kernel, Program
from ..types import DTYPES


def suggestion(word: str, known: Iterable[str], what: str) -> str:
    """A hint that names the nearest known word, else all of them."""
    names = list(known)
    near = difflib.get_close_matches(word, names, 1)
    return f"did you mean `{near[0]}`?" if near else f"{what}: {', '.join(names) or 'none'}"


def read_program(name: str) -> Program:
    """A `.cuir` or `.py` file, or a kernel or program of the corpus by its name. Raises CuirError."""
    from ..frontend import load
    from ..parser import parse

    if Path(name).exists() or name.endswith((".cuir", ".py")) or "/" in name:
        return load(name)
    import corpus

    known = {**corpus.programs(), **corpus.kernels()}
    if name in known:
        return parse(known[name].read_text(encoding="utf-8"), f"{name}.cuir")
    raise CuirError.of("U101", f"no file and nothing in the corpus is called `{name}`", hint=suggestion(name, known, "the corpus holds"))


def pick_kernel(program: Program, name: str | None, source: str) -> Kernel:
    """The kernel of that name, or the only one. Raises CuirError."""
    kernels = program.kernels()
    if name is None:
        if len(kernels) == 1:
            return next(iter(kernels.values()))
        if not kernels:
            raise CuirError.of("U102", f"{source} holds no kernel", hint='a kernel is a function below `@kernel(arch="sm_90a")`')
        raise CuirError.of("U102", f"{source} holds {len(kernels)} kernels", hint=f"choose one with -k: {', '.join(kernels)}")
    if name not in kernels:
        raise CuirError.of("U102", f"{source} holds no kernel called `{name}`", hint=suggestion(name, kernels, "it holds"))
    return kernels[name]


def pairs(items: Iterable[str], option: str) -> dict[str, str]:
    """`["A=1,B=2", "C=3"]` by name. Raises CuirError."""
    found: dict[str, str] = {}
    for item in items:
        for part in filter(None, (p.strip() for p in item.split(","))):
            name, equals, value = part.partition("=")
            if not equals or not name.strip().isidentifier() or not value.strip():
                raise CuirError.of("U103", f"{option} takes NAME=VALUE, found `{part}`", hint=f"for example {option} D=128")
            found[name.strip()] = value.strip()
    return found


def number(text: str) -> int | float | bool | None:
    """A literal of a command line, or None."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def read_consts(items: Iterable[str], kernel: Kernel | None = None) -> dict[str, Const]:
    """Values of const parameters: dtypes, integers, True or False. With a kernel, names are checked against it. Raises CuirError."""
    found: dict[str, Const] = {}
    known = [p.name for p in kernel.params if isinstance(p.type, ConstType)] if kernel else None
    for name, text in pairs(items, "-c").items():
        if known is not None and kernel is not None and name not in known:
            raise CuirError.of("U104", f"`{name}` is no const parameter of `{kernel.name}`", kernel.span, suggestion(name, known, "its const parameters"))
        value = DTYPES[text] if text in DTYPES else number(text)
        if value is None or (isinstance(value, float)):
            raise CuirError.of("U103", f"the const `{name}` is a dtype, an integer, True or False, found `{text}`", hint=f"dtypes: {', '.join(DTYPES)}")
        found[name] = value
    return found


def read_numbers(items: Iterable[str], option: str) -> dict[str, int | float | bool]:
    """Numbers by name. Raises CuirError."""
    found: dict[str, int | float | bool] = {}
    for name, text in pairs(items, option).items():
        value = number(text)
        if value is None:
            raise CuirError.of("U103", f"{option} {name} is a number, found `{text}`")
        found[name] = value
    return found


def check_parameters(factory: Any, given: Mapping[str, Any], what: str) -> None:
    """That a factory takes these keyword arguments. Raises CuirError."""
    try:
        takes = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in takes.values()):
        return
    for name in given:
        if name not in takes:
            raise CuirError.of("U105", f"{what} has no parameter `{name}`", hint=suggestion(name, takes, "its parameters"))
