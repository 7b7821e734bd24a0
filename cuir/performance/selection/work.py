"""Work of an attention program: instructions for a pair, and blocks of its tiles counted on the host.

Block counts of masks without a closed form that read no data, from strips of their queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch

from ...attn.masks.pair_costs import MEAN_READ
from ...attn.tracing.mod_evaluator import evaluate
from ...attn.verification.splice_evaluator import Evaluator, collect_kernel_values
from ...checking.checked import Const
from ...checking.checker import pick_kernel
from ...ops.expressions import operation
from ...spec.specification import LENGTHS, Lengths
from ...syntax.nodes import Assign, Expr, Func, GlobalType, Kernel, Node, Program, Return, Subscript, Tuple
from ...syntax.nodes import Literal as Number
from ...syntax.walk import IdentityKey, names_read, walk
from ...text.diagnostics import CuirError

ROWS = 384  # rows of a strip: whole tiles of 64, 128, 192 and 384 queries
GROUP, UNIT = 64, 16  # queries and keys of the parts of tiles, of which any or all pairs are kept
MAX_PAIRS = 1 << 24  # pairs that are evaluated at most: tenths of a second
MAX_STRIPS = 8  # strips of a head at most
STRIP_HEADS = 2  # heads that are evaluated if they differ


@dataclass(frozen=True)
class Strips:
    """Evaluated strips of a mask.

    Queries and keys beyond the lengths are no pairs; a unit that is cut off by the last key is not `whole`.

    Attributes:
        first: First row of each strip.
        some: Bool [heads, strips, groups, units], whether a group of queries keeps a pair of a unit of keys.
        whole: Bool of the same shape, whether a group of queries keeps all pairs of a unit of keys.
    """

    first: np.ndarray
    some: np.ndarray
    whole: np.ndarray

    @staticmethod
    def of(mask: Expr, at: Lengths, numbers: Mapping[str, int | float]) -> Strips | None:
        """Evaluate a mask in strips.

        Returns: The strips, or None if a strip has too many keys, or no pair.

        Raises: CuirError for a mask that reads more than indices, lengths and numbers.
        """
        by_head = "h" in names_read(mask)
        heads = np.unique(np.linspace(0, at.H - 1, STRIP_HEADS).astype(int)) if by_head else np.zeros(1, int)
        total = -(-at.M // ROWS)
        number = min(total, MAX_STRIPS, MAX_PAIRS // (ROWS * max(1, at.N) * len(heads)))
        if number == 0 or at.N == 0:
            return None
        first = ROWS * ((np.arange(number) + 0.5) * total / number).astype(int)
        units = -(-at.N // UNIT)
        with torch.device("cpu"):  # overrides the caller's default device
            some, whole = _evaluate_strips(mask, at, numbers, heads, first, units)
        return Strips(first, some, whole)

    def count_blocks(self, tiles: np.ndarray, BM: int, BN: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Return (blocks that need the mask, all blocks) of tiles of BM queries, [heads, tiles].

        Each tile has the counts of the nearest strip's tile. The result is None for tiles that do not divide strips and units.
        """
        if ROWS % BM or BM % GROUP or BN % UNIT:
            return None
        heads, strips, _, units = self.some.shape
        blocks = -(-units * UNIT // BN)
        padding = [(0, 0)] * 3 + [(0, blocks * BN // UNIT - units)]
        shape = (heads, strips, ROWS // BM, BM // GROUP, blocks, BN // UNIT)
        some = np.pad(self.some, padding).reshape(shape).any((3, 5))
        whole = np.pad(self.whole, padding).reshape(shape).all((3, 5))
        rows = tiles * BM
        strip = np.abs(self.first[:, None] - rows // ROWS * ROWS).argmin(0)
        return tuple(x.sum(-1)[:, strip, rows % ROWS // BM] for x in (some & ~whole, some))


def _evaluate_strips(
    mask: Expr, at: Lengths, numbers: Mapping[str, int | float], heads: np.ndarray, first: np.ndarray, units: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return `some` and `whole` of the strips that begin at `first`."""
    k = torch.arange(units * UNIT, dtype=torch.int32)
    bindings = {**numbers, **{name: getattr(at, name) for name in LENGTHS}, "b": 0}
    some, whole = (np.zeros((len(heads), len(first), ROWS // GROUP, units), bool) for _ in range(2))
    for i, h in enumerate(heads):
        for j, g in np.ndindex(len(first), ROWS // GROUP):
            q = int(first[j]) + g * GROUP + torch.arange(GROUP, dtype=torch.int32)[:, None]
            is_kept = torch.as_tensor(evaluate(mask, {**bindings, "h": int(h), "q": q, "k": k}), dtype=torch.bool)
            pairs, rows = (is_kept & (k < at.N)).expand(GROUP, len(k)).view(GROUP, units, UNIT), (q < at.M)[..., None]
            some[i, j, g], whole[i, j, g] = (pairs & rows).any(2).any(0).numpy(), (pairs | ~rows).all(2).all(0).numpy()
    return some, whole


HEADS = 8  # heads for which blocks are counted, if they differ
SHARE = 8  # a mask that reads data is assumed to keep one block in so many
Blocks = Literal["all", "closed", "listed"]


@dataclass(frozen=True)
class Arithmetic:
    """Estimated instructions for a pair: on the units for multiply-adds, and on that for exponentials."""

    plain: int
    special: int


@dataclass(frozen=True)
class Visits:
    """Counts of blocks for each tile, [.., tiles], summed over the tile's warpgroups of 64 queries.

    Attributes:
        steps: Blocks that warpgroups compute.
        masked: Blocks that need the mask.
        skipped: Blocks that a warpgroup skips as only others need them.
    """

    steps: np.ndarray
    masked: np.ndarray
    skipped: np.ndarray


class Work:
    """Work of one program with splice points; see `of`."""

    def __init__(self, program: Program, kernel: Kernel, mask: Expr | None = None):
        self.program, self.kernel, self.funcs = program, kernel, program.funcs()
        self.tensors = {p.name for p in kernel.params if isinstance(p.type, GlobalType)}
        self.mask = mask if mask is not None and not names_read(mask) & self.tensors else None
        self.strips: dict[object, Strips | None] = {}

    @staticmethod
    def of(program: Program, kernel: str | None = None, mask: Expr | None = None) -> Work | None:
        """Return the work of a program, or None for a program without `score`, `keep` and `kv_count`.

        `mask` is the mask of whose blocks the program reads lists.
        """
        work = Work(program, pick_kernel(program, kernel), mask)
        return work if {"score", "keep", "kv_count"} <= set(work.funcs) else None

    @cached_property
    def score(self) -> Arithmetic:
        """Instructions for every pair in a visited block, without the softmax."""
        return _arithmetic(self.funcs["score"])

    @cached_property
    def keep(self) -> Arithmetic:
        """Instructions for every pair in a block that needs the mask."""
        return _arithmetic(self.funcs["keep"])

    @cached_property
    def reads_pairs(self) -> bool:
        """Return whether the score reads an element of a tensor by both query and key."""
        func = self.funcs["score"]
        names = {s.targets[0]: names_read(s.value) for s in func.body if isinstance(s, Assign)}

        def depends(e: Node) -> frozenset[str]:
            read, pending = set[str](), list(names_read(e))
            while pending:
                if (name := pending.pop()) not in read:
                    read.add(name)
                    pending += names.get(name, ())
            return frozenset(read)

        return any(isinstance(e, Subscript) and {"q", "k"} <= depends(e) for s in func.body for e in walk(s))

    @cached_property
    def dependencies(self) -> frozenset[str]:
        """Names on which the count of blocks depends, through functions.

        For a mask whose blocks are listed they are the names that it reads.
        """
        names = set(names_read(self.mask)) if self.mask is not None else set[str]()
        pending = ["kv_count"]
        while pending:
            name = pending.pop()
            if name not in names:
                names.add(name)
                pending += list(names_read(self.funcs[name])) if name in self.funcs else []
        return frozenset(names)

    @cached_property
    def blocks(self) -> Blocks:
        """Source of the blocks.

        all: there is no mask. closed: a form of lengths and numbers tells them. listed: they depend on data on the device.
        """
        if self.dependencies & self.tensors:
            return "listed"
        return "all" if _constant(self.funcs["keep"]) else "closed"

    @property
    def can_count(self) -> bool:
        """True if the host can count blocks."""
        return self.blocks != "listed" or self.mask is not None

    def count_visits(self, at: Lengths, numbers: Mapping[str, int | float], consts: Mapping[str, Const]) -> Visits:
        """Count the blocks of the tiles of a head; heads that differ are rows of the result.

        `numbers` are the captured ones.
        """
        BM, BN = int(consts["BM"]), int(consts["BN"])  # type: ignore[arg-type]
        tiles, groups = -(-at.M // BM), BM // 64
        partial, all_ = (np.repeat(np.broadcast_to(x, (*x.shape[:-1], tiles)), groups, -1) for x in self.count_blocks(at, numbers, consts))
        skipped = np.zeros_like(all_)
        if BM - 64 >= BN and not consts.get("PINGPONG", False) and self.blocks == "closed":
            masked_of_group, of_group = self.count_blocks(at, numbers, {**consts, "BM": 64}, tiles * groups)
            skipped = np.clip(all_ - of_group, 0, int(consts.get("STAGES", 2)))  # type: ignore[arg-type]
            partial = np.minimum(masked_of_group, all_ - skipped)
        is_present = np.arange(tiles * groups) * 64 < at.M
        return Visits(
            *(np.where(is_present, x, 0).reshape(*x.shape[:-1], tiles, groups).sum(-1) for x in (all_ - skipped, partial, skipped))
        )

    def count_blocks(
        self, at: Lengths, numbers: Mapping[str, int | float], consts: Mapping[str, Const], tiles: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return (blocks that need the mask, all blocks) of tiles 0, 1, ... of BM queries."""
        m = np.arange(-(-at.M // int(consts["BM"])) if tiles is None else tiles)  # type: ignore[arg-type]
        if self.blocks == "listed":
            return self.count_in_strips(at, numbers, m, consts) or self.guess_blocks(at, m, consts)
        names = collect_kernel_values(self.kernel, {"B": at.B, "H": at.H, "HK": at.HK, "M": at.M, "N": at.N}, dict(consts), numbers)
        h = np.unique(np.linspace(0, at.H - 1, HEADS).astype(int))[:, None]
        try:
            some, n = Evaluator(self.program, names).call("kv_count", 0, h, m[None])
        except CuirError:
            return self.guess_blocks(at, m, consts)
        return tuple(np.broadcast_to(np.asarray(x), np.broadcast_shapes(np.shape(x), m.shape)) for x in (some, n))  # type: ignore[return-value]

    def count_in_strips(
        self, at: Lengths, numbers: Mapping[str, int | float], m: np.ndarray, consts: Mapping[str, Const]
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the counts in some strips of queries, for masks that read no data; None for others."""
        if self.mask is None:
            return None
        key = (at, *sorted(numbers.items()))
        if key not in self.strips:
            try:
                self.strips[key] = Strips.of(self.mask, at, numbers)
            except CuirError:  # it reads values that are unknown on the host
                self.strips[key] = None
        strips = self.strips[key]
        return strips.count_blocks(m, int(consts["BM"]), int(consts["BN"])) if strips is not None else None  # type: ignore[arg-type]

    def guess_blocks(self, at: Lengths, m: np.ndarray, consts: Mapping[str, Const]) -> tuple[np.ndarray, np.ndarray]:
        """Return assumed counts of partial and of all key blocks for a mask that depends on its data.

        Assumed: a query attends to N / SHARE contiguous keys, and the ranges of a tile's BM queries shift by one key each.
        """
        BM, BN = int(consts["BM"]), int(consts["BN"])  # type: ignore[arg-type]
        n = np.full(m.shape, min(-(-at.N // BN), -(-(at.N // SHARE + BM) // BN)))
        return np.minimum(n, 2), n


def _constant(func: Func) -> bool:
    """Return whether a function always returns the same number."""
    return all(isinstance(s, Return) and isinstance(s.value, Number) for s in func.body)


def _arithmetic(func: Func) -> Arithmetic:
    """Count the instructions of a splice point for each pair.

    Counted are expressions of the score, or of the query and the key. An expression of only one of these is computed once
    a row, or for a column of two rows.
    """
    depends: dict[str, frozenset[str]] = {p: frozenset({p} & {"S", "q", "k"}) for p in func.params}
    plain = special = 0.0
    visited: set[IdentityKey] = set()

    def dependencies(e: Node) -> frozenset[str]:
        return frozenset().union(*(depends.get(n, frozenset()) for n in names_read(e)))

    for s in func.body:
        for e in _expressions(s):
            if IdentityKey(e) in visited:
                continue
            visited.add(IdentityKey(e))
            used, entry = dependencies(e), operation(e)
            share = 1.0 if "S" in used or {"q", "k"} <= used else 0.5 if "k" in used else 0.0
            if entry is not None or isinstance(e, Subscript):
                traits = entry[0].traits if entry is not None else None
                plain += share * (traits.cost if traits is not None else MEAN_READ)
                special += share * (traits is not None and traits.special)
        if isinstance(s, Assign):
            depends |= {t: dependencies(s.value) for t in s.targets}
    return Arithmetic(round(plain), round(special))


def _expressions(s: Node) -> Iterator[Expr]:
    return (n for n in walk(s) if isinstance(n, Expr) and not isinstance(n, Tuple))


__all__ = ["HEADS", "SHARE", "Arithmetic", "Blocks", "Strips", "Visits", "Work"]
