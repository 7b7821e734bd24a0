"""CuIR: a typed language for expert GPU kernels, its checker, interpreter, verification and lowering.

The public names are imported when they are first read: `import cuir` loads none of them.
"""

from __future__ import annotations

import importlib
import logging
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"  # the only place: pyproject.toml, `cuir --version` and the site read it here

if TYPE_CHECKING:
    from . import debug
    from .arguments.binding import bind
    from .attn.splicing.splice import transfer
    from .bridging import bridge
    from .checking.checked import Checked
    from .checking.checker import check
    from .flex import (
        attention,
        attention_with_kv_cache,
        create_block_mask,
        flex_attention,
        fp8_attention,
        quantize_fp8,
        selected_attention,
        varlen_attention,
    )
    from .interp import run
    from .lowering import lower
    from .performance.search import tuned
    from .runtime.public_compile import compile
    from .spec.dropout_hash import Dropout, draw_dropout_seed, dropout_mask
    from .spec.function_specification import FunctionSpecification
    from .spec.specification import Lengths, Specification
    from .syntax.frontend import Global, Scratch, Shared, Tile, bf16, const, f16, f32, func, i32, kernel, load
    from .syntax.nodes import Program
    from .syntax.parser import parse
    from .syntax.printer import show
    from .text.diagnostics import CuirError, Diagnostic
    from .verification import verify

_HOME = {
    "bridging": ("bridge",),
    "arguments.binding": ("bind",),
    "checking.checked": ("Checked",),
    "checking.checker": ("check",),
    "flex": (
        "attention",
        "attention_with_kv_cache",
        "create_block_mask",
        "flex_attention",
        "fp8_attention",
        "quantize_fp8",
        "selected_attention",
        "varlen_attention",
    ),
    "interp": ("run",),
    "lowering": ("lower",),
    "runtime.public_compile": ("compile",),
    "spec.dropout_hash": ("Dropout", "draw_dropout_seed", "dropout_mask"),
    "spec.function_specification": ("FunctionSpecification",),
    "spec.specification": ("Lengths", "Specification"),
    "syntax.frontend": ("Global", "Scratch", "Shared", "Tile", "bf16", "const", "f16", "f32", "func", "i32", "kernel", "load"),
    "syntax.nodes": ("Program",),
    "syntax.parser": ("parse",),
    "syntax.printer": ("show",),
    "text.diagnostics": ("CuirError", "Diagnostic"),
    "performance.search": ("tuned",),
    "attn.splicing.splice": ("transfer",),
    "verification": ("verify",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Checked",
    "CuirError",
    "Diagnostic",
    "Dropout",
    "FunctionSpecification",
    "Global",
    "Lengths",
    "Program",
    "Scratch",
    "Shared",
    "Specification",
    "Tile",
    "attention",
    "attention_with_kv_cache",
    "bf16",
    "bind",
    "bridge",
    "check",
    "compile",
    "const",
    "create_block_mask",
    "debug",
    "draw_dropout_seed",
    "dropout_mask",
    "f16",
    "f32",
    "flex_attention",
    "fp8_attention",
    "func",
    "i32",
    "kernel",
    "load",
    "lower",
    "parse",
    "quantize_fp8",
    "run",
    "selected_attention",
    "show",
    "transfer",
    "tuned",
    "varlen_attention",
    "verify",
]


class _Package(ModuleType):
    """Module class that imports public names when they are first read."""

    def __getattr__(self, name: str) -> Any:
        if name == "debug":
            return importlib.import_module("cuir.debug")
        home = _MODULE_OF.get(name)
        if home is None:
            raise AttributeError(f"module 'cuir' has no attribute '{name}'")
        value = getattr(importlib.import_module(f"cuir.{home}"), name)
        self.__dict__[name] = value
        return value

    def __dir__(self) -> list[str]:
        return sorted(__all__)


logging.getLogger("cuir").addHandler(logging.NullHandler())  # the application chooses what is shown
sys.modules[__name__].__class__ = _Package
