"""Shipped material to adapt: expert kernels, programs, expert CUDA to lift, and specifications in PyTorch."""

from __future__ import annotations

import ast
import importlib
import itertools
import re
import sys
import types
from collections.abc import Callable
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any


def _named(folder: str, suffix: str) -> dict[str, Traversable]:
    place = files(__name__) / folder
    by_name = (
        {f.name.removesuffix(suffix): f for f in place.iterdir() if f.name.endswith(suffix) and not f.name.startswith("_")}
        if place.is_dir()
        else {}
    )
    return dict(sorted(by_name.items()))


def kernels() -> dict[str, Traversable]:
    """Expert kernels to adapt, by name: `.cuir` files with splice points."""
    return _named("kernels", ".cuir")


def expert(dtype: str) -> str:
    """The name of the expert kernel that attention in this dtype is adapted from."""
    return "flash_fwd_f32" if dtype == "f32" else "flash_fwd_sm90"


def spaces() -> dict[str, Traversable]:
    """Settings worth trying when a kernel is tuned, by the kernel's name: `.tune.json` files beside it."""
    return {**_named("programs", ".tune.json"), **_named("kernels", ".tune.json")}


def programs() -> dict[str, Traversable]:
    """Other programs of the language, from GEMM to a backward pass, by name."""
    return _named("programs", ".cuir")


def faulty() -> dict[str, str]:
    """Texts of small faulty programs, by name, each headed by the errors that it gives; `clean_*` give none.

    A file of corpus/faulty holds those of a family of codes, each behind a line `# ---- NAME`.
    """
    texts = dict[str, str]()
    for place in _named("faulty", ".cuir").values():
        _, *parts = re.split(r"^# ---- (\w+)\n", place.read_text(encoding="utf-8"), flags=re.MULTILINE)
        texts.update((name, text.rstrip("\n") + "\n") for name, text in zip(parts[::2], parts[1::2], strict=True))
    return dict(sorted(texts.items()))


def cuda() -> dict[str, Traversable]:
    """Expert CUDA sources to lift, by name: `.cu` files, each with a launch description beside it."""
    return _named("cuda", ".cu")


def launch_of(name: str) -> Path:
    """The launch description of an expert CUDA source. KeyError for an unknown name."""
    return Path(str(cuda()[name])).with_name(f"{name}.launch.toml")


def variants() -> dict[str, Traversable]:
    """Attention variants by name: each `<name>.py` holds a factory of that name which gives a Specification."""
    return _named("variants", ".py")


def variant(name: str) -> Callable[..., Any]:
    """The factory of a variant. KeyError for an unknown name."""
    if name not in variants():
        raise KeyError(name)
    factory: Callable[..., Any] = getattr(importlib.import_module(f"{__name__}.variants.{name}"), name)
    return factory


def functions() -> dict[str, Traversable]:
    """Return the functions that programs compute, by name: each `<name>.py` holds a factory of that name."""
    return _named("functions", ".py")


def specification(name: str) -> Callable[..., Any]:
    """The factory of a variant, or of what a program computes. KeyError for an unknown name."""
    if name not in functions():
        return variant(name)
    factory: Callable[..., Any] = getattr(importlib.import_module(f"{__name__}.functions.{name}"), name)
    return factory


def about(place: Traversable) -> str:
    """The first sentence that a file says about itself: of its docstring, or of its leading comment. Empty if it says nothing."""
    text = place.read_text(encoding="utf-8")
    if place.name.endswith(".py"):
        said = (ast.get_docstring(ast.parse(text)) or "").splitlines()
    else:
        lines = (line.strip() for line in text.lstrip().splitlines())
        said = [line.lstrip("#/ ") for line in itertools.takewhile(lambda line: line.startswith(("#", "//")), lines)]
    paragraph = " ".join(itertools.takewhile(bool, said))
    return re.split(r"(?<=[.!?])\s", paragraph, maxsplit=1)[0]


class _Package(types.ModuleType):
    """`corpus.variants` stays the function when something imports the folder of that name."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, types.ModuleType) and callable(self.__dict__.get(name))):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
