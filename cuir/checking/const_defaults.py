"""Values of const parameters: the caller's, then the file's defaults, then the usual ones.

A default is a literal, a dtype, or the value of a const before it.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..syntax.nodes import ConstType, GlobalType, Kernel, Literal, Name, Param
from ..syntax.types import DTYPES, F16, DType
from .checked import Const
from .fold import fold

USUAL_DTYPE = F16  # for a dtype const of tensors without a value
USUAL_HEAD_DIM = 128  # for a const D without a value
HEAD_DIM = "D"
PlainConst = int | float | bool | str  # a const as JSON holds it: a dtype by its name
PlainConsts = dict[str, PlainConst]


def get_default(p: Param, before: Mapping[str, Const]) -> Const | None:
    """Return the default of a const parameter; None if it has none or refers to a const without a value.

    Args:
        before: values of the consts before it.
    """
    if isinstance(p.default, Name):
        return before.get(p.default.id, DTYPES.get(p.default.id))
    folded = fold(p.default) if p.default is not None else None
    return folded.value if isinstance(folded, Literal) else None


def with_defaults(kernel: Kernel, arguments: Mapping[str, Const]) -> dict[str, Const]:
    """Return the values of a kernel's consts: from `arguments`, else from defaults that are known."""
    values: dict[str, Const] = {}
    for p in kernel.params:
        if isinstance(p.type, ConstType):
            value = arguments[p.name] if p.name in arguments else get_default(p, values)
            if value is not None:
                values[p.name] = value
    return values


def list_dtype_consts(kernel: Kernel) -> list[str]:
    """List const parameters that are dtypes of tensors, in the order of the tensors."""
    consts = {p.name for p in kernel.params if isinstance(p.type, ConstType)}
    return list(dict.fromkeys(p.type.dtype for p in kernel.params if isinstance(p.type, GlobalType) and p.type.dtype in consts))


def fill_consts(kernel: Kernel, consts: Mapping[str, Const], fallbacks: Mapping[str, Const] | None = None) -> dict[str, Const]:
    """Return the caller's consts, with values for parameters that have none and no default.

    Those come from `fallbacks`, else they are the usual dtype and head dim. This is the only place that decides on
    consts which neither the caller nor the file gives. Consts without any value stay out: N112 of the check.
    """
    usual: dict[str, Const] = {HEAD_DIM: USUAL_HEAD_DIM, **dict.fromkeys(list_dtype_consts(kernel), USUAL_DTYPE), **(fallbacks or {})}
    without = [p.name for p in kernel.params if isinstance(p.type, ConstType) and p.default is None]
    return {n: consts[n] if n in consts else usual[n] for n in without if n in consts or n in usual} | dict(consts)


def label(consts: Mapping[str, Const]) -> str:
    """Format consts as the command line takes them: `BM=128,BN=128`."""
    return ",".join(f"{name}={value}" for name, value in consts.items())


def describe_consts(consts: Mapping[str, Const]) -> str:
    """Format consts for people: `BM=128, BN=128`, or `no consts`."""
    return ", ".join(f"{name}={value}" for name, value in consts.items()) or "no consts"


def parenthesise_consts(consts: Mapping[str, Const]) -> str:
    """Format consts behind a title, `  (BM=128, BN=128)`; nothing where there are none."""
    return f"  ({describe_consts(consts)})" if consts else ""


def select_main_consts(kernel: Kernel, consts: Mapping[str, Const]) -> dict[str, Const]:
    """Select consts that identify a kernel's problem.

    These are dtypes of tensors, the head dim, and those in `consts`.
    """
    main = {*list_dtype_consts(kernel), HEAD_DIM, *consts}
    return {n: v for n, v in with_defaults(kernel, consts).items() if n in main}


def consts_as_json(consts: Mapping[str, Const]) -> PlainConsts:
    """Return consts as JSON holds them, dtypes by name."""
    return {name: value.name if isinstance(value, DType) else value for name, value in consts.items()}


__all__ = [
    "HEAD_DIM",
    "USUAL_DTYPE",
    "USUAL_HEAD_DIM",
    "PlainConst",
    "PlainConsts",
    "consts_as_json",
    "describe_consts",
    "fill_consts",
    "get_default",
    "label",
    "list_dtype_consts",
    "select_main_consts",
    "with_defaults",
]
