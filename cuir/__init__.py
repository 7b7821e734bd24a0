"""CuIR: a small typed language for expert GPU kernels, its checker, interpreter, transfer, verification and lowering.

This file owns the public names and imports them when first asked for: `import cuir` loads nothing of these.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType  # by name: the module `types` of this package takes the attribute `types`
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .annotations import Global, Shared, Tile, bf16, const, f16, f32, i32
    from .api import compile
    from .bind import bind
    from .bridge import bridge
    from .check import check
    from .diagnostics import CuirError, Diagnostic
    from .flex import attention, create_block_mask, flex_attention
    from .frontend import func, kernel, load
    from .interp import run
    from .lowering import lower
    from .nodes import Program
    from .parser import parse
    from .printer import show
    from .spec import Lengths, Specification
    from .spec_function import FunctionSpecification
    from .transfer import transfer
    from .tuning import tuned
    from .verify import verify

_HOME = {
    "annotations": ("Global", "Shared", "Tile", "bf16", "const", "f16", "f32", "i32"),
    "api": ("compile",),
    "bind": ("bind",),
    "bridge": ("bridge",),
    "check": ("check",),
    "diagnostics": ("CuirError", "Diagnostic"),
    "flex": ("attention", "create_block_mask", "flex_attention"),
    "frontend": ("func", "kernel", "load"),
    "interp": ("run",),
    "lowering": ("lower",),
    "nodes": ("Program",),
    "parser": ("parse",),
    "printer": ("show",),
    "spec": ("Lengths", "Specification"),
    "spec_function": ("FunctionSpecification",),
    "transfer": ("transfer",),
    "tuning": ("tuned",),
    "verify": ("verify",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "CuirError",
    "Diagnostic",
    "FunctionSpecification",
    "Global",
    "Lengths",
    "Program",
    "Shared",
    "Specification",
    "Tile",
    "attention",
    "bf16",
    "bind",
    "bridge",
    "check",
    "compile",
    "const",
    "create_block_mask",
    "f16",
    "f32",
    "flex_attention",
    "func",
    "i32",
    "kernel",
    "load",
    "lower",
    "parse",
    "run",
    "show",
    "transfer",
    "tuned",
    "verify",
]  # fmt: skip


class _Package(ModuleType):
    """`cuir.check` is the function, also after something imported the module `cuir.check` (the same for bind, bridge, transfer, verify)."""

    def __getattr__(self, name: str) -> Any:
        home = _MODULE_OF.get(name)
        if home is None:
            raise AttributeError(f"module 'cuir' has no attribute '{name}'")
        value = getattr(importlib.import_module(f"cuir.{home}"), name)
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: object) -> None:
        # The import system binds a submodule to its package after loading it; a public function of that name stays on top.
        if isinstance(value, ModuleType) and _MODULE_OF.get(name) == name:
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Package
