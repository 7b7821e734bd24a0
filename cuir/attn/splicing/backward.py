"""Transfer of the backward kernel: the gradients of a variant, by replacing only splice points.

The splice points mirror the forward pass's: `score` and `keep` are the same, `dscore` is the score's derivative, and a
block of keys visits blocks of queries. block_bounds.py and block_lists.py find these for the mask with queries and keys exchanged.
`captured_begin`, `captured_step` and `captured_end` compute the gradients of captured tensors (captured_gradients.py).

Transfer of the kernel of dQ alone.

Its splice points are the forward pass's, and `dscore`, the score's derivative.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import cast

from ...ops.build_calls import cdiv
from ...spec.gradients import require_softmax
from ...spec.specification import Specification
from ...syntax.nodes import Binary, Func, Literal, Name, Program, Return, Tuple
from ...syntax.printer import place_in_text, show
from ...syntax.templates import Holes
from ...syntax.walk import names_read, rename_names
from ..masks.block_bounds import blocks
from ..masks.block_lists import column_lists_for, exchange_sides
from ..masks.tile_splice import Work
from ..tracing.read_ranges import trace_without_clashes
from ..tracing.splice_names import BACKWARD_POINTS, list_reserved, names_of
from ..tracing.traced_result import Traced
from .captured_gradients import PREFIX, gradient_of, local_names, make_gradient_functions
from .derivative import dscore
from .dropout_splice import with_dropout_gradients
from .quotient_bounds import bound_columns
from .splice import TransferResult, declare_parameter, diff_texts, require_points, splice_functions, transfer, without_functions

KERNEL = "flash_bwd"  # of the program, between `prepare` and `finish`
SELECTED_POINTS = {name: BACKWARD_POINTS[name] for name in ("score", "dscore", "keep")}  # of a kernel whose caller names the blocks
OWNED = "ROWS"  # the const of kernels whose workers own another number of keys than 64
_NAMES = {"q": "k", "k": "q", "M": "N", "N": "M", "BM": "BN", "BN": "BM", "m": "j", "kv_count": "q_count", "kv_block": "q_block"}
_WORDS = (
    ("which key block is the i-th", "which block of queries is the i-th"),
    ("key blocks [", "blocks of queries ["),
)
_LISTED = "the mask is not linear in q and k: which blocks of queries a block of keys visits stands in lists, made from the mask on the device for each problem and tile size"


def transfer_backward(
    origin: Program, spec: Specification, *, traced: Traced | None = None, learned: Collection[int] = ()
) -> TransferResult:
    """Replace the splice points of a backward kernel.

    These are `score`, `dscore`, `keep`, `q_count`, `q_block`, and the order of `tile` where the work grows with the
    keys.

    Args:
        traced: the trace of the specification.
        learned: indices of the traced parameters, floating tensors, of which the kernel computes gradients too. The
            gradient of `table` is the parameter `grad_table`, f32 of the same shape, to which it adds. Tensors that no
            score reads have none.

    Raises CuirError: X120-X123 for what cannot be traced, X109 for weights other than a softmax's, or a score whose
    derivative is unknown, X130, X131 for a program that is no such kernel.
    """
    require_softmax(spec)
    target = origin.kernels()[KERNEL]
    require_points(origin, target, BACKWARD_POINTS)
    traced = trace_without_clashes(spec) if traced is None else traced
    traced = replace(traced, sink=None)  # LSE holds it
    used_names = names_of(without_functions(origin, target, set(BACKWARD_POINTS), None))
    traced = traced.rename_reserved(used_names | list_reserved() | local_names(traced, [traced.parameters[i].name for i in learned]))

    def fresh(name: str) -> str:
        while name in used_names or name in {p.name for p in traced.parameters}:
            name += "_"
        return name

    gradients = {name: fresh(PREFIX + name) for name in (traced.parameters[i].name for i in learned)}
    closed_blocks = blocks(None if traced.keep is None else exchange_sides(traced.keep), fresh)
    lists = column_lists_for(traced.keep, fresh) if closed_blocks is None and traced.keep is not None else None
    by_rows = closed_blocks.functions if closed_blocks is not None else lists.build_functions() if lists is not None else {}
    rows = OWNED if any(p.name == OWNED for p in target.params) else "64"
    new = _functions(traced, by_rows) | make_gradient_functions(traced, gradients, rows)
    if "tile" in origin.funcs():
        new["tile"] = _order_items(origin.funcs()["tile"], closed_blocks.work if closed_blocks is not None else "listed")
    used = read_by_gradients(traced)
    added = tuple(declare_parameter(p) for p in traced.parameters if p.name in used) + (lists.parameters() if lists is not None else ())
    gradient_names = names_read(new["captured_step"]) | names_read(new["captured_end"]) if "captured_step" in new else set()
    gradients = {name: gradient for name, gradient in gradients.items() if gradient in gradient_names}
    added += tuple(gradient_of(declare_parameter(p), gradients[p.name]) for p in traced.parameters if p.name in gradients)
    program = splice_functions(origin, target, new, added, BACKWARD_POINTS, "q_count")
    if spec.dropout is not None:
        program = with_dropout_gradients(program, program.kernels()[target.name])
    program = place_in_text(program, f"{spec.name}_backward.cuir")
    after = program.span.source.text
    old = origin.funcs()
    replaced = tuple(name for name in new if name not in old or old[name] != new[name])
    captured = tuple(p for p in traced.parameters if p.name in used)
    notes = (*traced.notes, *(closed_blocks.notes if closed_blocks is not None else (_LISTED,)))
    return TransferResult(
        program,
        after,
        diff_texts(show(origin), after, target.name, spec.name),
        target.name,
        captured,
        replaced,
        notes,
        spec,
        lists,
        gradients=gradients,
    )


def has_uneven_work(traced: Traced) -> bool:
    """Return True if blocks of keys visit different numbers of blocks of queries."""
    if traced.keep is None:
        return False
    closed_blocks = blocks(exchange_sides(traced.keep), lambda name: name)
    return closed_blocks is None or closed_blocks.work != "even"


def read_by_gradients(traced: Traced) -> set[str]:
    """Return the names of a variant that the backward kernel reads.

    These are all but those of the sink alone, which is part of LSE.
    """
    return {name for e in (traced.keep, traced.score, traced.factor) if e is not None for name in names_read(e)}


def _functions(traced: Traced, blocks_by_rows: Mapping[str, Func]) -> dict[str, Func]:
    """Return the new functions by name, in the order of the text.

    `blocks_by_rows` has kv_count and kv_block of the mask with exchanged sides.
    """
    by_columns = {f.name: f for f in map(_by_columns, blocks_by_rows.values()) if f.name != "kv_rows"}
    holes, keep = Holes(), Literal(True) if traced.keep is None else bound_columns(traced.keep, "q")
    text = f"""\
@func
def score(S, b, h, q, k):                # -> scores and the factor (> 0) that makes base-2 logits of them: the forward pass's
    return {holes.put(traced.score)}, {holes.put(traced.factor)}

@func
def dscore(S, b, h, q, k):               # derivative of the natural logit (score * factor * ln 2) with respect to scale * S
    return {holes.put(dscore(*traced.differentiated))}

@func
def keep(b, h, q, k):                    # may query q attend to key k? (q < M and k < N are the kernel's business)
    return {holes.put(keep)}
"""
    return holes.fill(text) | by_columns


def _by_columns(f: Func) -> Func:
    """Return a function of rows of the exchanged mask as one of columns."""
    named, trail = cast(Func, rename_names(f, _NAMES)), f.comments.trail
    for old, new in _WORDS:
        trail = trail and trail.replace(old, new)
    return replace(
        named,
        name=_NAMES.get(f.name, f.name),
        params=tuple("j" if p == "m" else p for p in f.params),
        comments=replace(f.comments, trail=trail),
    )


def _order_items(tile: Func, work: Work) -> Func:
    """Return the order of the work items, the blocks of keys with most queries first."""
    last = tile.body[-1]
    if work != "growing" or not isinstance(last, Return) or not isinstance(last.value, Tuple):
        return tile
    *head, block = last.value.items
    from_end = Binary("-", Binary("-", cdiv(Name("N"), Name("BN")), Literal(1)), block)
    return replace(tile, body=(*tile.body[:-1], replace(last, value=replace(last.value, items=(*head, from_end)))))


def transfer_selected_keys(origin: Program, spec: Specification, *, traced: Traced | None = None) -> TransferResult:
    """Replace `score`, `dscore` and `keep` of a kernel of dK and dV over selected blocks, whose caller names the queries.

    `traced` is the trace of the specification. Raises CuirError as `transfer_backward`.
    """
    require_softmax(spec)
    target = origin.kernels()[KERNEL]
    require_points(origin, target, SELECTED_POINTS)
    traced = replace(trace_without_clashes(spec) if traced is None else traced, sink=None)
    traced = traced.rename_reserved(names_of(without_functions(origin, target, set(SELECTED_POINTS), None)) | list_reserved())
    new, used = _functions(traced, {}), read_by_gradients(traced)
    captured = tuple(p for p in traced.parameters if p.name in used)
    program = splice_functions(origin, target, new, tuple(map(declare_parameter, captured)), tuple(SELECTED_POINTS), "")
    program = place_in_text(program, f"{spec.name}_backward.cuir")
    after, old = program.span.source.text, origin.funcs()
    replaced = tuple(name for name in new if old[name] != new[name])
    diff = diff_texts(show(origin), after, target.name, spec.name)
    return TransferResult(program, after, diff, target.name, captured, replaced, traced.notes, spec)


QUERY_KERNEL = "flash_bwd_dq"


def transfer_query_gradients(origin: Program, spec: Specification, *, traced: Traced | None = None) -> TransferResult:
    """Replace the splice points of the forward pass, and `dscore`.

    `traced` is the trace of the specification. Raises CuirError: X120-X123 for what cannot be traced, X109 for weights
    other than a softmax's, or a score whose derivative is unknown, X130, X131 for a program that is no such kernel.
    """
    require_softmax(spec)
    require_points(origin, origin.kernels()[QUERY_KERNEL], {"dscore": 5})
    traced = trace_without_clashes(spec) if traced is None else traced
    used = read_by_gradients(traced)
    # LSE holds a sink
    traced = replace(traced, sink=None, parameters=tuple(p for p in traced.parameters if p.name in used))
    traced = replace(traced, user_names=tuple(a for a in traced.user_names if a[1] in used)).rename_reserved(
        names_of(origin) | list_reserved()
    )
    result = transfer(
        origin, replace(spec, sink=None, max_scores=False, outputs=(), dropout=None), QUERY_KERNEL, traced=traced, bits=False, tables=False
    )
    names = {mine.name: parameter.name for mine, parameter in zip(traced.parameters, result.captured, strict=True)}
    old = origin.funcs()["dscore"]
    value = rename_names(dscore(*traced.differentiated), names)
    new = replace(old, body=(Return(value),))
    items = tuple(new if isinstance(i, Func) and i.name == "dscore" else i for i in result.program.items)
    changed = replace(result.program, items=items)
    if spec.dropout is not None:
        changed = with_dropout_gradients(changed, changed.kernels()[QUERY_KERNEL])
    program = place_in_text(changed, f"{spec.name}_dq.cuir")
    after, diff = program.span.source.text, diff_texts(show(origin), program.span.source.text, QUERY_KERNEL, spec.name)
    replaced = (*result.replaced, *(["dscore"] if new.body != old.body else []))
    return replace(result, program=program, text=after, diff=diff, replaced=replaced, spec=spec)


__all__ = [
    "KERNEL",
    "QUERY_KERNEL",
    "has_uneven_work",
    "read_by_gradients",
    "transfer_backward",
    "transfer_query_gradients",
    "transfer_selected_keys",
]
