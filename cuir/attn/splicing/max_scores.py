"""The largest score of each query as one more output of a kernel: MAX_SCORES f32 [B, H, M].

It is in the units of the scores, -inf for a query without keys. The softmax's own reference will not do: it may lag
behind the maximum, where that grows little. So the state of the softmax, of any kind, is extended by the true maximum,
and it is stored where LSE is. A program whose specification does not ask for it is unchanged.
"""

from __future__ import annotations

from dataclasses import replace

from ...checking.prelude_functions import prelude
from ...ops.expressions import get_called_op
from ...spec.specification import Normalize
from ...syntax.nodes import Binary, Call, Constant, Expr, ExprStmt, Func, GlobalType, Kernel, Literal, Name, Param, Program, Stmt, Subscript
from ...syntax.parser import parse
from ...syntax.rewrite import rewrite_block
from ...syntax.walk import names_read, walk
from ...text.diagnostics import CuirError
from ..tracing.mod_evaluator import CONSTANTS
from ..tracing.splice_names import MAX_SCORES
from .normalisers import MET, PARTED, POINTS, is_parted, meets

_TEXT = """\
@func
def softmax_begin(R):                    # beside the state: the largest score so far, as `score` scales it
    return {begin}(R), full(f32, [R, 1], -inf)

@func
def softmax_step(S, state, c):
    inner, most = state
    P, inner, alpha = {step}(S, inner, c)
    return P, (inner, max(most, row_max(S) * c)), alpha

@func
def softmax_end({ends}):
    inner, _ = {state}
    return {end}({inner_ends})
"""


_PARTS = """\
@func
def softmax_save(part, state, b, h, q):
    inner, most = state
    {save}(part, inner, b, h, q)
    store(STATES[2, b, h, q, part // WG, part % WG], most)
    return ()

@func
def softmax_joined(b, h, q, first, step, count):
    part = first + step * min(cols(cdiv(count, 8) * 8), count - 1)
    most = row_max(STATES[2, b, h, q, part // WG, part % WG])
    return {joined}(b, h, q, first, step, count), most

@func
def softmax_share(part, state, b, h, q):
    inner, _ = state
    return {share}(part, inner, b, h, q)
"""


_WARPS = """\
@func
def softmax_leave(states, w, state):
    inner, most = state
    {leave}(states, w, inner)
    store(states[2, w], most)
    return ()

@func
def softmax_met(states, w, r):
    most = load(states[2, w, r : r + 16])
    for p in range(1, WG):
        most = max(most, load(states[2, p * (GROUP * BM // ROWS) + w, r : r + 16]))
    return {met}(states, w, r), most

@func
def softmax_weight(states, w, r, state):
    inner, _ = state
    return {weight}(states, w, r, inner)
"""


def with_max_scores(program: Program, target: Kernel, normalize: Normalize) -> Program:
    """Return the program with MAX_SCORES behind LSE.

    `target` is its attention kernel, whose splice points are those of `normalize`. Raises CuirError X130 where no
    function stores LSE and calls `softmax_end`.
    """
    functions = {**prelude().funcs(), **program.funcs()}
    used_names = {item.name for item in program.items} | {name for item in program.items for name in names_read(item)}
    inner = {point: _fresh(f"{point}_inner", used_names) for point in POINTS}
    ends = functions["softmax_end"].params
    begin, step, end = (inner[point] for point in POINTS)
    inner_ends = ", ".join((ends[0], "inner", *ends[2:]))
    text = _TEXT.format(begin=begin, step=step, end=end, ends=", ".join(ends), state=ends[1], inner_ends=inner_ends)
    if is_parted(program.funcs()):
        inner |= {point: _fresh(f"{point}_inner", used_names) for point in PARTED}
        text += _PARTS.format(save=inner["softmax_save"], joined=inner["softmax_joined"], share=inner["softmax_share"])
    if meets(program.funcs()):
        inner |= {point: _fresh(f"{point}_inner", used_names) for point in MET}
        text += _WARPS.format(leave=inner["softmax_leave"], met=inner["softmax_met"], weight=inner["softmax_weight"])
    outer = parse(text, "splice points").funcs()
    unit: Expr | None = Name("LN2") if normalize != "relu" else None
    stored = 0
    items: list[Constant | Func | Kernel] = []
    for item in program.items:
        if isinstance(item, Func) and item.name in inner:
            items += [replace(item, name=inner[item.name]), outer[item.name]]
            continue
        if isinstance(item, (Func, Kernel)):
            body = _storing(item, unit)
            stored += body is not item.body
            item = replace(item, body=body)
        if isinstance(item, Kernel) and item.name == target.name:
            at = len(items)
            missing = [name for name in POINTS if name not in program.funcs()]
            items[at:at] = [f for name in missing for f in (replace(functions[name], name=inner[name]), outer[name])]
            item = replace(
                item,
                params=tuple(
                    p for parameter in item.params for p in ((parameter, _output(parameter)) if parameter.name == "LSE" else (parameter,))
                ),
            )
        items.append(item)
    if stored != 1:
        raise CuirError.of(
            "X130",
            f"the largest scores are stored beside LSE, and {stored or 'no'} functions of `{target.name}` call `softmax_end` and store LSE",
            target.span,
            "one function that stores LSE: store(LSE[...], lse)",
        )
    constants = {i.name for i in items if isinstance(i, Constant)}
    if unit is not None and "LN2" not in constants:
        items.insert(0, Constant("LN2", Literal(CONSTANTS["LN2"])))
    return replace(program, items=tuple(items))


def _storing(item: Func | Kernel, unit: Expr | None) -> tuple[Stmt, ...]:
    """Return the body with a store behind that of LSE; `unit` turns base-2 logits into scores."""
    state = next((n.args[1] for n in walk(item) if isinstance(n, Call) and n.func == Name("softmax_end") and len(n.args) > 1), None)

    def followed(stmt: Stmt) -> Stmt | tuple[Stmt, ...]:
        call = stmt.value if isinstance(stmt, ExprStmt) else None
        op = get_called_op(call) if isinstance(call, Call) else None
        if (
            state is None
            or op is None
            or not isinstance(call, Call)
            or not any(a.mode == "write" and a.arg == op.params[0].name for a in op.effects.accesses)
        ):
            return stmt
        place = call.args[0]
        if not isinstance(place, Subscript) or place.value != Name("LSE"):
            return stmt
        most: Expr = Subscript(state, (Literal(1),))
        value = most if unit is None else Binary("*", most, unit)
        return stmt, ExprStmt(replace(call, args=(Subscript(Name(MAX_SCORES), place.indices), value)))

    return rewrite_block(item.body, followed)


def _output(lse: Param) -> Param:
    assert isinstance(lse.type, GlobalType)
    return Param(MAX_SCORES, GlobalType("f32", lse.type.dims))


def _fresh(name: str, used_names: set[str]) -> str:
    while name in used_names:
        name += "_"
    return name


__all__ = ["with_max_scores"]
