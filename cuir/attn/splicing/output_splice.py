"""Further outputs as statements of a kernel (outputs/output_table.py).

The state of the softmax, of any kind, is extended by the states of the outputs, which are stored where LSE is. A program
whose specification asks for no output is unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...checking.prelude_functions import prelude
from ...ops.expressions import get_called_op
from ...spec.specification import Normalize
from ...syntax.nodes import (
    Call,
    Constant,
    Expr,
    ExprStmt,
    Func,
    GlobalType,
    Kernel,
    Literal,
    Name,
    Node,
    Param,
    Program,
    Return,
    Stmt,
    Subscript,
)
from ...syntax.templates import Holes
from ...syntax.walk import names_read, rewrite, rewrite_block, substitute, walk
from ...text.diagnostics import CuirError
from ..outputs.attention_output import AttentionOutput, RowState
from ..outputs.output_table import can_merge, describe_outputs, find_outputs
from ..tracing.mod_evaluator import CONSTANTS
from .normalisers import CONDITIONS, FOLLOWED, PARTED, POINTS, is_parted, meets, takes_turns

_TEXT = """\
@func
def softmax_begin(R):                    # beside the state: {descriptions}
    return {begin}(R), {begins}

@func
def softmax_step(S, state, c):
    inner, {names} = state
    P, inner, alpha = {step}(S, inner, c)
    return P, (inner, {steps}), alpha

@func
def softmax_end({ends}):
    inner, {blanks} = {state}
    return {end}({inner_ends})
"""


_PARTS = """\
@func
def softmax_save(part, state, b, h, q):
    inner, {names} = state
    {save}(part, inner, b, h, q)
{saves}
    return ()

@func
def softmax_joined(b, h, q, first, step, count):
    part = first + step * min(cols(cdiv(count, 8) * 8), count - 1)
{joins}
    return {joined}(b, h, q, first, step, count), {names}

@func
def softmax_share(part, state, b, h, q):
    inner, {blanks} = state
    return {share}(part, inner, b, h, q)
"""
_SAVE = "    store(STATES[{place}, b, h, q, part // WG, part % WG], {name})"
_JOIN = "    {name} = row_{merge}(STATES[{place}, b, h, q, part // WG, part % WG])"


_WARPS = """\
@func
def softmax_leave(states, w, state):
    inner, {names} = state
    {leave}(states, w, inner)
{leaves}
    return ()

@func
def softmax_met(states, w, r):
{meetings}
    return {met}(states, w, r), {names}

@func
def softmax_weight(states, w, r, state):
    inner, {blanks} = state
    return {weight}(states, w, r, inner)
"""
_TURNS = """\
@func
def softmax_pass(states, state):
    inner, {names} = state
    {pass}(states, inner)
{passes}
    return ()

@func
def softmax_follow(states, state):
    inner, {blanks} = state
    inner, alpha = {follow}(states, inner)
    return (inner, {followed}), alpha
"""
_PASS = "    store(states[{place}], {name})"
_FOLLOW = "load(states[{place}])"
_LEAVE = "    store(states[{place}, w], {name})"
_MEET = """\
    {name} = load(states[{place}, w, r : r + 16])
    for p in range(1, WG):
        {name} = {merge}({name}, load(states[{place}, p * (GROUP * BM // ROWS) + w, r : r + 16]))"""
_OWN_STATES = 2  # of a softmax, which parts save before those of outputs


def with_outputs(program: Program, target: Kernel, normalize: Normalize, names: Sequence[str]) -> Program:
    """Return the program with these outputs as parameters behind LSE, computed and stored.

    Raises CuirError X130 where no function stores LSE and calls `softmax_end`, and for a kernel which shares out the
    keys if the outputs of parts cannot be joined.

    Args:
        target: the program's attention kernel.
        normalize: kind of weights, whose splice points the kernel has.
    """
    outputs = find_outputs(names)
    states = [state for output in outputs for state in output.states]
    functions = {**prelude().funcs(), **program.funcs()}
    parted, meeting = is_parted(program.funcs()), meets(program.funcs())
    turning = takes_turns(program.funcs())
    if (parted or meeting or turning) and not can_merge(names):
        raise CuirError.of(
            "X130",
            f"`{target.name}` shares out the keys, and cannot join {describe_outputs(names)} of its parts",
            target.span,
            "transfer from a kernel that visits all keys of a query in one loop",
        )
    used_names = {item.name for item in program.items} | {name for item in program.items for name in names_read(item)}
    points = [*POINTS, *(PARTED if parted else ()), *(CONDITIONS if meeting else ()), *(FOLLOWED if turning else ())]
    inner = {point: _fresh(f"{point}_inner", used_names) for point in points}
    outer = Holes().fill(_write_points(states, inner, functions["softmax_end"].params))
    values = {output.name: _parse_value(output, normalize) for output in outputs}
    stored = 0
    items: list[Constant | Func | Kernel] = []
    for item in program.items:
        if isinstance(item, Func) and item.name in inner:
            items += [replace(item, name=inner[item.name]), outer[item.name]]
            continue
        if isinstance(item, (Func, Kernel)):
            body = _storing(item, states, values, inner["softmax_end"])
            stored += body is not item.body
            item = replace(item, body=body)
        if isinstance(item, Kernel) and item.name == target.name:
            at = len(items)
            missing = [name for name in POINTS if name not in program.funcs()]
            items[at:at] = [f for name in missing for f in (replace(functions[name], name=inner[name]), outer[name])]
            item = replace(
                item,
                params=tuple(
                    p
                    for parameter in item.params
                    for p in ((parameter, *(_output(parameter, n) for n in values)) if parameter.name == "LSE" else (parameter,))
                ),
            )
        items.append(item)
    if stored != 1:
        raise CuirError.of(
            "X130",
            f"{describe_outputs(names)} are stored beside LSE, and {stored or 'no'} functions of `{target.name}` call `softmax_end` and store LSE",
            target.span,
            "one function that stores LSE: store(LSE[...], lse)",
        )
    present = {i.name for i in items if isinstance(i, Constant)}
    needed = {n for value in values.values() for n in names_read(value)} & CONSTANTS.keys() - present
    items[:0] = [Constant(name, Literal(CONSTANTS[name])) for name in sorted(needed)]
    return replace(program, items=tuple(items))


def _write_points(states: Sequence[RowState], inner: dict[str, str], ends: Sequence[str]) -> str:
    """Write softmax functions that accumulate further row states and call the original functions.

    Args:
        inner: new names of the original functions, by their names.
        ends: parameters of `softmax_end`.
    """
    lists = {"names": ", ".join(s.name for s in states), "blanks": ", ".join("_" for _ in states)}
    text = _TEXT.format(
        begin=inner["softmax_begin"],
        step=inner["softmax_step"],
        end=inner["softmax_end"],
        descriptions=", ".join(s.description for s in states),
        begins=", ".join(s.begin for s in states),
        steps=", ".join(s.step for s in states),
        ends=", ".join(ends),
        state=ends[1],
        inner_ends=", ".join((ends[0], "inner", *ends[2:])),
        **lists,
    )

    def write_each(template: str, between: str = "\n") -> str:
        return between.join(template.format(place=place, name=s.name, merge=s.merge) for place, s in enumerate(states, _OWN_STATES))

    if "softmax_save" in inner:
        parts = {name.removeprefix("softmax_"): inner[name] for name in PARTED}
        text += _PARTS.format(saves=write_each(_SAVE), joins=write_each(_JOIN), **parts, **lists)
    if "softmax_leave" in inner:
        parts = {name.removeprefix("softmax_"): inner[name] for name in CONDITIONS}
        text += _WARPS.format(leaves=write_each(_LEAVE), meetings=write_each(_MEET), **parts, **lists)
    if "softmax_pass" in inner:
        parts = {name.removeprefix("softmax_"): inner[name] for name in FOLLOWED}
        text += _TURNS.format(passes=write_each(_PASS), followed=write_each(_FOLLOW, ", "), **parts, **lists)
    return text


def _parse_value(output: AttentionOutput, normalize: Normalize) -> Expr:
    """Parse the expression that is stored."""
    (body,) = Holes().fill(f"@func\ndef value():\n    return {output.write_value(normalize)}\n")["value"].body
    assert isinstance(body, Return)
    return body.value


def _storing(item: Func | Kernel, states: Sequence[RowState], values: dict[str, Expr], inner_end: str) -> tuple[Stmt, ...]:
    """Return a body in which stores of `values` follow the store of LSE."""
    end_args = next((n.args for n in walk(item) if isinstance(n, Call) and n.func == Name("softmax_end") and len(n.args) > 1), None)
    if end_args is None:
        return item.body
    state = end_args[1]
    states_by_name: dict[str, Expr] = {s.name: Subscript(state, (Literal(place),)) for place, s in enumerate(states, 1)}

    def normalise(node: Node) -> Node:
        """Replace `normalise` by a call of the softmax's end, which divides accumulated values."""
        if not isinstance(node, Call) or node.func != Name("normalise"):
            return node
        return Subscript(Call(Name(inner_end), (*node.args, Subscript(state, (Literal(0),)), *end_args[2:])), (Literal(0),))

    own_values = {name: rewrite(substitute(value, states_by_name), normalise) for name, value in values.items()}

    def add_store_after(stmt: Stmt) -> Stmt | tuple[Stmt, ...]:
        call = stmt.value if isinstance(stmt, ExprStmt) else None
        op = get_called_op(call) if isinstance(call, Call) else None
        if (
            op is None
            or not isinstance(call, Call)
            or not any(a.mode == "write" and a.arg == op.params[0].name for a in op.effects.accesses)
        ):
            return stmt
        place = call.args[0]
        if not isinstance(place, Subscript) or place.value != Name("LSE"):
            return stmt
        stores = [ExprStmt(replace(call, args=(Subscript(Name(name), place.indices), value))) for name, value in own_values.items()]
        return (stmt, *stores)

    return rewrite_block(item.body, add_store_after)


def _output(lse: Param, name: str) -> Param:
    assert isinstance(lse.type, GlobalType)
    return Param(name, GlobalType("f32", lse.type.dims))


def _fresh(name: str, used_names: set[str]) -> str:
    while name in used_names:
        name += "_"
    return name


__all__ = ["with_outputs"]
