"""The settings of const parameters with which one program runs, by problem, and their kernels.

Settings are chosen by `cuir.performance.selection`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from ...checking.checked import Checked, Const
from ...checking.checker import pick_kernel
from ...checking.const_defaults import with_defaults
from ...runtime.cards import Card, find_shared_limit
from ...runtime.garbage_collection import without_full_collections
from ...spec.specification import Lengths
from ...syntax.nodes import Expr, Program
from ...text.diagnostics import CuirError
from ..capture.call_inputs import need_warm
from ..capture.first_call_progress import Progress
from ..tracing.traced_result import Parameter

if TYPE_CHECKING:
    from ...performance.selection import Choice
    from ...performance.selection.work import Arithmetic, Work
    from ...performance.timing.problem import Shape
    from ...runtime.compiled import CompiledKernel
    from ...runtime.nvcc import Nvcc
    from ...spec.function_specification import AnySpecification
    from ..splicing.splice import TransferResult

KNOWN_LENGTHS = 1024  # size limit of the caches by problem
SPILLED = 64  # bytes that may be: 186 to 220 cost up to a third of the time, 56 nothing (docs/notes/chosen_settings.md)
NARROWER = (80, 64)  # keys of a block
FEWER = 128  # queries of a tile
ONE_WARPGROUP = 64  # queries of a tile of one warpgroup, whose threads have the most registers
NARROW_HEADS = 64
Numbers = tuple[tuple[str, int | float], ...]


class Settings:
    """The settings of one program.

    Each is checked, verified and compiled at most once, and chosen once for each class of problems.
    """

    lengths_on_device = False  # only the device has the lengths of sequences

    def __init__(
        self,
        program: Program,
        fixed: Mapping[str, Const],
        starts: tuple[Mapping[str, Const], ...],
        exact: bool = False,
        mask: Expr | None = None,
        card: Card | None = None,
    ):
        """Create the settings of a program.

        Args:
            fixed: T, D, DV and consts that the user chose.
            starts: settings of which the first that fits is used where nothing else is known.
            exact: these are for the head dims of the program.
            mask: that of the program's block lists.
            card: the GPU for which a model of cost chooses.
        """
        self.card = card
        self.program, self.fixed, self.starts, self.exact, self.mask = program, dict(fixed), starts, exact, mask
        self.by_problem: dict[tuple[Lengths, Numbers], tuple[dict[str, Const], CompiledKernel]] = {}
        self.by_class: dict[object, Choice] = {}
        self.keys: dict[tuple[Lengths, Numbers], float | None] = {}
        # keys of a query on average, of the last data whose blocks were counted
        self.counted: dict[Lengths, float] = {}
        self.checks: dict[str, Checked] = {}
        self.kernels: dict[str, CompiledKernel] = {}
        self.proven: set[str] = set()  # keys of kernels that were verified

    @functools.cached_property
    def start(self) -> dict[str, Const]:
        """The setting for the interpreter, and for reports that are of no problem."""
        settings = ({**start, **self.fixed} for start in self.starts)
        return next((consts for consts in settings if self.fits(consts)), self.fixed)

    def fits(self, consts: Mapping[str, Const]) -> bool:
        """Return whether a setting passes the checker, and fits the card."""
        from ...performance.search.space import fits

        return fits(self.program, None, consts, self.shared_limit)

    @property
    def shared_limit(self) -> int | None:
        """The shared memory of a CTA on a card that has less than the program's architecture."""
        return find_shared_limit(pick_kernel(self.program, None).arch, self.card)

    @functools.cached_property
    def work(self) -> Work | None:
        from ...performance.selection.work import Work

        return Work.of(self.program, mask=self.mask)

    @property
    def score(self) -> Arithmetic | None:
        """The cost of a pair's score; None if it is unknown."""
        return self.work.score if self.work is not None else None

    def numbers(self, captured: Iterable[Parameter]) -> Numbers:
        """Return the captured numbers that decide how many blocks a tile visits.

        A setting is chosen for these.
        """
        read = self.work.dependencies if self.work is not None else frozenset()
        return tuple((p.name, p.value) for p in captured if p.name in read and isinstance(p.value, (int, float)))

    def choice(self, at: Lengths, numbers: Numbers = ()) -> Choice:
        """Return the setting of a problem, and the reason for it."""
        from ...performance.search import shape_class
        from ...performance.search.tuning_records import device
        from ...performance.selection import Evidence, choose, problem_class

        shape_key = shape_class(self._shape(at), max(1, device()[1]))
        problem_key = problem_class(self.work, at, dict(numbers)) if self.work is not None else (at, {})
        kind = (shape_key, problem_key[0], *problem_key[1].items())
        if kind not in self.by_class:
            self.by_class[kind] = choose(
                self.program, self.fixed, at, Evidence(self.starts, self.exact, card=self.card), numbers=dict(numbers), mask=self.mask
            )
        return self.by_class[kind]

    def count_visited_keys(self, at: Lengths, numbers: Numbers = ()) -> float | None:
        """Return the mean number of keys that a query visits, in whole blocks.

        None if lengths and numbers do not decide it.
        """
        if (at, numbers) not in self.keys:
            from ...performance.selection.shipped_table import compute_mean_keys

            if len(self.keys) >= KNOWN_LENGTHS:
                self.keys.clear()
            self.keys[at, numbers] = compute_mean_keys(self.work, self._shape(at), dict(numbers)) if self.work is not None else None
        return self.keys[at, numbers]

    def _shape(self, at: Lengths) -> Shape:
        from ...performance.timing.problem import Shape

        return Shape(at.B, at.H, at.HK, at.M, at.N, int(self.fixed["D"]))  # type: ignore[arg-type]

    def choose_untuned(self, at: Lengths) -> dict[str, Const]:
        """Return the setting of the interpreter for a problem."""
        return self.start

    def choose_judged(self, consts: Mapping[str, Const]) -> Mapping[str, Const]:
        """Return the setting to verify in place of one that runs."""
        return consts

    def specification(self, transferred: TransferResult) -> AnySpecification:
        """Return the specification against which a program of these settings is verified."""
        return transferred.spec

    def check_program(self, consts: Mapping[str, Const]) -> Checked:
        from ...checking.checker import check

        key = text_of(consts)
        if key not in self.checks:
            self.checks[key] = check(self.program, None, consts)
        return self.checks[key]

    def require_fit(self, consts: Mapping[str, Const]) -> None:
        """Raise the CuirError of the checker, or M301 of the card, for a setting that does not fit."""
        from ...performance.search.space import find_violation

        if not self.fits(consts):
            self.check_program(consts)
            if (violation := find_violation(self.program, None, consts, self.shared_limit)) is not None:
                raise CuirError([violation])

    def compile_for(
        self, at: Lengths, numbers: Numbers, prove: Callable[[Mapping[str, Const], Progress], object], name: str
    ) -> tuple[dict[str, Const], CompiledKernel]:
        """Return the consts and the kernel for a problem.

        Args:
            prove: raises CuirError if the program is wrong with these consts; runs while nvcc does.
            name: for progress.
        """
        entry = self.by_problem.get((at, numbers))
        if entry is not None:
            return entry
        need_warm("compiling a kernel")
        return self._compile_candidates(at, numbers, prove, name)

    @without_full_collections()
    def _compile_candidates(
        self, at: Lengths, numbers: Numbers, prove: Callable[[Mapping[str, Const], Progress], object], name: str
    ) -> tuple[dict[str, Const], CompiledKernel]:
        """Compile and verify the settings for a problem until it is known which one runs; remember that one."""
        from ...performance.search.space import label
        from ...runtime.compiled import compile
        from .concurrent_compilation import Candidates

        choice = self.choice(at, numbers)
        first = dict(choice.consts)
        is_free = choice.source not in ("given", "tuned")
        progress = Progress(name)

        def key_of(consts: Mapping[str, Const]) -> str:
            # shared by settings that differ in wording alone
            return text_of(with_defaults(pick_kernel(self.program, None), consts))

        def compile_setting(consts: Mapping[str, Const], nvcc: Nvcc) -> CompiledKernel:
            key = key_of(consts)
            if key not in self.kernels:
                spilling = f"{label(consts)}: the registers of {label(first)} may not hold what it works with"
                progress.tell(str(choice) if consts is first else spilling)
                with progress.step("compiling"):
                    self.kernels[key] = compile(self.program, consts=consts, run=nvcc)
            return self.kernels[key]

        def prove_once(consts: Mapping[str, Const], progress: Progress) -> None:
            if key_of(consts) not in self.proven:
                prove(consts, progress)
                self.proven.add(key_of(consts))

        def list_others() -> list[dict[str, Const]]:
            return self.roomier(first) if is_free else []

        allowed, spills = max(SPILLED, choice.spilled), is_free and self.will_spill(first)
        with Candidates(first, list_others, allowed, compile_setting, spills) as candidates:
            candidates.verify(prove_once, name)
            index, best = candidates.decided()
            consts = dict(candidates.settings[index])
            prove_once(consts, progress)
        if len(self.by_problem) >= KNOWN_LENGTHS:
            self.by_problem.clear()
        self.by_problem[at, numbers] = consts, best
        return self.by_problem[at, numbers]

    def will_spill(self, consts: Mapping[str, Const]) -> bool:
        """Return whether a setting is expected to spill registers.

        For a score that reads a tensor for each pair, nvcc 13.0 spills 150 to 830 bytes in 9 of 12 settings; the other three
        have one warpgroup and narrow heads. A wrong guess costs time alone.
        """
        if self.work is None or not self.work.reads_pairs:
            return False
        return consts.get("BM") != ONE_WARPGROUP or any(consts.get(n, 0) > NARROW_HEADS for n in ("D", "DV"))  # type: ignore[operator]

    def roomier(self, consts: Mapping[str, Const]) -> list[dict[str, Const]]:
        """Return settings in which a thread holds fewer elements, or has more registers, most similar first.

        Consts that the user chose are unchanged.
        """
        queries, keys = consts.get("BM"), consts.get("BN")
        if not isinstance(queries, int) or not isinstance(keys, int) or consts.get("CLUSTER", 1) != 1:
            return []
        tiles = [(queries, n) for n in NARROWER if n < keys] + [(FEWER, NARROWER[-1])] * (queries > FEWER)
        settings = [{**consts, **{n: v for n, v in (("BM", m), ("BN", k)) if n not in self.fixed}} for m, k in tiles]
        return [s for s in settings if s != consts and self.fits(s)]


def text_of(consts: Mapping[str, Const]) -> str:
    return repr(sorted((name, str(value)) for name, value in consts.items()))


__all__ = ["KNOWN_LENGTHS", "Settings", "text_of"]
