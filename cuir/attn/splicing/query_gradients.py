"""Transfer of the kernel of dQ alone.

Its splice points are the forward pass's, and `dscore`, the score's derivative.
"""

from __future__ import annotations

from dataclasses import replace

from ...spec.gradients import require_softmax
from ...spec.specification import Specification
from ...syntax.nodes import Func, Program, Return
from ...syntax.parser import parse
from ...syntax.printer import show
from ...syntax.rewrite import rename_names
from ..tracing.read_ranges import trace_without_clashes
from ..tracing.splice_names import list_reserved, names_of
from ..tracing.traced_result import Traced
from .backward import read_by_gradients
from .derivative import dscore
from .dropout_splice import with_dropout_gradients
from .splice import TransferResult, diff_texts, require_points, transfer

KERNEL = "flash_bwd_dq"


def transfer_query_gradients(origin: Program, spec: Specification, *, traced: Traced | None = None) -> TransferResult:
    """Replace the splice points of the forward pass, and `dscore`.

    `traced` is the trace of the specification. Raises CuirError: X120-X123 for what cannot be traced, X109 for weights
    other than a softmax's, or a score whose derivative is unknown, X130, X131 for a program that is no such kernel.
    """
    require_softmax(spec)
    require_points(origin, origin.kernels()[KERNEL], {"dscore": 5})
    traced = trace_without_clashes(spec) if traced is None else traced
    used = read_by_gradients(traced)
    # LSE holds a sink
    traced = replace(traced, sink=None, parameters=tuple(p for p in traced.parameters if p.name in used))
    traced = replace(traced, user_names=tuple(a for a in traced.user_names if a[1] in used)).rename_reserved(
        names_of(origin) | list_reserved()
    )
    result = transfer(
        origin, replace(spec, sink=None, max_scores=False, outputs=(), dropout=None), KERNEL, traced=traced, bits=False, tables=False
    )
    names = {mine.name: parameter.name for mine, parameter in zip(traced.parameters, result.captured, strict=True)}
    old = origin.funcs()["dscore"]
    value = rename_names(dscore(*traced.differentiated), names)
    new = replace(old, body=(Return(value),))
    items = tuple(new if isinstance(i, Func) and i.name == "dscore" else i for i in result.program.items)
    changed = replace(result.program, items=items)
    if spec.dropout is not None:
        changed = with_dropout_gradients(changed, changed.kernels()[KERNEL])
    before, after = show(origin), show(changed)
    program = parse(after, f"{spec.name}_dq.cuir")
    replaced = (*result.replaced, *(["dscore"] if new.body != old.body else []))
    return replace(result, program=program, text=after, diff=diff_texts(before, after, KERNEL, spec.name), replaced=replaced, spec=spec)


__all__ = ["KERNEL", "transfer_query_gradients"]
