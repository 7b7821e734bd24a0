"""From a name such as `file.py:function` to a specification. The one place where a user's Python is imported, and only when asked to.

Owns what counts as a specification. Does not own the corpus: its caller looks names up there.
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
from ..text.user_code import function_span, user_span
from .functions import AnySpecification, FunctionSpecification
from .specification import Captured, Specification
from .user_calls import user_call

Parameter = int | float | bool | str
REFERENCE = "reference"  # the name of a function of the inputs
BESIDE = ("inputs", "sizes")  # functions that go with it


def load_specification(reference: str, parameters: Mapping[str, Parameter] | None = None) -> Specification:
    """`path/to/file.py:name` -> Specification. `name` is a mod, a factory, or a Specification (see `as_specification`).

    Imports the file. Errors: X110 a malformed reference, X111 no such file, X112 no such name, X113 the file fails, X114-X117 as below.
    """
    return _of_mods(load_any(reference, parameters), reference)


def load_any(reference: str, parameters: Mapping[str, Parameter] | None = None, kernel: Kernel | None = None) -> AnySpecification:
    """`path/to/file.py:name`, or `path/to/file.py` for its function `reference`, the one called as the file or its only public one -> a specification of either kind (see `as_any`).

    The functions `inputs` and `sizes` of the file, if it has them, go with a function of the inputs. kernel: what it is to specify, as of `as_any`. Errors as of `load_specification`.
    """
    path_text, colon, name = reference.rpartition(":")
    if not colon:
        path_text, name = reference, REFERENCE
    if not path_text.endswith(".py") or not name.isidentifier():
        raise CuirError.of(
            "X110", f"a specification is named `file.py:function`, or `file.py` if it has a function `{REFERENCE}` or only one; found `{reference}`"
        )  # fmt: skip
    path = Path(path_text)
    if not path.is_file():
        raise CuirError.of("X111", f"no file `{path}`", hint="the path is relative to the current folder")
    module = import_file(path)
    offered = [n for n in _offered(module) if n not in BESIDE] or _offered(module)
    if not colon and not hasattr(module, name) and (path.stem in offered or len(offered) == 1):
        name = path.stem if path.stem in offered else offered[0]
    if not hasattr(module, name):
        which = f"name one, {path}:{offered[0]}; " if offered and not colon else ""
        several = f" and {len(offered)} other functions" if which else ""
        raise CuirError.of("X112", f"`{path}` has no `{name}`{several}", hint=f"{which}it has: {', '.join(offered)}" if offered else None)
    value = getattr(module, name)
    if inspect.isfunction(value) and _is_reference(name, value, parameters or {}, kernel):
        beside = {n: getattr(module, n) for n in BESIDE if inspect.isfunction(getattr(module, n, None))}
        value = FunctionSpecification(path.stem if name == REFERENCE else name, value, **beside, doc=inspect.getdoc(value) or "")
    return as_any(value, name, parameters, kernel)


def _offered(module: ModuleType) -> list[str]:
    """Public names of specifications and of functions that the file itself defines."""
    kinds = (Specification, FunctionSpecification)
    known = [(n, v) for n, v in vars(module).items() if not n.startswith("_")]
    return [n for n, v in known if isinstance(v, kinds) or (inspect.isfunction(v) and v.__module__ == module.__name__)]


def as_specification(value: Any, name: str, parameters: Mapping[str, Parameter] | None = None) -> Specification:
    """A Specification from what a file may hold under a name.

    * a `Specification`;
    * a function of four positional arguments: a mask_mod; of five: a score_mod; `parameters` fill its keyword parameters;
    * a function that can be called without arguments: a factory, called with `parameters`; it gives a Specification, a mod, or a pair
      (mask_mod, score_mod).

    Raises CuirError X114 for parameters that it does not take or with which it computes NaN, X115 and X116 for something else, X117 for a function of the
    inputs (`as_any`).
    """
    return _of_mods(as_any(value, name, parameters), name)


def as_any(value: Any, name: str, parameters: Mapping[str, Parameter] | None = None, kernel: Kernel | None = None) -> AnySpecification:
    """As `as_specification`, and besides: a `FunctionSpecification`, a function called `reference` or with parameters q, k and v, or a factory of one.

    kernel: what it is to specify, where that is known: mods say nothing about one without Q, K and V, so that every function is one of its inputs there.
    """
    spec = _as_any(value, name, dict(parameters or {}), kernel)
    if parameters and isinstance(spec, Specification) and _computes_nan(spec):
        listed = ", ".join(f"{n}={v}" for n, v in parameters.items())
        defaults = [
            f"{n}={p.default}" for n, p in inspect.signature(value).parameters.items() if n in parameters and p.default is not p.empty
        ]
        raise CuirError.of("X114", f"`{name}` computes NaN with {listed}", function_span(value),
                           f"the usual: {', '.join(defaults)}" if defaults else "another value")  # fmt: skip
    return spec


def _computes_nan(spec: Specification) -> bool:
    """Whether a variant has a NaN for one small problem of finite numbers, a score of 0 among them: a parameter that it cannot mean, as an infinite cap of scores."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, heads, 8, 8, generator=generator) for heads in (2, 1, 1))
    k[:, :, 0] = 0.0
    with contextlib.suppress(Exception):  # what fails on this problem is told with its place where it is traced
        return any(bool(x.isnan().any()) for x in spec.reference(q, k, v, 1.0))
    return False


def _is_reference(name: str, function: Callable[..., Any], given: Mapping[str, Parameter], kernel: Kernel | None) -> bool:
    """Whether a function is one of the inputs, rather than a mod or what gives a specification."""
    required = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if name == REFERENCE or {"q", "k", "v"} <= {n.lower() for n in required}:
        return True
    no_attention = kernel is not None and not {"Q", "K", "V"} <= {p.name for p in kernel.params}
    return no_attention and any(n not in given for n in required)


def _as_any(value: Any, name: str, given: dict[str, Parameter], kernel: Kernel | None = None) -> AnySpecification:
    if isinstance(value, (Specification, FunctionSpecification)):
        if given:
            raise CuirError.of(
                "X114",
                f"`{name}` is a {type(value).__name__} and takes no parameters, found {', '.join(given)}",
                hint="make it a function with parameters",
            )
        return value
    if not callable(value):
        raise CuirError.of("X115", f"`{name}` must be a function or a Specification, found {type(value).__name__}")
    signature = inspect.signature(value)
    required = [p for p in signature.parameters.values() if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if _is_reference(name, value, given, kernel):
        return _as_any(FunctionSpecification(name, value, doc=inspect.getdoc(value) or ""), name, given)
    if len(required) in (4, 5):
        captured: dict[str, Captured] = {n: _converted(n, v, signature, name) for n, v in given.items()}
        mods = {"mask_mod": value} if len(required) == 4 else {"score_mod": value}
        return Specification(name, **mods, captured=captured, doc=inspect.getdoc(value) or "")
    missing = [p.name for p in required if p.name not in given]
    if missing:
        hint = f"a mask_mod takes (b, h, q_idx, kv_idx), a score_mod (score, b, h, q_idx, kv_idx), a function of the inputs is called `{REFERENCE}`; a function that gives one takes what `-p {missing[0]}=...` gives it"
        raise CuirError.of("X116", f"`{name}` takes {len(required)} arguments, so it is no mod, and as a function that gives one it needs {', '.join(missing)}",
                           function_span(value), hint)  # fmt: skip
    made = _called(value, name, {n: _converted(n, v, signature, name) for n, v in given.items()})
    if isinstance(made, tuple) and len(made) == 2:
        return Specification(name, *made, doc=inspect.getdoc(value) or "")
    if not isinstance(made, (Specification, FunctionSpecification)) and not (callable(made) and not isinstance(made, type)):
        raise CuirError.of("X115", f"`{name}` must give a Specification or a mod, found {type(made).__name__}", function_span(value))
    return _as_any(made, name, {}, kernel)


def _of_mods(spec: AnySpecification, name: str) -> Specification:
    if isinstance(spec, FunctionSpecification):
        raise CuirError.of("X117", f"`{name}` is a function of the inputs, and this needs a mask_mod or a score_mod", function_span(spec.reference),
                           "mods can be transferred; for a function write or ask for a program, and verify it: cuir verify PROGRAM --against FILE.py")  # fmt: skip
    return spec


def _converted(key: str, value: Parameter, signature: inspect.Signature, owner: str) -> int | float:
    """A value for a parameter; text (of a command line) becomes what the default or the annotation says."""
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
    """The module of a user's file. role: of the file, for messages. Raises CuirError X113 with the line that fails."""
    spec = importlib.util.spec_from_file_location(f"cuir_user_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses and pickling look a module up by its name
    try:
        with user_call(f"{role} `{path}`", path=str(path), environment=False):
            spec.loader.exec_module(module)
    except CuirError:
        raise
    except Exception as error:  # a user's file may raise anything
        raise CuirError.of(
            "X113", f"{role} `{path}` cannot be imported: {type(error).__name__}: {error}", user_span(error, str(path))
        ) from error
    return module


def _called(factory: Callable[..., Any], name: str, arguments: Mapping[str, Any]) -> Any:
    try:
        with user_call(f"the specification `{name}`", factory):
            return factory(**arguments)
    except CuirError:
        raise
    except Exception as error:  # as above
        raise CuirError.of("X113", f"the specification `{name}` fails: {type(error).__name__}: {error}", user_span(error)) from error
