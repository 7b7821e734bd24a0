"""Parameters that a specification adds to a kernel: their declarations, and the kernel with them.

Kernels that a model wrote are checked elsewhere.
"""

from __future__ import annotations

import torch

from cuir.attn.splicing.splice import declare_parameter, reachable, with_parameters
from cuir.attn.tracing.splice_names import STANDARD, list_reserved, names_of
from cuir.attn.tracing.trace import SAMPLE, trace
from cuir.attn.tracing.traced_result import Parameter, Value
from cuir.spec.function_specification import AnySpecification, FunctionSpecification
from cuir.spec.specification import Specification
from cuir.syntax.nodes import GlobalType, Kernel, Param, Program, ScalarType
from cuir.syntax.parser import parse
from cuir.syntax.types import F32, I32
from cuir.syntax.walk import with_children
from cuir.text.diagnostics import CuirError


def list_added_parameters(origin: Program, target: AnySpecification) -> tuple[tuple[Param, Value | None], ...]:
    """Return the parameters that a target reads beyond the origin's, with values of fixed numbers.

    A function declares them; what mods capture is traced.
    """
    if isinstance(target, FunctionSpecification):
        if not target.parameters:
            return ()
        program = parse(f'@kernel(arch="sm_90a")\ndef declared({target.parameters}):\n    x = 0\n', f"parameters of {target.name}")
        return tuple((p, None) for p in program.kernels()["declared"].params)
    try:
        parameters = _trace_parameters(origin, target)
    except CuirError:  # a model is asked since mods cannot be traced: verification knows their values by name
        parameters = tuple(_make_untraced_parameter(name, value) for name, value in target.values(SAMPLE).items())
    return tuple((declare_parameter(p), p.value) for p in parameters)


def _trace_parameters(origin: Program, target: Specification) -> tuple[Parameter, ...]:
    """Return what a target captures. A name of the origin is not taken, unless for a parameter that stays the same."""
    reserved = names_of(origin) | list_reserved()
    own = {p.name: _describe_kind(p) for kernel in origin.kernels().values() for p in kernel.params if p.name not in STANDARD}
    parameters = trace(target, reserved - own.keys()).parameters
    others = {p.name for p in parameters if p.name in own and _describe_kind(declare_parameter(p)) != own[p.name]}
    return trace(target, reserved - (own.keys() - others)).parameters if others else parameters


def _describe_kind(param: Param) -> tuple[str, int] | None:
    """Return dtype and number of dims of a tensor or scalar; None for a const."""
    if isinstance(param.type, GlobalType):
        return str(param.type.dtype), len(param.type.dims)
    return (str(param.type.dtype), 0) if isinstance(param.type, ScalarType) else None


def supply_parameters(program: Program, kernel: str, origin: Program, target: AnySpecification) -> Program:
    """Add the further parameters to the kernel of a program.

    A function's kernel gets all that it declares, others those that functions read.
    """
    read, old = reachable(program), program.kernels()[kernel]
    has = {p.name for p in old.params}
    always = isinstance(target, FunctionSpecification)
    new = tuple(p for p, _ in list_added_parameters(origin, target) if p.name not in has and (always or p.name in read))
    return _with(program, old, with_parameters(old, new)) if new else program


def _with(program: Program, old: Kernel, new: Kernel) -> Program:
    """Replace a kernel."""
    return with_children(program, lambda item: new if item is old else item)


def _make_untraced_parameter(name: str, value: Value) -> Parameter:
    """Return the parameter of a captured value whose mod cannot be traced."""
    if isinstance(value, torch.Tensor):
        return Parameter(name, F32 if value.dtype.is_floating_point else I32, max(1, value.ndim), None, name)
    return Parameter(name, F32 if isinstance(value, float) else I32, 0, value)
