"""Soundness of a specification: repeated calls must agree; warnings name untried problems."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from ..attn.verification.problems import Case
from ..checking.checked import Checked
from ..spec.function_results import equal_bits
from ..spec.function_specification import AnySpecification, FunctionSpecification
from ..spec.global_state import GlobalState, seed_generators
from ..spec.specification import Lengths, Specification
from ..spec.user_calls import Refusals, refuse_function
from ..text.diagnostics import CuirError
from ..text.source import function_span
from .function_judge import require_defined
from .inputs import FunctionLaunch, collect_readable, make_function_launch
from .values.cases import Draw, count_elements, get_integer_consts
from .values.number_text import show_different

_TRIED = (5, 16, 64, 128)  # lengths of all dims of the problem that is evaluated twice: the first that is admitted
_SMALL = 200_000  # elements of the largest tensor of a problem that is only inspected
# codes of unsound specifications; others are reported when problems are drawn
_REFUSED = ("X118", "X119", "X125", "X126")
_OF_THE_KERNEL = ("X105", "X106", "X107", "X108")  # codes of mismatches of specification and kernel
_SEEDS = (1, 2, 3)  # seeds of the global generators for each call
_LENGTHS = (Lengths(2, 2, 1, 5, 7), Lengths(1, 2, 2, 33, 16))
_OURS = str(Path(__file__).parents[1])
_STATE = "it hangs on state that calls change, a clock, random numbers, a cache, or memory of torch.empty: give one result for one input"
_EMPTY = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")

Values = Mapping[str, Any]


@dataclass
class _Question:
    """A call that is repeated.

    role: of the function, for messages; first: its first result.
    """

    role: str
    function: Callable[..., object]
    ask: Callable[[], Values]
    first: Values = field(default_factory=dict)


class Soundness:
    """A specification whose calls are repeated. Raises CuirError X118 where results differ."""

    def __init__(self, checked: Checked, spec: AnySpecification):
        self.checked, self.spec = checked, spec
        self.questions: list[_Question] = []

    def begin(self) -> None:
        """Call everything twice, with other seeds, once with NaN in unwritten memory.

        Raises CuirError X118, X119, X125, X126.
        """
        questions = (
            self._list_function_questions(self.spec)
            if isinstance(self.spec, FunctionSpecification)
            else self._list_mod_questions(self.spec)
        )
        for question in questions:
            try:
                question.first = _ask(question, _SEEDS[0])
                repeated = _ask(question, _SEEDS[1], filled=True)
            except CuirError as error:
                if error.diagnostics[0].code in _REFUSED:
                    raise
                continue  # fails for this problem, or is not supported by kernels: reported when problems are drawn
            self.questions.append(question)
            if (place := _find_difference(question.first, repeated)) is None:
                continue
            if (difference := _find_difference(question.first, _ask(question, _SEEDS[1]))) is not None:
                raise self._make_error(question, difference, "for the same inputs, asked twice", _STATE)
            raise self._make_error(
                question, place, "where memory that nothing wrote holds something else", "torch.zeros or torch.full in place of torch.empty"
            )

    def explain(self, error: CuirError) -> CuirError:
        """Return the cause of a failure if the specification now gives other results, else the error."""
        try:
            self.end({})
        except CuirError as cause:
            return cause
        return error

    def end(self, refused: Refusals) -> None:
        """Call everything again, after all other calls.

        refused: functions that were refused, whose error a question may have suppressed.
        """
        for _, error in refused.values():
            raise error
        for question in self.questions:
            if (place := _find_difference(question.first, _ask(question, _SEEDS[2]))) is not None:
                raise self._make_error(question, place, "for the same inputs, asked at the beginning and at the end", _STATE)

    def _make_error(self, question: _Question, place: tuple[str, str, str], when: str, hint: str) -> CuirError:
        name, first, repeated = place
        message = f"{question.role} of the specification `{self.spec.name}` gives {name} as {first}, and then as {repeated}, {when}"
        return refuse_function(question.function, CuirError.of("X118", message, function_span(question.function), hint))

    # ---- questions
    def _list_function_questions(self, spec: FunctionSpecification) -> Iterable[_Question]:
        draw = self._find_small_draw(spec)
        if draw is None:
            return
        checked = self.checked
        if spec.sizes is not None:
            drawn = {**get_integer_consts(checked), **dict.fromkeys(checked.dims, _TRIED[-1])}
            yield _Question("sizes", spec.sizes, lambda: spec.admit_lengths(drawn) or {"the length": None})
        if spec.inputs is not None:
            yield _Question("inputs", spec.inputs, lambda: _collect_values(make_function_launch(checked, spec, draw)))
        launch = make_function_launch(checked, spec, draw)
        yield _Question("reference", spec.reference, lambda: spec.exact(collect_readable(checked, launch), list(launch.before)))

    def _find_small_draw(self, spec: FunctionSpecification) -> Draw | None:
        for n in _TRIED:
            try:
                sizes = spec.admit_lengths({**get_integer_consts(self.checked), **dict.fromkeys(self.checked.dims, n)})
                if sizes is not None and self._count_elements(sizes) <= _SMALL:
                    draw = Draw("asked again", {d: sizes[d] for d in self.checked.dims})
                    make_function_launch(self.checked, spec, draw)
                    return draw
            except CuirError as error:
                if error.diagnostics[0].code in _REFUSED:
                    raise
        return None

    def _count_elements(self, sizes: Mapping[str, int]) -> int:
        return max((count_elements(t, sizes) for t in self.checked.tensors), default=0)

    def _list_mod_questions(self, spec: Specification) -> Iterable[_Question]:
        for lengths in _LENGTHS:
            for name, value in spec.data.items():
                if callable(value) and not isinstance(value, torch.Tensor):
                    yield _Question(f"`{name}`", value, lambda n=name, at=lengths: {n: spec.values(at)[n]})  # type: ignore[misc]
            if spec.mask_mod is not None:
                yield _Question("mask_mod", spec.mask_mod, lambda at=lengths: {"the mask": spec.mask(at)})  # type: ignore[misc]
            if spec.score_mod is not None:
                s = torch.randn(lengths.B, lengths.H, lengths.M, lengths.N, generator=torch.Generator().manual_seed(0))
                yield _Question("score_mod", spec.score_mod, lambda at=lengths, s=s: {"the score": spec.scores(s, at)})  # type: ignore[misc]

    # ---- untried problems
    def warnings(self, cases: Iterable[Draw | Case]) -> list[str]:
        """Return sentences about lengths and inputs of which the specification admits a single one."""
        spec, draws = self.spec, [c for c in cases if isinstance(c, Draw)]
        if not isinstance(spec, FunctionSpecification):
            return []
        return [*self._find_single_lengths(spec, draws), *self._find_single_tables(spec, draws)]

    def _find_single_lengths(self, spec: FunctionSpecification, draws: Sequence[Draw]) -> Iterable[str]:
        if spec.sizes is None or _is_ours(spec.sizes) or len(draws) == 0:
            return
        single: dict[str, int] = {}
        for d in self.checked.dims:
            lengths = {draw.sizes[d] for draw in draws}
            if len(lengths) == 1:
                single[d] = lengths.pop()
        if single and len(single) == len(self.checked.dims):
            text = ", ".join(f"{d}={n}" for d, n in single.items())
            yield f"sizes of `{spec.name}` admits a single problem, {text}: nothing is said of other lengths"
        elif single:
            text = ", ".join(f"only 1 length of {d} was admitted, {n}" for d, n in single.items())
            yield f"{text}: sizes of `{spec.name}` refuses others, and nothing is said of them"

    def _find_single_tables(self, spec: FunctionSpecification, draws: Sequence[Draw]) -> Iterable[str]:
        """Yield a warning about tables that are the same for every seed, in up to three problems."""
        if spec.inputs is None or _is_ours(spec.inputs):
            return
        small = [d for d in draws if self._count_elements({**get_integer_consts(self.checked), **d.sizes}) <= _SMALL]
        names_seen, varied = set[str](), set[str]()
        for draw in sorted(small, key=lambda d: -min(d.sizes.values(), default=0))[:3]:
            first, second = (make_function_launch(self.checked, spec, Draw(draw.name, draw.sizes, "normal", seed)) for seed in (11, 12))
            for name in first.from_inputs:
                a, b = _collect_values(first).get(name), _collect_values(second).get(name)
                names_seen |= {name} if _holds_several(a) else set()
                varied |= set() if equal_bits(a, b) else {name}
        fixed = names_seen - varied
        if fixed:
            names = ", ".join(sorted(fixed))
            yield f"inputs of `{spec.name}` gives the same {names} for every problem of the same lengths, whatever the generator: other tables were not tried"


def require_usable(checked: Checked, spec: AnySpecification, cases: Iterable[Draw | Case], seconds: float = 10.0) -> None:
    """Raise CuirError for a specification by which no kernel can be judged.

    X106 for only NaN, X113 for failures, and those of `Soundness`. Mismatches that other parameters or outputs of the
    kernel would fix pass. cases: problems of the numbers stage, of which small ones are tried for some seconds.
    """
    soundness, end = Soundness(checked, spec), time.perf_counter() + seconds
    soundness.begin()
    if isinstance(spec, FunctionSpecification):
        for draw in (c for c in cases if isinstance(c, Draw)):
            if time.perf_counter() > end:
                break
            if soundness._count_elements({**get_integer_consts(checked), **draw.sizes}) <= _SMALL:
                try:
                    launch = make_function_launch(checked, spec, draw)
                    exact = spec.exact(collect_readable(checked, launch), list(launch.before))
                except CuirError as error:
                    if error.diagnostics[0].code in _OF_THE_KERNEL:
                        return
                    raise
                require_defined(spec, exact, draw)
    soundness.end({})


class _Filled(TorchDispatchMode):
    """Mode in which unwritten memory is NaN, or the least integer."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in _EMPTY and isinstance(result, torch.Tensor) and not result.is_meta:
            dtype = result.dtype
            if dtype.is_floating_point or dtype.is_complex:
                result.fill_(torch.nan)
            else:
                result.fill_(True if dtype == torch.bool else torch.iinfo(dtype).min + 85)
        return result


def _ask(question: _Question, seed: int, filled: bool = False) -> Values:
    """Return a result under a seed of the global generators, which are restored."""
    state = GlobalState()
    try:
        seed_generators(seed)
        if not filled:
            return question.ask()
        try:
            with _Filled():
                return question.ask()
        except CuirError as error:
            if error.diagnostics[0].code in _REFUSED:
                raise
            return question.ask()  # not supported under a dispatch mode
    finally:
        state.restore()


def _find_difference(first: Values, repeated: Values) -> tuple[str, str, str] | None:
    """Return the first place where two results differ, with both values as text."""
    for name in (*first, *(n for n in repeated if n not in first)):
        if name not in first or name not in repeated:
            missing = name not in first
            return (name, "nothing", "a value") if missing else (name, "a value", "nothing")
        a, b = first[name], repeated[name]
        if equal_bits(a, b):
            continue
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            return name, str(a), str(b)
        if a.shape != b.shape or a.dtype != b.dtype:
            return name, _describe_kind(a), _describe_kind(b)
        x, y = (x.detach().double() for x in (a, b))
        index = torch.nonzero((x != y) & ~((x != x) & (y != y)))[0].tolist()
        before, after = show_different(x[tuple(index)].item(), y[tuple(index)].item())
        return f"{name}{index if index else ''}", before, after
    return None


def _describe_kind(x: torch.Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}"


def _collect_values(launch: FunctionLaunch) -> Values:
    return {**launch.before, **launch.inputs}


def _holds_several(x: object) -> bool:
    return isinstance(x, torch.Tensor) and x.numel() > 1


def _is_ours(function: Callable[..., object]) -> bool:
    """Return whether the function is of this package: its tables follow from the lengths."""
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename.startswith(_OURS)


__all__ = ["Soundness", "require_usable"]
