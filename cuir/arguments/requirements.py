"""Requirements of a launch on its tensors beyond their types, from the checked kernel alone.

The rule for engines that copy is here. The interpreter and a GPU launch apply it to the tensors of a call, `cuir
check` and verification to the consts, before there are any.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..checking.checked import Checked
from ..checking.kernel_results import keep_with_kernel
from ..checking.views import root_name
from ..syntax.walk import walk
from ..text.diagnostics import CuirError
from ..text.source import Span

if TYPE_CHECKING:
    import torch

    Argument = torch.Tensor | int | float

# bytes: base and strides of what engines copy (CUDA driver API, cuTensorMapEncodeTiled; PTX, cp.async)
COPY_ALIGNMENT = 16


@keep_with_kernel
def find_copied_tensors(checked: Checked) -> Mapping[str, Span]:
    """Return the tensors that asynchronous copies access, each with the span of the first such call."""
    spans: dict[str, Span] = {}
    names = {t.name for t in checked.tensors}
    for node in (n for role in checked.roles for stmt in role.body for n in walk(stmt)):
        bound = checked.find_call(node)
        for access in bound.op.effects.accesses if bound is not None else ():
            root = root_name(bound.args[access.arg]) if bound is not None and access.late and access.arg in bound.args else None
            if root in names:
                spans.setdefault(str(root), node.span)
    return spans


def require_layout(checked: Checked, names: Iterable[str], arguments: Mapping[str, Argument]) -> None:
    """Check that tensors which engines copy start at, and have strides of, multiples of 16 bytes.

    Raises CuirError U506.
    """
    import torch

    for name in names:
        t = arguments[name]
        assert isinstance(t, torch.Tensor)
        if t.numel() == 0:
            continue
        param = next(p for p in checked.tensors if p.name == name)
        span = param.span
        if off := t.data_ptr() % COPY_ALIGNMENT:
            raise CuirError.of(
                "U506",
                f"`{name}` must start at a multiple of {COPY_ALIGNMENT} bytes, found address % {COPY_ALIGNMENT} = {off}",
                span,
                f"{name}.clone()",
            )
        if param.written and 0 in (stride for size, stride in zip(t.shape, t.stride(), strict=True) if size > 1):
            raise CuirError.of(
                "U506", f"`{name}` is written, so its strides must not be 0, found {list(t.stride())}", span, f"{name}.contiguous()"
            )
        if not _is_copyable(t):
            rows = t.shape[-1] * t.element_size()
            hint = (
                f"{name}.contiguous()"
                if rows % COPY_ALIGNMENT == 0
                else (
                    f"{t.shape[-1]} columns are {rows} bytes: pad the rows, or give a length that is a multiple of {COPY_ALIGNMENT // math.gcd(COPY_ALIGNMENT, t.element_size())}"
                )
            )
            raise CuirError.of(
                "U506",
                f"the strides of `{name}` must be multiples of {COPY_ALIGNMENT} bytes, found {list(t.stride())} elements of {t.element_size()} bytes",
                span,
                hint,
            )


def _is_copyable(t: torch.Tensor) -> bool:
    outer = zip(t.shape[:-1], t.stride()[:-1], strict=True)
    return all(size == 1 or stride * t.element_size() % COPY_ALIGNMENT == 0 for size, stride in outer)


def compute_length_multiple(checked: Checked, dim: str) -> int:
    """Return the number that a run-time dim must be a multiple of for contiguous tensors; 1 if any."""
    return math.lcm(
        *(
            COPY_ALIGNMENT // math.gcd(COPY_ALIGNMENT, t.dtype.itemsize)
            for t in checked.tensors
            if t.name in find_copied_tensors(checked) and len(t.dims) > 1 and t.dims[-1] == dim
        )
    )


def describe_row_requirements(checked: Checked) -> str:
    """Describe what launches require of the layout of rows; "" if nothing.

    Of run-time lengths, and of tensors whose rows, by consts and the signature, are no multiple of 16 bytes.
    """
    needs = {d: n for d in checked.dims if (n := compute_length_multiple(checked, d)) > 1}
    requirements = [f"{d} must be a multiple of {n} in contiguous tensors" for d, n in needs.items()] + _list_uneven_rows(checked)
    return f"{' and '.join(requirements)}, for rows that are copied begin at multiples of {COPY_ALIGNMENT} bytes" if requirements else ""


def _list_uneven_rows(checked: Checked) -> list[str]:
    requirements = []
    for t in checked.tensors:
        columns = t.dims[-1] if t.name in find_copied_tensors(checked) and any(d != 1 for d in t.dims[:-1]) else 0
        if isinstance(columns, int) and columns * t.dtype.itemsize % COPY_ALIGNMENT:
            requirements.append(
                f"rows of `{t.name}`, {columns} {t.dtype} of {columns * t.dtype.itemsize} bytes, must lie further apart than they are long"
            )
    return requirements


def pad_arguments(checked: Checked, arguments: Mapping[str, Argument]) -> dict[str, Any]:
    """Return the arguments, with copies of tensors that no engine could copy, whose rows are padded."""
    import torch

    return {
        n: _pad(x) if n in find_copied_tensors(checked) and isinstance(x, torch.Tensor) and not _is_copyable(x) else x
        for n, x in arguments.items()
    }


def _pad(t: torch.Tensor) -> torch.Tensor:
    import torch

    unit = COPY_ALIGNMENT // math.gcd(COPY_ALIGNMENT, t.element_size())
    wider = torch.zeros((*t.shape[:-1], -(-t.shape[-1] // unit) * unit), dtype=t.dtype, device=t.device)
    rows = wider[..., : t.shape[-1]]
    rows.copy_(t)
    return rows


def copy_of(t: torch.Tensor) -> torch.Tensor:
    """Copy with the same strides, also of padded rows; dense where elements share memory."""
    import torch

    return t.clone() if 0 in t.stride() else torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device).copy_(t)
