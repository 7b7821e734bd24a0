"""What a program of attention does for a pair of query and key, and which blocks its tiles visit, as far as the host knows without a look at the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from ..checking.checked import Const
from ..checking.checker import pick_kernel
from ..ops.expressions import operation
from ..spec.specification import Lengths
from ..syntax.nodes import Assign, Expr, Func, GlobalType, Kernel, Node, Program, Return, Subscript, Tuple
from ..syntax.nodes import Literal as Number
from ..syntax.walk import Itself, names_read, walk
from ..text.diagnostics import CuirError
from ..verification.evaluate import Evaluator, kernel_names
from .strips import Strips

GATHER = 10  # instructions of a read of captured data
HEADS = 8  # of those that a count of blocks is asked for, if it differs between heads
SHARE = 8  # a mask that reads data keeps one block in so many, for all that is known of it
Blocks = Literal["all", "closed", "listed"]


@dataclass(frozen=True)
class Arithmetic:
    """Instructions for a pair, about: on the units for multiply-adds, and on that for exponentials."""

    plain: int
    special: int


@dataclass(frozen=True)
class Visits:
    """Of each tile, [.., tiles]: blocks that its warpgroups of 64 queries compute, summed over warpgroups, those of them that need the mask, and the blocks that a
    warpgroup skips as only others need them."""

    steps: np.ndarray
    masked: np.ndarray
    skipped: np.ndarray


class Work:
    """Of one program with splice points; see `of`."""

    def __init__(self, program: Program, kernel: Kernel, mask: Expr | None = None):
        self.program, self.kernel, self.funcs = program, kernel, program.funcs()
        self.tensors = {p.name for p in kernel.params if isinstance(p.type, GlobalType)}
        self.mask = mask if mask is not None and not names_read(mask) & self.tensors else None
        self.looked: dict[object, Strips | None] = {}

    @staticmethod
    def of(program: Program, kernel: str | None = None, mask: Expr | None = None) -> Work | None:
        """mask: that of which the program reads block lists. None for a program that has no `score`, `keep` and `kv_count`."""
        work = Work(program, pick_kernel(program, kernel), mask)
        return work if {"score", "keep", "kv_count"} <= set(work.funcs) else None

    @cached_property
    def score(self) -> Arithmetic:
        """Of every pair in a block that is visited, beside the softmax."""
        return _arithmetic(self.funcs["score"])

    @cached_property
    def keep(self) -> Arithmetic:
        """Of every pair in a block that needs the mask."""
        return _arithmetic(self.funcs["keep"])

    @cached_property
    def read(self) -> frozenset[str]:
        """Names that the count of blocks depends on, through functions; of a mask whose blocks are listed, those that it reads itself."""
        found = set(names_read(self.mask)) if self.mask is not None else set[str]()
        todo = ["kv_count"]
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo += list(names_read(self.funcs[name])) if name in self.funcs else []
        return frozenset(found)

    @cached_property
    def blocks(self) -> Blocks:
        """all: no mask; closed: a form of lengths and numbers tells them; listed: they depend on data on the device."""
        if self.read & self.tensors:
            return "listed"
        return "all" if _constant(self.funcs["keep"]) else "closed"

    @property
    def counts(self) -> bool:
        """Whether the host can count blocks."""
        return self.blocks != "listed" or self.mask is not None

    def visits(self, at: Lengths, numbers: Mapping[str, int | float], consts: Mapping[str, Const]) -> Visits:
        """Of the tiles of a head; `numbers` are captured ones. Heads that differ stand in rows."""
        BM, BN = int(consts["BM"]), int(consts["BN"])  # type: ignore[arg-type]
        tiles, groups = -(-at.M // BM), BM // 64
        partial, all_ = (np.repeat(np.broadcast_to(x, (*x.shape[:-1], tiles)), groups, -1) for x in self.counted(at, numbers, consts))
        skipped = np.zeros_like(all_)
        if BM - 64 >= BN and not consts.get("PINGPONG", False) and self.blocks == "closed":
            fewer, alone = self.counted(at, numbers, {**consts, "BM": 64}, tiles * groups)
            skipped = np.clip(all_ - alone, 0, int(consts.get("STAGES", 2)))  # type: ignore[arg-type]
            partial = np.minimum(fewer, all_ - skipped)
        there = np.arange(tiles * groups) * 64 < at.M
        return Visits(*(np.where(there, x, 0).reshape(*x.shape[:-1], tiles, groups).sum(-1) for x in (all_ - skipped, partial, skipped)))

    def counted(
        self, at: Lengths, numbers: Mapping[str, int | float], consts: Mapping[str, Const], tiles: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """(blocks that need the mask, all blocks) of tiles 0, 1, ... of BM queries."""
        m = np.arange(-(-at.M // int(consts["BM"])) if tiles is None else tiles)  # type: ignore[arg-type]
        if self.blocks == "listed":
            return self.seen(at, numbers, m, consts) or self.guessed(at, m, consts)
        names = kernel_names(self.kernel, {"B": at.B, "H": at.H, "HK": at.HK, "M": at.M, "N": at.N}, dict(consts), numbers)
        h = np.unique(np.linspace(0, at.H - 1, HEADS).astype(int))[:, None]
        try:
            some, n = Evaluator(self.program, names).call("kv_count", 0, h, m[None])
        except CuirError:
            return self.guessed(at, m, consts)
        return tuple(np.broadcast_to(np.asarray(x), np.broadcast_shapes(np.shape(x), m.shape)) for x in (some, n))  # type: ignore[return-value]

    def seen(
        self, at: Lengths, numbers: Mapping[str, int | float], m: np.ndarray, consts: Mapping[str, Const]
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """For masks that read no data: what some strips of queries keep. None for others."""
        if self.mask is None:
            return None
        of = (at, *sorted(numbers.items()))
        if of not in self.looked:
            try:
                self.looked[of] = Strips.of(self.mask, at, numbers)
            except CuirError:  # it reads what has no value here
                self.looked[of] = None
        strips = self.looked[of]
        return strips.counted(m, int(consts["BM"]), int(consts["BN"])) if strips is not None else None  # type: ignore[arg-type]

    def guessed(self, at: Lengths, m: np.ndarray, consts: Mapping[str, Const]) -> tuple[np.ndarray, np.ndarray]:
        """For masks of which nothing is known without their data: each query has one key in SHARE, together, and those of a tile's queries spread as these do."""
        BM, BN = int(consts["BM"]), int(consts["BN"])  # type: ignore[arg-type]
        n = np.full(m.shape, min(-(-at.N // BN), -(-(at.N // SHARE + BM) // BN)))
        return np.minimum(n, 2), n


def _constant(func: Func) -> bool:
    """Whether a function gives a number whatever it is asked."""
    return all(isinstance(s, Return) and isinstance(s.value, Number) for s in func.body)


def _arithmetic(func: Func) -> Arithmetic:
    """Instructions of a splice point for each pair: what depends on the score, or on the query and the key. What depends on one of these alone is computed once a row, or for a
    column of two rows."""
    depends: dict[str, frozenset[str]] = {p: frozenset({p} & {"S", "q", "k"}) for p in func.params}
    plain = special = 0.0
    seen: set[Itself] = set()

    def of(e: Node) -> frozenset[str]:
        return frozenset().union(*(depends.get(n, frozenset()) for n in names_read(e)))

    for s in func.body:
        for e in _expressions(s):
            if Itself(e) in seen:
                continue
            seen.add(Itself(e))
            on, entry = of(e), operation(e)
            share = 1.0 if "S" in on or {"q", "k"} <= on else 0.5 if "k" in on else 0.0
            if entry is not None or isinstance(e, Subscript):
                traits = entry[0].traits if entry is not None else None
                plain += share * (traits.cost if traits is not None else GATHER)
                special += share * (traits is not None and traits.special)
        if isinstance(s, Assign):
            depends |= {t: of(s.value) for t in s.targets}
    return Arithmetic(round(plain), round(special))


def _expressions(s: Node) -> Iterator[Expr]:
    return (n for n in walk(s) if isinstance(n, Expr) and not isinstance(n, Tuple))
