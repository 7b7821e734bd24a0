"""Loading of specifications by a name such as `file.py:function`.

The only place that imports a user's Python. Names of the corpus are resolved by the callers.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..syntax.nodes import Kernel
from ..text.diagnostics import CuirError
from ..text.source import function_span, user_span
from .function_specification import AnySpecification, FunctionSpecification
from .neighbour_modules import describe_missing_module, find_neighbours
from .specification import Captured, Specification, signature_of
from .user_calls import user_call

Parameter = int | float | bool | str
REFERENCE = "reference"  # the name of a function of the inputs
COMPANIONS = ("inputs", "sizes")  # functions that complete it


def load_specification(reference: str, parameters: Mapping[str, Parameter] | None = None) -> Specification:
    """Load `path/to/file.py:name` as a Specification; `name` is a mod, a factory, or a Specification.

    Imports the file. Raises CuirError: X110 a malformed reference, X111 no such file, X112 no such name, X113 the file
    fails, X114-X117 as `as_specification`.
    """
    return _require_mods(load_any(reference, parameters), reference)


def load_any(reference: str, parameters: Mapping[str, Parameter] | None = None, kernel: Kernel | None = None) -> AnySpecification:
    """Load a specification of either kind (see `as_any`) from `path/to/file.py:name` or `path/to/file.py`.

    Without a name: the function `reference`, the one called as the file, or the only public one. The functions `inputs`
    and `sizes` of the file, if it has them, go with a function of the inputs. kernel: as of `as_any`. Raises CuirError
    as `load_specification`.
    """
    path_text, colon, name = reference.rpartition(":")
    if not colon:
        path_text, name = reference, REFERENCE
    if not path_text.endswith(".py") or not name.isidentifier():
        raise CuirError.of(
            "X110",
            f"a specification is named `file.py:function`, or `file.py` if it has a function `{REFERENCE}` or only one; found `{reference}`",
        )
    path = Path(path_text)
    if not path.is_file():
        raise CuirError.of("X111", f"no file `{path}`", hint="the path is relative to the current folder")
    with find_neighbours(path):  # a factory may import, too
        return _load_name(path, name if colon else None, parameters, kernel)


def _load_name(path: Path, name: str | None, parameters: Mapping[str, Parameter] | None, kernel: Kernel | None) -> AnySpecification:
    """Load the specification that a file has under a name.

    Args:
        name: None for the default of `load_any`.
    """
    is_named, name = name is not None, name or REFERENCE
    module = import_file(path)
    offered = [n for n in _list_public(module) if n not in COMPANIONS] or _list_public(module)
    if not is_named and not hasattr(module, name) and (path.stem in offered or len(offered) == 1):
        name = path.stem if path.stem in offered else offered[0]
    if not hasattr(module, name):
        choice = f"name one, {path}:{offered[0]}; " if offered and not is_named else ""
        several = f" and {len(offered)} other functions" if choice else ""
        raise CuirError.of("X112", f"`{path}` has no `{name}`{several}", hint=f"{choice}it has: {', '.join(offered)}" if offered else None)
    value = getattr(module, name)
    if inspect.isfunction(value) and _is_reference(name, value, parameters or {}, kernel):
        companions = {n: getattr(module, n) for n in COMPANIONS if inspect.isfunction(getattr(module, n, None))}
        value = FunctionSpecification(path.stem if name == REFERENCE else name, value, **companions, doc=inspect.getdoc(value) or "")
    return as_any(value, name, parameters, kernel)


def _list_public(module: ModuleType) -> list[str]:
    """List public names of specifications and of functions that the file itself defines."""
    kinds = (Specification, FunctionSpecification)
    public = [(n, v) for n, v in vars(module).items() if not n.startswith("_")]
    return [n for n, v in public if isinstance(v, kinds) or (inspect.isfunction(v) and v.__module__ == module.__name__)]


def as_specification(value: object, name: str, parameters: Mapping[str, Parameter] | None = None) -> Specification:
    """Convert what a file may hold under a name to a Specification.

    * a `Specification`;
    * a function of four positional arguments: a mask_mod; of five: a score_mod; `parameters` fill its keyword
      parameters;
    * a function that can be called without arguments: a factory, called with `parameters`; it returns a Specification,
      a mod, or a pair (mask_mod, score_mod).

    Raises CuirError X114 for parameters that it does not take or with which it computes NaN, X115 and X116 for
    something else, X117 for a function of the inputs (`as_any`).
    """
    return _require_mods(as_any(value, name, parameters), name)


def as_any(value: object, name: str, parameters: Mapping[str, Parameter] | None = None, kernel: Kernel | None = None) -> AnySpecification:
    """Convert as `as_specification`, and besides functions of the inputs to a FunctionSpecification.

    Those are a `FunctionSpecification`, a function called `reference` or with parameters q, k and v, or a factory of
    one.
    kernel: the kernel to specify, if it is known: mods do not describe one without Q, K and V, so every function is one
    of the inputs there.
    """
    spec = _as_any(value, name, dict(parameters or {}), kernel)
    if parameters and callable(value) and isinstance(spec, Specification) and _computes_nan(spec):
        listed = ", ".join(f"{n}={v}" for n, v in parameters.items())
        defaults = [
            f"{n}={p.default}" for n, p in inspect.signature(value).parameters.items() if n in parameters and p.default is not p.empty
        ]
        raise CuirError.of(
            "X114",
            f"`{name}` computes NaN with {listed}",
            function_span(value),
            f"the usual: {', '.join(defaults)}" if defaults else "another value",
        )
    return spec


def _computes_nan(spec: Specification) -> bool:
    """Return whether a variant has a NaN for one small problem of finite numbers, a score of 0 among them.

    Then a parameter is out of range, such as an infinite cap of scores.
    """
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, 8, 8, generator=generator) for heads in (2, 1, 1))
    k[:, :, 0] = 0.0
    with contextlib.suppress(Exception):  # failures are reported with their place by the tracing
        return any(bool(x.isnan().any()) for x in spec.reference(q, k, v, 1.0))
    return False


def _is_reference(name: str, function: Callable[..., object], parameters: Mapping[str, Parameter], kernel: Kernel | None) -> bool:
    """Return whether a function is one of the inputs, rather than a mod or a factory."""
    required = [
        p.name
        for p in signature_of(function).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if name == REFERENCE or {"q", "k", "v"} <= {n.lower() for n in required}:
        return True
    no_attention = kernel is not None and not {"Q", "K", "V"} <= {p.name for p in kernel.params}
    return no_attention and any(n not in parameters for n in required)


def _as_any(value: object, name: str, parameters: dict[str, Parameter], kernel: Kernel | None = None) -> AnySpecification:
    if isinstance(value, (Specification, FunctionSpecification)):
        if parameters:
            raise CuirError.of(
                "X114",
                f"`{name}` is a {type(value).__name__} and takes no parameters, found {', '.join(parameters)}",
                hint="make it a function with parameters",
            )
        return value
    if not callable(value):
        raise CuirError.of("X115", f"`{name}` must be a function or a Specification, found {type(value).__name__}")
    signature = signature_of(value)
    required = [p for p in signature.parameters.values() if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if _is_reference(name, value, parameters, kernel):
        return _as_any(FunctionSpecification(name, value, doc=inspect.getdoc(value) or ""), name, parameters)
    if len(required) in (4, 5):
        captured: dict[str, Captured] = {n: _convert(n, v, signature, name) for n, v in parameters.items()}
        mask_mod, score_mod = (value, None) if len(required) == 4 else (None, value)
        return Specification(name, mask_mod, score_mod, captured=captured, doc=inspect.getdoc(value) or "")
    missing = [p.name for p in required if p.name not in parameters]
    if missing:
        hint = f"a mask_mod takes (b, h, q_idx, kv_idx), a score_mod (score, b, h, q_idx, kv_idx), a function of the inputs is called `{REFERENCE}`; a function that gives one takes what `-p {missing[0]}=...` gives it"
        raise CuirError.of(
            "X116",
            f"`{name}` takes {len(required)} arguments, so it is no mod, and as a function that gives one it needs {', '.join(missing)}",
            function_span(value),
            hint,
        )
    result = _call_factory(value, name, {n: _convert(n, v, signature, name) for n, v in parameters.items()})
    if isinstance(result, tuple) and len(result) == 2:
        return Specification(name, *result, doc=inspect.getdoc(value) or "")
    if not isinstance(result, (Specification, FunctionSpecification)) and not (callable(result) and not isinstance(result, type)):
        raise CuirError.of("X115", f"`{name}` must give a Specification or a mod, found {type(result).__name__}", function_span(value))
    return _as_any(result, name, {}, kernel)


def _require_mods(spec: AnySpecification, name: str) -> Specification:
    if isinstance(spec, FunctionSpecification):
        raise CuirError.of(
            "X117",
            f"`{name}` is a function of the inputs, and this needs a mask_mod or a score_mod",
            function_span(spec.reference),
            "mods can be transferred; for a function write or ask for a program, and verify it: cuir verify PROGRAM --against FILE.py",
        )
    return spec


def _convert(key: str, value: Parameter, signature: inspect.Signature, owner: str) -> int | float:
    """Convert a value for a parameter; text of a command line as the default or the annotation tells."""
    if key not in signature.parameters:
        offered = [p.name for p in signature.parameters.values() if p.default is not p.empty]
        raise CuirError.of(
            "X114", f"`{owner}` has no parameter `{key}`", hint=f"it has: {', '.join(offered)}" if offered else "it has none"
        )
    if value != value or (isinstance(value, str) and value.strip().lower().lstrip("+-") == "nan"):
        raise CuirError.of("X114", f"parameter `{key}` of `{owner}` must be a number, found {value}")
    if not isinstance(value, str):
        return value
    parameter = signature.parameters[key]
    kind = (
        type(parameter.default)
        if isinstance(parameter.default, (bool, int, float))
        else {"int": int, "float": float, "bool": bool}.get(str(parameter.annotation))
    )
    if isinstance(parameter.annotation, type) and parameter.annotation in (int, float, bool):
        kind = parameter.annotation
    try:
        if kind is bool:
            return {"true": True, "1": True, "false": False, "0": False}[value.lower()]
        if kind in (int, float):
            return kind(value)
        return int(value) if value.lstrip("-").isdigit() else float(value)
    except (KeyError, ValueError):
        raise CuirError.of(
            "X114", f"parameter `{key}` of `{owner}` must be {kind.__name__ if kind else 'a number'}, found `{value}`"
        ) from None


def import_file(path: Path, role: str = "the specification") -> ModuleType:
    """Import a user's file, with modules beside it. Raises CuirError X113 with the line that fails.

    role: of the file, for messages.
    """
    spec = importlib.util.spec_from_file_location(f"cuir_user_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses and pickling look a module up by its name
    try:
        with find_neighbours(path), user_call(f"{role} `{path}`", path=str(path), environment=False):
            spec.loader.exec_module(module)
    except CuirError:
        raise
    except Exception as error:  # a user's file may raise anything
        raise CuirError.of(
            "X113",
            f"{role} `{path}` cannot be imported: {type(error).__name__}: {error}",
            user_span(error, str(path)),
            describe_missing_module(error),
        ) from error
    return module


def _call_factory(factory: Callable[..., object], name: str, arguments: Mapping[str, object]) -> Any:
    try:
        with user_call(f"the specification `{name}`", factory):
            return factory(**arguments)
    except CuirError:
        raise
    except Exception as error:  # as above
        raise CuirError.of(
            "X113",
            f"the specification `{name}` fails: {type(error).__name__}: {error}",
            user_span(error),
            describe_missing_module(error),
        ) from error
