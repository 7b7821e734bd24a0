"""Transfer: an expert kernel and a specification -> the kernel of that variant, by replacing splice points and nothing else.

Owns which definitions are replaced and how they are named. Does not own tracing (trace.py) nor the blocks of a mask (blocks.py).
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from ..diagnostics import CuirError
from ..nodes import (
    Assign,
    AugAssign,
    Binary,
    Call,
    Comments,
    Constant,
    ConstType,
    Definition,
    For,
    Func,
    GlobalType,
    Kernel,
    Literal,
    Name,
    Param,
    Program,
    Return,
    ScalarType,
    Tuple,
    With,
)  # fmt: skip
from ..ops import TABLE
from ..parser import parse
from ..printer import show
from ..spec import Lengths, Specification
from ..types import DTYPES
from ..walk import assigned, names_read, walk
from .blocks import Blocks, blocks
from .proxy import CONSTANTS
from .trace import Parameter, Traced, Value, trace

SPLICE_POINTS = {"score": 5, "keep": 4, "kv_count": 3, "kv_block": 4}  # with the number of parameters
STANDARD = ("Q", "K", "V", "O", "LSE", "scale")  # what every attention kernel of the corpus takes
_NEEDED = ("B", "H", "M", "N", "BM", "BN", "scale")
_LOCALS = {"S", "b", "h", "m", "q", "k", "i", "j", "n", "full", "end", "partial", "lo", "hi", "flo", "fhi", "v1", "l2", "v2", "l3", "v3", "a1", "b1", "a2", "b2",
           "one", "two", "masked", "r", "spans", "rank"}  # fmt: skip
_WORDS = {"def", "return", "for", "in", "if", "else", "elif", "with", "as", "and", "or", "not", "True", "False", "func", "kernel", "range", "inf", "bar", "import", "lambda",
          "class", "while", "pass", "is", "None"}  # fmt: skip


@dataclass(frozen=True)
class TransferResult:
    """`program`: the variant, its spans in `text` (canonical); `diff`: unified, against the origin's canonical text, empty if nothing changed.

    `parameters`: values of the kernel's new parameters, those that follow the problem's lengths left out (see `arguments`).
    """

    program: Program
    text: str
    diff: str
    kernel: str
    captured: tuple[Parameter, ...]
    replaced: tuple[str, ...]
    notes: tuple[str, ...]
    spec: Specification = field(repr=False)

    @property
    def parameters(self) -> dict[str, Value]:
        return {p.name: p.argument(self.spec, _NO_LENGTHS) for p in self.captured if p.value is not None}

    def arguments(self, lengths: Lengths, device: torch.device | str = "cpu") -> dict[str, Value]:
        """What a launch passes for the new parameters, for a problem of these lengths."""
        return {p.name: p.argument(self.spec, lengths, device) for p in self.captured}


_NO_LENGTHS = Lengths(0, 0, 0, 0, 0)


def transfer(origin: Program, spec: Specification, kernel: str | None = None) -> TransferResult:
    """Replaces `score`, `keep`, `kv_count`, `kv_block` and, where other tiles are the longest, `tile`.

    Raises CuirError: X120-X123 what cannot be traced (with the place in the user's file), X130 a splice point is missing, X131 the kernel lacks a
    name that splice points use, N109/N110 which kernel.
    """
    target = _kernel(origin, kernel)
    _require(origin, target)
    traced = trace(spec, names_of(origin) | reserved())
    own = _reachable(origin, without=set(SPLICE_POINTS) | {"tile"})  # what stays: helpers of the old splice points go

    def fresh(name: str) -> str:
        while name in own or name in {p.name for p in traced.parameters}:
            name += "_"
        return name

    made = blocks(traced.keep, fresh)
    new = _functions(origin, traced, made)
    program = _spliced(origin, target, new, traced)
    before, after = show(origin), show(program)
    program = parse(after, f"{spec.name}.cuir")
    diff = "\n".join(
        difflib.unified_diff(
            before.splitlines(), after.splitlines(), f"{target.name} (origin)", f"{target.name} ({spec.name})", lineterm="", n=3
        )
    )
    old = origin.funcs()
    replaced = tuple(name for name in new if name not in old or old[name] != new[name])
    notes = (*traced.notes, *made.notes)
    return TransferResult(program, after, diff, target.name, traced.parameters, replaced, notes, spec)


def captured_arguments(
    program: Program, kernel: Kernel, spec: Specification, lengths: Lengths, device: torch.device | str = "cpu"
) -> dict[str, Value]:
    """Values for the parameters of a transferred kernel beyond the standard ones, by retracing the specification.

    A parameter of a program from elsewhere is found by its name among what the specification captures. Raises CuirError X132 for one that is not there.
    """
    extra = [p for p in kernel.params if not isinstance(p.type, ConstType) and p.name not in STANDARD]
    if not extra:
        return {}
    known: dict[str, Parameter] = {}
    with contextlib.suppress(CuirError):  # a specification that cannot be traced: the parameters are named as in its `captured`
        known = {p.name: p for p in trace(spec, (names_of(program) | reserved()) - {p.name for p in extra}).parameters}
    given = spec.values(lengths)
    values: dict[str, Value] = {}
    for p in extra:
        if p.name not in known and p.name not in given:
            raise CuirError.of("X132", f"`{kernel.name}` takes `{p.name}`, for which the specification `{spec.name}` has no value", p.span,
                               f"it captures: {', '.join({**known, **given}) or 'nothing'}")  # fmt: skip
        value = known[p.name].argument(spec, lengths, device) if p.name in known else given[p.name]
        values[p.name] = value.to(device) if isinstance(value, torch.Tensor) else value
    return values


def reserved() -> set[str]:
    """Names that a captured value may not have in a kernel."""
    return _LOCALS | _WORDS | {op.written for op in TABLE.values()} | set(DTYPES) | set(CONSTANTS)


def names_of(program: Program) -> set[str]:
    """Every name that a program defines, binds or reads."""
    found: set[str] = set()
    for item in program.items:
        for node in walk(item):
            if isinstance(node, Name):
                found.add(node.id)
            elif isinstance(node, Func):
                found.update((node.name, *node.params))
            elif isinstance(node, Assign):
                found.update(node.targets)
            elif isinstance(node, (For, AugAssign)):
                found.add(node.target)
            elif isinstance(node, (Constant, Kernel, Param, With)):
                found.add(node.name or "_")
            elif isinstance(node, GlobalType):
                found.update(d for d in node.dims if isinstance(d, str))
    return found


def _kernel(origin: Program, name: str | None) -> Kernel:
    kernels = origin.kernels()
    if name is None and len(kernels) == 1:
        return next(iter(kernels.values()))
    if name is None:
        raise CuirError.of("N109", f"which kernel? the program has {', '.join(kernels) or 'none'}")
    if name not in kernels:
        raise CuirError.of("N110", f"the program has no kernel `{name}`; it has: {', '.join(kernels) or 'none'}")
    return kernels[name]


def _require(origin: Program, kernel: Kernel) -> None:
    funcs = origin.funcs()
    missing = [name for name in SPLICE_POINTS if name not in funcs]
    if missing:
        raise CuirError.of("X130", f"`{kernel.name}` has no splice point {', '.join(f'`{m}`' for m in missing)}", kernel.span,
                           "a kernel to adapt has the @funcs " + ", ".join(SPLICE_POINTS))  # fmt: skip
    for name, count in SPLICE_POINTS.items():
        if len(funcs[name].params) != count:
            raise CuirError.of("X130", f"the splice point `{name}` takes {count} values, found {len(funcs[name].params)}", funcs[name].span)
    known = {p.name for p in kernel.params} | {
        d for p in kernel.params if isinstance(p.type, GlobalType) for d in p.type.dims if isinstance(d, str)
    }
    lacking = [n for n in _NEEDED if n not in known]
    if lacking:
        raise CuirError.of(
            "X131",
            f"splice points use {', '.join(f'`{n}`' for n in lacking)}, which `{kernel.name}` has neither as a parameter nor as a dim",
            kernel.span,
        )


def _functions(origin: Program, traced: Traced, made: Blocks) -> dict[str, Func]:
    """The new functions by name, in the order they are to stand in."""
    score, keep = show(traced.score), "True" if traced.keep is None else show(traced.keep)
    text = f"""\
@func
def score(S, b, h, q, k):                # -> scores and the factor (> 0) that makes base-2 logits of them
    return {score}, {show(traced.factor)}

@func
def keep(b, h, q, k):                    # may query q attend to key k? (k < N is the kernel's business)
    return {keep}

{made.text}"""
    new = parse(text, "splice points").funcs()
    tile = origin.funcs().get("tile")
    if made.shrinking and tile is not None:
        turned = _reversed(tile)
        new |= {"tile": turned} if turned is not None else {}
    return new


def _reversed(tile: Func) -> Func | None:
    """The tile function with the first query tiles first, if it is written as `..., cdiv(M, BM) - 1 - x`."""
    last = tile.body[-1]
    if not isinstance(last, Return) or not isinstance(last.value, Tuple) or len(last.value.items) != 3:
        return None
    m = last.value.items[2]
    descending = Binary("-", Call(Name("cdiv"), (Name("M"), Name("BM"))), Literal(1))
    if not isinstance(m, Binary) or m.op != "-" or m.left != descending:
        return None
    value = replace(last.value, items=(*last.value.items[:2], m.right))
    return replace(tile, body=(*tile.body[:-1], replace(last, value=value)))


def _spliced(origin: Program, target: Kernel, new: Mapping[str, Func], traced: Traced) -> Program:
    old = origin.funcs()
    helpers = [name for name in new if name not in SPLICE_POINTS and name != "tile"]
    items: list[Definition] = []
    for item in origin.items:
        if isinstance(item, Func) and item.name in new and item.name not in helpers:
            if item.name == "kv_count":
                items += [new[name] for name in helpers]
            items.append(item if item == new[item.name] else _dressed(new[item.name], item))
        elif item is target:
            items.append(_with_parameters(target, traced.parameters))
        elif not (isinstance(item, Func) and item.name in helpers):
            items.append(item)
    program = Program(tuple(items), tail=origin.tail)
    alive = _reachable(program)
    was_alive = _reachable(origin)
    items = [i for i in items if not (isinstance(i, Func) and i.name not in alive and i.name in was_alive and i.name in old)]
    read = {name for i in items for name in _free(i)}
    missing = [Constant(n, Literal(v)) for n, v in CONSTANTS.items() if n in read and n not in origin.constants()]
    items = [*missing, *(_without_dead(i, origin, read) if isinstance(i, Kernel) and i.name == target.name else i for i in items)]
    return Program(tuple(items), tail=origin.tail)


def _dressed(func: Func, old: Func) -> Func:
    """The new function with the old one's place among the comments."""
    return replace(func, comments=Comments(old.comments.lead, func.comments.trail or old.comments.trail))


def _reachable(program: Program, without: set[str] = frozenset()) -> set[str]:  # type: ignore[assignment]
    """Names read from the kernels on, through functions (those in `without` are not entered)."""
    funcs = program.funcs()
    found: set[str] = set()
    todo = [name for k in program.kernels().values() for name in names_read(k)]
    while todo:
        name = todo.pop()
        if name in found or name in without:
            continue
        found.add(name)
        if name in funcs:
            todo += names_read(funcs[name])
    return found


def _free(item: Definition) -> set[str]:
    """Names that a definition reads and does not bind itself."""
    if isinstance(item, Func):
        return names_read(item) - set(item.params) - set(assigned(item.body))
    return names_read(item)


def _with_parameters(kernel: Kernel, parameters: tuple[Parameter, ...]) -> Kernel:
    """Captured values behind the last run-time parameter."""
    new = tuple(
        Param(p.name, GlobalType(p.dtype.name, tuple(f"{p.name}_d{i}" for i in range(p.rank))) if p.rank else ScalarType(p.dtype.name))
        for p in parameters
    )
    first_const = next((i for i, p in enumerate(kernel.params) if isinstance(p.type, ConstType)), len(kernel.params))
    return replace(kernel, params=(*kernel.params[:first_const], *new, *kernel.params[first_const:]))


def _without_dead(kernel: Kernel, origin: Program, read: set[str]) -> Kernel:
    """Without parameters of the origin that only its old splice points used."""
    before = {name for i in origin.items for name in _free(i)}
    dims = {d for p in kernel.params if isinstance(p.type, GlobalType) for d in (p.type.dtype, *p.type.dims)}

    def dead(p: Param) -> bool:
        return p.name in before and p.name not in read and p.name not in STANDARD and p.name not in dims

    return replace(kernel, params=tuple(p for p in kernel.params if not dead(p)))


__all__ = ["SPLICE_POINTS", "STANDARD", "TransferResult", "captured_arguments", "names_of", "transfer"]
