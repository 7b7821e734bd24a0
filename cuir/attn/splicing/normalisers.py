"""The splice points of a specification's weights: softmax_begin, softmax_step and softmax_end.

Kernels that split the keys also have softmax_save, softmax_joined and softmax_share, which join the results of the
parts. Kernels whose parts are first joined within a CTA also have softmax_leave, softmax_met and softmax_weight; those
whose warpgroups continue with one another's state have softmax_pass and softmax_follow, and those whose softmax_step
scales weights have softmax_sum, which makes the sum of such weights one of weights. The text of a plain softmax is
the origin's own; splice.py places these texts in a program.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...checking.prelude_functions import prelude
from ...spec.specification import Normalize
from ...syntax.nodes import Assign, Binary, Expr, Func, Kernel
from ...syntax.templates import Holes
from ...text.diagnostics import CuirError

POINTS = {"softmax_begin": 1, "softmax_step": 3, "softmax_end": 2}  # with the least number of parameters
PARTED = {
    "softmax_save": 5,
    "softmax_joined": 6,
    "softmax_share": 5,
}  # of a kernel whose keys are shared out; with the number of parameters
CONDITIONS = {
    "softmax_leave": 3,
    "softmax_met": 3,
    "softmax_weight": 4,
}  # of a kernel whose warps share a CTA's keys; with the number of parameters
FOLLOWED = {"softmax_pass": 2, "softmax_follow": 2}  # of a kernel whose warpgroups take turns; with the number of parameters
SUM = "softmax_sum"
_ENDS = ("acc", "state", "b", "h")  # of a softmax_end that knows its head

_STATELESS = """\
@func
def softmax_begin(R):                    # no state, and LSE is 0: each key is weighed by itself
    return zeros(f32, [R, 1])

@func
def softmax_step(S, state, c):           # -> {what}, state, factor for what was accumulated so far
    {weights}, state, 1.0

@func
def softmax_end({ends}):
    return {value}, state
"""
_STATELESS_PARTS = """\
@func
def softmax_save(part, state, b, h, q):  # nothing to save
    return ()

@func
def softmax_joined(b, h, q, first, step, count):     # no state
    return cast(q * 0, f32)

@func
def softmax_share(part, state, b, h, q): # parts are added up
    return 1.0
"""
_STATELESS_WARPS = """\
@func
def softmax_leave(states, w, state):     # nothing to leave
    return ()

@func
def softmax_met(states, w, r):           # no state
    return zeros(f32, [16, 1])

@func
def softmax_weight(states, w, r, state): # parts are added up
    return 1.0
"""
_STATELESS_TURNS = """\
@func
def softmax_pass(states, state):         # nothing to pass on
    return ()

@func
def softmax_follow(states, state):       # no state, and nothing to rescale
    return state, 1.0
"""
_SINK = """\
@func
def softmax_end(acc, state, b, h):       # the sink is one more logit, without a value
    top, total = state
    last = {sink} * LOG2E
    ref = max(top, last)
    rest = exp2(top - ref)
    total = {total} * rest + exp2(last - ref)
    acc = acc * where(total == 0.0, 0.0, {rest} / total)
    return acc, where(total == 0.0, -inf, (ref + log2(total)) * LN2)
"""
_WEIGHTS: dict[Normalize, tuple[str, str, str]] = {
    "sigmoid": ("weights (0 of a masked score, -inf)", "E = exp2(min(S * c, 31.0))\n    return E / (1.0 + E)", "acc"),
    "relu": ("N times the weights (0 of a masked score, -inf)", "return max(S * c, 0.0)", "acc * (1.0 / cast(max(1, N), f32))"),
}


def normaliser(normalize: Normalize, sink: Expr | None, funcs: Mapping[str, Func], kernel: Kernel) -> dict[str, Func]:
    """Return the functions to replace, by name; none for a plain softmax.

    `funcs` are those of the origin; `sink` is an expression of h. Raises CuirError X130 for an origin that lacks these
    splice points, X134 for one whose softmax an earlier transfer replaced.
    """
    functions = {**prelude().funcs(), **funcs}
    if normalize == "softmax":
        _require_softmax(functions, kernel, sink is None)
        if sink is None:
            return {}
        end = functions["softmax_end"]
        if end.params != _ENDS:
            raise CuirError.of(
                "X130",
                f"a sink is a logit of a head, and `softmax_end` of `{kernel.name}` does not know which: it takes ({', '.join(end.params)})",
                end.span,
                f"def softmax_end({', '.join(_ENDS)}):",
            )
        return _build_sink(sink, SUM in funcs)
    for name, count in POINTS.items():
        if len(functions[name].params) < count:
            raise CuirError.of(
                "X130", f"the splice point `{name}` takes {count} values, found {len(functions[name].params)}", functions[name].span
            )
    parts = (
        (_STATELESS_PARTS if is_parted(funcs) else "")
        + (_STATELESS_WARPS if meets(funcs) else "")
        + (_STATELESS_TURNS if takes_turns(funcs) else "")
    )
    return {**_stateless(normalize, _ends(functions)), **(Holes().fill(parts) if parts else {})}


def is_parted(funcs: Mapping[str, Func]) -> bool:
    """Return True if a program's kernels split the keys."""
    return set(PARTED) <= set(funcs)


def meets(funcs: Mapping[str, Func]) -> bool:
    """Return True if warps that share a CTA's keys join their results before CTAs join theirs."""
    return set(CONDITIONS) <= set(funcs)


def takes_turns(funcs: Mapping[str, Func]) -> bool:
    """Return True if warpgroups continue with the softmax state that another one passes on."""
    return set(FOLLOWED) <= set(funcs)


def score_comment(normalize: Normalize) -> str:
    """Return the comment on the result of `score` for weights of this kind."""
    return "the factor (> 0) that makes " + ("weights" if normalize == "relu" else "base-2 logits") + " of them"


def _ends(functions: Mapping[str, Func]) -> str:
    params = functions["softmax_end"].params
    return ", ".join(("acc", "state", *params[2:]))


def _stateless(normalize: Normalize, ends: str) -> dict[str, Func]:
    description, weights, value = _WEIGHTS[normalize]
    return Holes().fill(_STATELESS.format(what=description, weights=weights, value=value, ends=ends))


def _require_softmax(functions: Mapping[str, Func], kernel: Kernel, plain: bool) -> None:
    """Check that the origin's softmax is its own, and if `plain` its end as well."""
    normalize = next((n for n in _WEIGHTS if functions["softmax_step"].body == _stateless(n, "acc, state")["softmax_step"].body), None)
    if normalize is None and plain and _has_sink(functions["softmax_end"]):
        normalize = "softmax"
    if normalize is not None:
        description = "a sink" if normalize == "softmax" else f"{normalize} weights"
        raise CuirError.of(
            "X134",
            f"`{kernel.name}` is a variant with {description} in the place of the softmax that is needed",
            kernel.span,
            "transfer from the expert kernel",
        )


def _has_sink(end: Func) -> bool:
    """Return True if a `softmax_end` is the one that this module writes for a sink."""
    second = end.body[1] if len(end.body) > 1 else None
    if end.params != _ENDS or not isinstance(second, Assign) or not isinstance(second.value, Binary):
        return False
    return any(end.body == _build_sink(second.value.left, scaled)["softmax_end"].body for scaled in (False, True))


def _build_sink(sink: Expr, scaled: bool) -> dict[str, Func]:
    """Return the end of a softmax with a sink; `scaled`: sums are of scaled weights."""
    holes, of = Holes(), f"{SUM}({{}})" if scaled else "{}"
    return holes.fill(_SINK.format(sink=holes.put(sink), total=of.format("total"), rest=of.format("rest")))


__all__ = ["CONDITIONS", "FOLLOWED", "PARTED", "POINTS", "is_parted", "meets", "normaliser", "score_comment", "takes_turns"]
