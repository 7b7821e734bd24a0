"""The settings of the kernels of serving: of few queries, over a cache, of packed sequences.

They follow from the lengths, and nothing is tuned.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...checking.checked import Const
from ...runtime.cards import Card
from ...spec.specification import Lengths
from ...syntax.nodes import Name, Program, ScalarType, Subscript
from ...syntax.types import F32
from ...syntax.walk import rewrite
from ..splicing.splice import TransferResult
from . import decoding
from .settings import Numbers, Settings

if TYPE_CHECKING:
    from ...performance.selection import Choice
    from ...performance.selection.work import Work
    from ...spec.function_specification import AnySpecification

SHORT = 64  # queries of a warpgroup's tile
# Queries of the longest sequence from which tiles of 192 queries are faster than those of 128, by the head dim up to which this holds. On
# an H200 they gain 2 to 24 % from 512 (head dim 64) and 4 to 13 % at 4096 and more (128), and lose 6 % at 512 (128).
TALL_FROM = {64: 512, 128: 2048}
TALL = 192
FIXED = "blocks of keys are the same for all lengths, and so is the order of sums"  # and no other setting may take the place


class DecodeSettings(Settings):
    """The settings of the decode kernel, which follow from the lengths.

    packed, joins and ruled are as for `decoding.consts_for`.
    """

    def __init__(self, program: Program, fixed: Mapping[str, Const], packed: bool, joins: bool, ruled: bool, card: Card | None = None):
        super().__init__(program, fixed, (), card=card)
        self.packed, self.joins, self.ruled = packed, joins, ruled

    @classmethod
    def fix_share(cls, fixed: Mapping[str, Const]) -> int:
        """Return the blocks of a share that begins at a fixed key."""
        return decoding.fix_share(fixed)

    @functools.cached_property
    def start(self) -> dict[str, Const]:
        return self.choose_untuned(Lengths(1, 1, 1, 1, decoding.LEAST_KEYS))

    def choose_untuned(self, at: Lengths, numbers: Numbers = ()) -> dict[str, Const]:
        if "SHARE" in self.fixed:
            return decoding.choose_invariant(at, self.fixed, self.packed, self.joins)
        return decoding.consts_for(self.limit_to_kept_keys(at, dict(numbers)), self.fixed, self.packed, self.joins, self.ruled)

    def limit_to_kept_keys(self, at: Lengths, numbers: Mapping[str, int | float]) -> Lengths:
        """Return the lengths with the keys that the mask keeps in whole blocks.

        Lengths and captured numbers must decide these.
        """
        work = self.work
        if work is None or work.blocks != "closed":
            return at
        scalars = {p.name for p in work.kernel.params if isinstance(p.type, ScalarType)}
        if work.dependencies & scalars - set(numbers):
            return at
        _, blocks = work.count_blocks(at, numbers, {**self.fixed, "BM": at.M, "BN": decoding.BLOCK})
        return replace(at, N=min(at.N, max(1, int(blocks.max())) * decoding.BLOCK))

    def choice(self, at: Lengths, numbers: Numbers = ()) -> Choice:
        from ...performance.selection import Choice

        if "SHARE" in self.fixed:
            return Choice(self.choose_untuned(at, numbers), "given", FIXED)
        return Choice(
            self.choose_untuned(at, numbers),
            "start",
            "as many CTAs to a key head as its queries, keys and the other key heads leave room for",
        )

    def choose_judged(self, consts: Mapping[str, Const]) -> Mapping[str, Const]:
        """Return a smaller setting to verify in place of one that runs.

        It has two CTAs, stages and sharing warps in place of more, and one cluster: the text is the same, and it runs
        in a quarter of the time.
        """
        most_two = {name: min(2, int(consts[name])) for name in ("CLUSTER", "STAGES", "LOADED") if name in consts}  # type: ignore[arg-type]
        if "TOKENS" in consts:
            chunk, keys = int(consts["CHUNK"]), int(consts["BN"]) // int(consts["WG"])  # type: ignore[arg-type]
            groups = max(2, chunk // keys)  # a block holds whole pieces of pages
            most_two |= {"WG": groups, "BN": groups * keys}
        whole = {"SPLITS": 1, "G": consts["T"]} if "SPLITS" in consts else {}
        return {**consts, **most_two, **whole}


class CacheSettings(DecodeSettings):
    """The settings of the decode kernel over a cache of keys and values."""

    lengths_on_device = True

    @functools.cached_property
    def work(self) -> Work | None:
        """The work if each sequence of a cache had all N tokens."""
        from ...performance.selection.work import Work

        def whole(node: Any) -> Any:
            return Name("N") if isinstance(node, Subscript) and isinstance(node.value, Name) and node.value.id == "LENGTHS" else node

        return Work.of(rewrite(self.program, whole))

    def specification(self, transferred: TransferResult) -> AnySpecification:
        from ..verification.serving_specifications import make_cached_specification

        return make_cached_specification(transferred.spec, make_captured_arguments(self.program, transferred), "TOKENS" in self.fixed)


class VarlenSettings(Settings):
    """The settings of the kernel of packed sequences.

    They follow from the queries of the longest sequence alone: a sequence's bits do not depend on the number of others.
    """

    lengths_on_device = True
    invariant = False  # blocks have the same keys whatever the queries

    @functools.cached_property
    def tall(self) -> dict[str, Const]:
        """The setting for long sequences; `start` if none with taller tiles is known."""
        settings = ({**start, **self.fixed} for start in self.starts if start.get("BM") == TALL)
        return next((consts for consts in settings if self.fits(consts)), self.start)

    def choose_untuned(self, at: Lengths) -> dict[str, Const]:
        if at.M > SHORT:
            least = _find_least_of_tall(self.fixed)
            if self.invariant and self.tall.get("BN") != self.start.get("BN"):
                return self.start
            return self.start if least is None or least > at.M or self.fixed.get("CHUNK", 0) else self.tall
        if self.fixed["T"] == F32:
            return {**self.start, "BM": SHORT, "ROWS": SHORT, **self.fixed}
        return {**self.start, "BM": SHORT, "QBUF": 2 if self.start.get("AHEAD", True) else 1, **self.fixed}

    def choice(self, at: Lengths, numbers: Numbers = ()) -> Choice:
        from ...performance.selection import Choice

        if self.invariant:
            return Choice(self.choose_untuned(at), "given", FIXED)
        return Choice(self.choose_untuned(at), "start", "by the longest sequence: the device alone knows the others")

    def specification(self, transferred: TransferResult) -> AnySpecification:
        from ..verification.serving_specifications import make_packed_specification

        return make_packed_specification(transferred.spec, make_captured_arguments(self.program, transferred))


class FixedSettings(Settings):
    """The setting of calls whose bits must not depend on the number of queries, with blocks of the same keys for all lengths."""

    def choice(self, at: Lengths, numbers: Numbers = ()) -> Choice:
        from ...performance.selection import Choice

        least = _find_least_of_tall(self.fixed)
        tall = (
            () if least is None or least > at.M else (s for s in self.starts if (s.get("BM"), s.get("BN")) == (TALL, self.start.get("BN")))
        )
        fitting = (consts for s in tall if self.fits(consts := {**s, **self.fixed}))
        return Choice(next(fitting, self.start), "given", FIXED)


def _find_least_of_tall(fixed: Mapping[str, Const]) -> int | None:
    """Return the queries of the longest sequence from which taller tiles are faster; None if they never are."""
    dim = max(int(fixed[n]) for n in ("D", "DV"))  # type: ignore[arg-type]
    return next((queries for most, queries in TALL_FROM.items() if dim <= most), None)


def longest_class(longest: int | None, tokens: int) -> int:
    """Return the queries of the longest sequence for which the setting of packed sequences is chosen.

    All lengths that share a setting have one. None stands for any length: the number of others decides nothing.
    """
    most = tokens if longest is None else min(longest, tokens)
    if most <= SHORT:
        return most
    return max(n for n in (SHORT + 1, *TALL_FROM.values()) if longest is None or n <= longest)


def make_captured_arguments(program: Program, transferred: TransferResult) -> Callable[[Lengths], Mapping[str, Any]]:
    """Return a function from lengths to a kernel's arguments for captured values."""
    from ..splicing.captured_arguments import CapturedArguments

    captured_arguments = CapturedArguments(program, program.kernels()[transferred.kernel], transferred.spec)

    def arguments(at: Lengths) -> Mapping[str, Any]:
        values = transferred.arguments(at)
        return values | captured_arguments.with_room(values, at)

    return arguments


__all__ = ["TALL_FROM", "CacheSettings", "DecodeSettings", "FixedSettings", "VarlenSettings", "longest_class", "make_captured_arguments"]
