"""Transfer: the kernel of a variant from an expert kernel and a specification.

Only splice points are replaced. Tracing is in trace.py, the blocks of a mask in block_bounds.py and block_lists.py, the order of
tiles in tiles.py, the values of parameters in typed.py.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ...caching import memoize
from ...checking.checked import Const
from ...spec.loading import as_specification
from ...spec.specification import Lengths, Normalize, Specification
from ...syntax.caller_values import program_of
from ...syntax.nodes import (
    Call,
    Comments,
    Constant,
    Definition,
    Expr,
    Func,
    GlobalType,
    Kernel,
    Literal,
    Name,
    Param,
    Program,
    ScalarType,
    Subscript,
)
from ...syntax.printer import place_in_text, show
from ...syntax.templates import Holes
from ...syntax.walk import IdentityKey, count_assignments, names_read, substitute
from ...text.diagnostics import CuirError
from ...text.notebook import ShownInNotebooks
from ..masks.block_bounds import Blocks, blocks, mask_all_blocks
from ..masks.block_lists import ColumnLists, Lists, lists_for
from ..masks.distance_tables import Table, by_distance
from ..masks.pair_costs import per_pair
from ..masks.selected_blocks import NOTE, NOTE_ON_TOKENS, build_functions
from ..masks.tile_splice import Work, tile_for
from ..tracing.mod_evaluator import CONSTANTS
from ..tracing.read_ranges import trace_without_clashes
from ..tracing.splice_names import (
    CACHE_LENGTHS,
    OF_SEQUENCE,
    OPTIONAL,
    SELECTED,
    SELECTED_TOKENS,
    SPLICE_POINTS,
    STANDARD,
    list_reserved,
    names_of,
)
from ..tracing.traced_result import Parameter, Traced, Value, dim_name, with_parameters
from .captured_arguments import Cache, sources_of, tile_sizes
from .dropout_splice import arguments_of, with_dropout
from .normalisers import CONDITIONS, FOLLOWED, PARTED, POINTS, is_parted, normaliser, score_comment
from .output_splice import with_outputs
from .quotient_bounds import bound_columns

WORTH_BITS = 8.0  # least instructions for a pair for which bits are cheaper: reading them takes two or three
_NEEDED = ("B", "H", "M", "N", "BM", "BN", "scale")


@dataclass(frozen=True)
class TransferResult(ShownInNotebooks):
    """The kernel of a variant.

    Attributes:
        program: the variant; its spans are in `text` (canonical).
        diff: unified, against the origin's canonical text, empty if nothing changed.
        parameters: values of the kernel's new parameters, without those that follow the problem's lengths (see
            `arguments`).
        lists: the block lists among the parameters, None where the blocks of the mask have a closed form.
        tables: tables by distance, which the score reads.
        gradients: of a backward kernel, the parameter for the gradient of a captured tensor, by the tensor's name.
    """

    html_renderer = "pages.notebook_forms:render_transfer"

    program: Program
    text: str
    diff: str
    kernel: str
    captured: tuple[Parameter, ...]
    replaced: tuple[str, ...]
    notes: tuple[str, ...]
    spec: Specification = field(repr=False)
    lists: Lists | ColumnLists | None = None
    tables: tuple[Table, ...] = ()
    gradients: Mapping[str, str] = field(default_factory=dict)
    _cache: Cache = field(default_factory=Cache, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"TransferResult({self.kernel} for {self.spec.name}: {', '.join(self.replaced) or 'nothing'} replaced)"

    def with_captured(self, captured: tuple[Parameter, ...]) -> TransferResult:
        """Return the transfer with other captured values, faster than `replace`."""
        result = object.__new__(TransferResult)
        vars(result).update(vars(self), captured=captured)
        return result

    @property
    def parameters(self) -> dict[str, Value]:
        return {p.name: p.argument(self.spec, _NO_LENGTHS) for p in self.captured if p.value is not None}

    @property
    def mask(self) -> Expr | None:
        """The mask of the block lists, None without them."""
        return self.lists.keep if isinstance(self.lists, Lists) else None

    @property
    def numbers(self) -> dict[str, int | float]:
        """Captured numbers, by the names of their parameters."""
        return {p.name: p.value for p in self.captured if isinstance(p.value, (int, float))}

    def arguments(
        self, lengths: Lengths, device: torch.device | str = "cpu", consts: Mapping[str, Const] | None = None, dropout: bool = True
    ) -> dict[str, Value]:
        """Return the launch arguments for the new parameters, for a problem of these lengths.

        Arguments that depend on the lengths are made on the device and cached: the next call for the same data returns
        the same tensors.

        Args:
            consts: those that the kernel is compiled with ({} for its defaults): block lists depend on BM and BN.
            dropout: with the probability and the seed of the specification's dropout, if it has any.

        Raises CuirError X133 without consts that are needed.
        """
        sizes = tile_sizes(self.program.kernels()[self.kernel], consts) if self.lists is not None else (1, 1)
        sources = sources_of(self.captured, self.spec, lengths)

        def make() -> dict[str, Value]:
            values = {p.name: p.on(sources[p.name], device) for p in self.captured}
            tables = {t.name: t.value(values, lengths, device) for t in self.tables}
            return values | tables | ({} if self.lists is None else self.lists.values(values, lengths, *sizes, device))

        result = dict(self._cache.get((lengths, *sizes, str(torch.device(device))), sources, make))
        if dropout and self.spec.dropout is not None:
            result |= arguments_of(self.spec.dropout.p, self.spec.dropout.seed_for(lengths).to(device))
        return result


_NO_LENGTHS = Lengths(0, 0, 0, 0, 0)


def transfer(
    origin: Program | str | os.PathLike[str],
    spec: Specification | Callable[..., Any],
    kernel: str | None = None,
    *,
    traced: Traced | None = None,
    bits: bool = True,
    tables: bool = True,
    by_key: bool = False,
) -> TransferResult:
    """Make the kernel of a variant by replacing splice points of an expert kernel.

    These are `score`, `keep`, `kv_count`, `kv_block`, `kv_rows` if there is one, `tile` where another order of tiles is
    better, and for other weights than a softmax's `softmax_*`.

    Args:
        spec: a Specification, a mask_mod or a score_mod.
        traced: the result of `trace_without_clashes`; by default the specification is traced here, once.
        bits: a mask that costs much for each pair may be read from bits of the blocks that need it, made once;
            otherwise it is always computed.
        tables: the same for terms of a score that depend on the distance alone.
        by_key: visit blocks in the order of their keys, whatever the tile; over a cache without gaps. All of a mask with
            two edges are then masked.

    Raises CuirError: X114-X117 for no specification, X120-X123 for what cannot be traced (with the place in the user's
    file), X130 for a missing splice point, X131 if the kernel lacks a name that splice points use, X134 if its softmax
    was replaced before, N109/N110 for the choice of the kernel.
    """
    if not isinstance(spec, Specification):
        spec = as_specification(spec, getattr(spec, "__name__", type(spec).__name__))
    origin = program_of(origin, "transfer")
    target = _kernel(origin, kernel)
    require_points(origin, target)
    tile = origin.funcs().get("tile")
    traced = trace_without_clashes(spec) if traced is None else traced
    lengths = _of_sequence(origin, target)
    parameters = {p.name for p in target.params}
    selected, of_tokens = set(SELECTED) <= parameters, SELECTED_TOKENS in parameters
    read = (
        bits
        and not lengths
        and not selected
        and not is_parted(origin.funcs())
        and traced.keep is not None
        and per_pair(traced.keep) > WORTH_BITS
    )
    work = _work(None if read else blocks(traced.rename_reserved(list_reserved()).keep))
    replaced_points = {
        *SPLICE_POINTS,
        "kv_rows",
        *normaliser(spec.normalize, Literal(0.0) if spec.sink is not None else None, origin.funcs(), target),
    }
    remainder = without_functions(origin, target, replaced_points, tile_for(work, target, tile, "t") if tile is not None else None)
    used_names = names_of(remainder)  # depends on which tile() stays, and that on the mask: so names are given twice
    traced = traced.rename_reserved(used_names | list_reserved())

    def fresh(name: str) -> str:
        while name in used_names or name in {p.name for p in traced.parameters}:
            name += "_"
        return name

    score, of_distance = by_distance(traced.score, traced.parameters, fresh) if tables and not lengths else (traced.score, ())
    cached = bool(lengths) and "M" not in lengths
    closed_blocks = None if read else blocks(traced.keep, fresh, by_key, gaps=not (by_key and cached))
    if selected:
        closed_blocks = Blocks(build_functions(traced.keep is not None), (), "listed", (NOTE,))
    elif of_tokens:
        closed_blocks = Blocks({name: origin.funcs()[name] for name in ("kv_count", "kv_block")}, (), "listed", (NOTE_ON_TOKENS,))
    elif lengths and (closed_blocks is None or (cached and "h" in names_read(traced.keep or Literal(True)))):
        # no lists: lengths are not known here; and over a cache no blocks of one head: heads share tiles
        closed_blocks = mask_all_blocks(by_key)
    lists = lists_for(traced.keep, fresh, read, by_key) if closed_blocks is None and traced.keep is not None else None
    new = _functions(
        replace(traced, score=score),
        spec.normalize,
        closed_blocks.functions if closed_blocks is not None else lists.build_functions() if lists is not None else {},
        lists,
    )
    if "kv_rows" not in origin.funcs():
        new.pop("kv_rows", None)
    new |= normaliser(spec.normalize, traced.sink, origin.funcs(), target)
    new = {
        name: replace(f, body=tuple(substitute(s, lengths) for s in f.body)) if names_read(f) & lengths.keys() else f
        for name, f in new.items()
    }
    if tile is not None:
        new["tile"] = tile_for(work, target, tile, lists.order if lists is not None else "")
    added = tuple(declare_parameter(p) for p in traced.parameters)
    added += tuple(table.parameter() for table in of_distance)
    if lists is not None:
        lists = replace(lists, order=lists.order if "tile" in new and lists.order in names_read(new["tile"]) else "")
        added += lists.parameters()
    program = splice_functions(origin, target, new, added)
    if spec.output_names:
        program = with_outputs(program, program.kernels()[target.name], spec.normalize, spec.output_names)
    if spec.dropout is not None:
        program = with_dropout(program, program.kernels()[target.name])
    program = place_in_text(program, f"{spec.name}.cuir")
    after = program.span.source.text
    diff = diff_texts(show(origin), after, target.name, spec.name)
    old = origin.funcs()
    replaced = tuple(name for name in new if name not in old or old[name] != new[name])
    notes = (
        *traced.notes,
        *(closed_blocks.notes if closed_blocks is not None else (_LISTED,)),
        *((_READ,) if lists is not None and lists.bits else ()),
        *((_OF_DISTANCE,) if of_distance else ()),
    )
    return TransferResult(program, after, diff, target.name, traced.parameters, replaced, notes, spec, lists, of_distance)


def _of_sequence(origin: Program, kernel: Kernel) -> dict[str, Expr]:
    """Return the names of a sequence's own lengths in kernels whose sequences differ in length.

    These are kernels over a cache of keys, and of packed sequences.
    """
    if any(p.name == CACHE_LENGTHS for p in kernel.params):
        return {"N": Subscript(Name(CACHE_LENGTHS), (Name("b"),))}
    if all(name in origin.funcs() for name in OF_SEQUENCE.values()):
        return {length: Call(Name(name), (Name("b"),)) for length, name in OF_SEQUENCE.items()}
    return {}


def diff_texts(before: str, after: str, kernel: str, variant: str) -> str:
    """Return the difference of two canonical texts of a kernel."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), f"{kernel} (origin)", f"{kernel} ({variant})", lineterm="", n=3)
    return "\n".join(lines)


def _work(closed_blocks: Blocks | None) -> Work:
    return closed_blocks.work if closed_blocks is not None else "listed"


_LISTED = (
    "the mask is not linear in q and k: which blocks a tile visits stands in lists, made from the mask on the device for each problem and tile size; "
    "blocks without a kept pair are not visited, blocks of kept pairs are not masked"
)

_OF_DISTANCE = "what the score adds for a distance alone costs much for each pair: it is read from a table of all distances, which is made once for each data and lengths"

_READ = "the mask costs much for each pair: in blocks of which only some pairs are kept it is read as bits, which are made once for each mask and data"


def _kernel(origin: Program, name: str | None) -> Kernel:
    kernels = origin.kernels()
    if name is None and len(kernels) == 1:
        return next(iter(kernels.values()))
    if name is None:
        raise CuirError.of("N109", f"which kernel? the program has {', '.join(kernels) or 'none'}")
    if name not in kernels:
        raise CuirError.of("N110", f"the program has no kernel `{name}`; it has: {', '.join(kernels) or 'none'}")
    return kernels[name]


def require_points(origin: Program, kernel: Kernel, points: Mapping[str, int] = SPLICE_POINTS) -> None:
    """Raise CuirError X130, X131 for a kernel that cannot be adapted by these splice points."""
    funcs = origin.funcs()
    missing = [name for name in points if name not in funcs]
    if missing:
        raise CuirError.of(
            "X130",
            f"`{kernel.name}` has no splice point {', '.join(f'`{m}`' for m in missing)}",
            kernel.span,
            "a kernel to adapt has the @funcs " + ", ".join(points),
        )
    for name, count in {**points, **OPTIONAL}.items():
        if name in funcs and len(funcs[name].params) != count:
            raise CuirError.of("X130", f"the splice point `{name}` takes {count} values, found {len(funcs[name].params)}", funcs[name].span)
    names = {p.name for p in kernel.params} | {
        d for p in kernel.params if isinstance(p.type, GlobalType) for d in p.type.dims if isinstance(d, str)
    }
    lacking = [n for n in _NEEDED if n not in names and n not in _of_sequence(origin, kernel)]
    if lacking:
        raise CuirError.of(
            "X131",
            f"splice points use {', '.join(f'`{n}`' for n in lacking)}, which `{kernel.name}` has neither as a parameter nor as a dim",
            kernel.span,
        )


def _functions(traced: Traced, normalize: Normalize, blocks: Mapping[str, Func], lists: Lists | None) -> dict[str, Func]:
    """Return the new functions by name, in the order of the text."""
    holes, keep = Holes(), Literal(True) if traced.keep is None else bound_columns(traced.keep, "k")
    text = f"""\
@func
def score(S, b, h, q, k):                # -> scores and {score_comment(normalize)}
    return {holes.put(traced.score)}, {holes.put(traced.factor)}

@func
def keep(b, h, q, k):                    # may query q attend to key k? (k < N is the kernel's business)
    return {holes.put(lists.read_bits() if lists is not None and lists.bits else keep)}
"""
    return holes.fill(text) | dict(blocks)


def splice_functions(
    origin: Program,
    target: Kernel,
    new: Mapping[str, Func],
    added: tuple[Param, ...],
    points: Collection[str] = tuple(SPLICE_POINTS),
    count: str = "kv_count",
) -> Program:
    """Return the origin with the new functions in place of the old ones, helpers before `count`.

    `points` are the names of splice points.
    """
    helpers = [name for name in new if name not in points and name not in {*POINTS, *PARTED, *CONDITIONS, *FOLLOWED, *OPTIONAL}]
    items: list[Definition] = []
    for item in origin.items:
        if isinstance(item, Func) and item.name in new and item.name not in helpers:
            if item.name == count:
                items += [new[name] for name in helpers]
            items.append(item if item == new[item.name] else _keep_comments(new[item.name], item))
        elif not (isinstance(item, Func) and item.name in helpers):
            items.append(item)
    at = items.index(target)
    items[at:at] = [new[name] for name in new if name in POINTS and name not in origin.funcs()]
    items = drop_unreachable(items, origin)
    read = {name for i in items for name in _free(i)}
    missing = [Constant(n, Literal(v)) for n, v in CONSTANTS.items() if n in read and n not in origin.constants()]
    kernel = with_parameters(_without_dead(target, origin, read - {p.name for p in added}), added)
    return Program((*missing, *(kernel if i is target else i for i in items)), tail=origin.tail)


def without_functions(origin: Program, target: Kernel, removed: set[str], tile: Func | None) -> Program:
    """Return the remainder of a program without the functions `gone`, and with another `tile`.

    Helpers and parameters that only these use are dropped.
    """
    named = [tile if tile is not None and isinstance(i, Func) and i.name == "tile" else i for i in origin.items]
    items = drop_unreachable([i for i in named if not (isinstance(i, Func) and i.name in removed)], origin)
    kernel = _without_dead(target, origin, {name for i in items for name in _free(i)} | set(_NEEDED))
    return Program(tuple(kernel if i is target else i for i in items))


def drop_unreachable(items: list[Definition], origin: Program) -> list[Definition]:
    """Drop functions that the origin's kernels reach and the kernels among `items` do not."""
    dead = reachable(origin) - reachable(Program(tuple(items)))
    return [i for i in items if not (isinstance(i, Func) and i.name in dead)]


def _keep_comments(func: Func, old: Func) -> Func:
    """Return the new function with the old one's comments around it."""
    return replace(func, comments=Comments(old.comments.lead, func.comments.trail or old.comments.trail))


@memoize(256)  # a transfer reads the origin's names four times, and the next one those of the same origin
def _names_read(item: IdentityKey) -> frozenset[str]:
    return frozenset(names_read(item.tree))


def reachable(program: Program) -> set[str]:
    """Return the names read from the kernels on, through functions."""
    funcs = program.funcs()
    reached: set[str] = set()
    todo = [name for k in program.kernels().values() for name in _names_read(IdentityKey(k))]
    while todo:
        name = todo.pop()
        if name in reached:
            continue
        reached.add(name)
        if name in funcs:
            todo += _names_read(IdentityKey(funcs[name]))
    return reached


def _free(item: Definition) -> frozenset[str]:
    """Return the names that a definition reads and does not bind."""
    if isinstance(item, Func):
        return _names_read(IdentityKey(item)) - set(item.params) - set(count_assignments(item.body))
    return _names_read(IdentityKey(item))


def declare_parameter(p: Parameter) -> Param:
    """Return the kernel's declaration of a captured value."""
    return Param(
        p.name, GlobalType(p.dtype.name, tuple(dim_name(p.name, i) for i in range(p.rank))) if p.rank else ScalarType(p.dtype.name)
    )


def _without_dead(kernel: Kernel, origin: Program, read: set[str]) -> Kernel:
    """Drop parameters of the origin that only its old splice points used."""
    before = {name for i in origin.items for name in _free(i)}
    dims = {d for p in kernel.params if isinstance(p.type, GlobalType) for d in (p.type.dtype, *p.type.dims)}

    def dead(p: Param) -> bool:
        return p.name in before and p.name not in read and p.name not in STANDARD and p.name not in dims and not p.scratch

    return replace(kernel, params=tuple(p for p in kernel.params if not dead(p)))


__all__ = [
    "TransferResult",
    "declare_parameter",
    "diff_texts",
    "drop_unreachable",
    "reachable",
    "require_points",
    "splice_functions",
    "transfer",
    "with_parameters",
    "without_functions",
]
