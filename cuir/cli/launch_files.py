"""Launch files of `cuir cuda check`: a user's Python with a function `launch`, and a template of one for a kernel."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from ..ptx.launch.kernel_launch import KernelCall, LoadedKernel
from ..ptx.launch.kernel_parameters import KernelParameter, list_parameters
from ..spec.loading import import_file
from ..spec.neighbour_modules import describe_missing_module, find_neighbours
from ..spec.user_calls import user_call
from ..text.diagnostics import CuirError
from ..text.source import user_span
from ..verification.cuda_runs import collect_calls

LAUNCH, REFERENCE = "launch", "reference"
TEMPLATE = """\
import torch

from cuir.cuda import KernelCall{maps}


def launch():
{lines}
    return KernelCall({grid}, {block}, {arguments})  # grid, block, arguments; shared=BYTES for dynamic shared memory
"""
DTYPES = {
    **{"float": "float32", "double": "float64", "half": "float16", "bfloat": "bfloat16"},
    **{"long": "int64", "int": "int32", "short": "int16", "char": "int8", "bool": "bool"},
}


def load_function(reference: str, default: str, role: str) -> Callable[..., object]:
    """Return a function of a user's file, named `FILE.py` or `FILE.py:NAME`.

    Raises CuirError X110 to X113.
    """
    path_text, colon, name = reference.rpartition(":")
    path_text, name = (path_text, name) if colon else (reference, default)
    path = Path(path_text)
    if path.suffix != ".py" or not name.isidentifier():
        raise CuirError.of(
            "X110", f"{role} is named FILE.py or FILE.py:FUNCTION, found `{reference}`", hint=f"mine.py, or mine.py:{default}"
        )
    if not path.is_file():
        raise CuirError.of("X111", f"no file `{path}`", hint="the path is relative to the current folder")
    module = import_file(path, role)
    function = getattr(module, name, None)
    if not callable(function):
        raise CuirError.of("X112", f"`{path}` has no function `{name}`", hint=f"`cuir cuda check --help` says what `{name}` is")
    return function


def load_launch(path: str) -> Callable[[], Sequence[KernelCall]]:
    """Return what makes the launches of a launch file. Raises CuirError as `load_function`.

    What is returned raises CuirError O120, X113 for a function that makes none.
    """
    function = load_function(path, LAUNCH, "the launch file")

    def launch() -> Sequence[KernelCall]:
        try:
            with find_neighbours(Path(path.partition(".py:")[0])), user_call(f"`{path}`", function):
                made = function()
        except CuirError:
            raise
        except Exception as error:  # a user's function may raise anything
            message = f"`launch` of `{path}` fails: {type(error).__name__}: {error}"
            raise CuirError.of("X113", message, user_span(error), describe_missing_module(error)) from error
        return collect_calls(made, function)

    return launch


def make_template(kernel: LoadedKernel) -> str:
    """Return a launch file for a kernel, with an argument for each parameter."""
    function = kernel.module.module.functions[kernel.name]
    parameters = list_parameters(function, kernel.module.path)
    block = function.threads or (128, 1, 1)
    lines = [f"    {p.name} = {_make_value(p)}  # {p.type}" for p in parameters]
    maps = ", tensor_map" if any("CUtensorMap" in p.type for p in parameters) else ""
    arguments = ", ".join(p.name for p in parameters)
    text = TEMPLATE.format(maps=maps, lines="\n".join(lines), grid=1, block=block if block[1:] != (1, 1) else block[0], arguments=arguments)
    return text.replace(", )", ")").replace("def launch():\n\n", "def launch():\n")


def _make_value(parameter: KernelParameter) -> str:
    """Return Python for an argument, to be changed by the user."""
    text = parameter.type
    if "CUtensorMap" in text:
        return "tensor_map(torch.randn(128, 128).half(), box=(64, 64), swizzle=128)"
    words = re.findall(r"[a-z]+\d*", text.lower())
    dtype = next((f"torch.{d}" for key, d in DTYPES.items() if any(w.startswith(key) for w in words)), None)
    if re.search(r"[*&]$", text):
        made = "zeros" if "const" not in text or "int" in str(dtype) else "randn"
        extra = f", dtype={dtype}" if dtype and (made == "zeros" and dtype != "torch.float32") else ""
        cast = f".to({dtype})" if made == "randn" and dtype not in (None, "torch.float32") else ""
        return f"torch.{made}(1024{extra}){cast}"
    if dtype in ("torch.float32", "torch.float64", "torch.float16", "torch.bfloat16"):
        return "1.0"
    if dtype is not None or (text.endswith("bytes") and parameter.size <= 4):
        return "1024"
    return "torch.zeros(1024)" if parameter.size == 8 and text.endswith("bytes") else f"bytes({parameter.size})"
