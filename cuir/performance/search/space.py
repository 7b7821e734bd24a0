"""Values of const parameters that are worth trying: data beside a kernel (`NAME.tune.json`).

The checker's verdicts on settings are kept in the cache folder.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...checking.checked import Const
from ...checking.const_defaults import PlainConst, PlainConsts, consts_as_json, with_defaults
from ...checking.const_defaults import label as label
from ...runtime.result_cache import remember
from ...syntax.nodes import ConstType, Program
from ...syntax.printer import show
from ...syntax.types import DTYPES, DType
from ...text.diagnostics import CuirError, Diagnostic

Consts = dict[str, Const]


@dataclass(frozen=True)
class Space:
    """Candidates for a kernel's const parameters.

    A start may name lengths that are not tuned (the head dims D and DV). It then holds for these lengths, and for
    smaller ones that are not nearer to another start.

    Attributes:
        axes: Parameters that are varied together, with their values.
        starts: Settings that are known to be good, tried first.
        computes: Name of the variant that the unchanged kernel computes.
        exact: True if the space was narrowed to starts that name exactly the given lengths.
    """

    axes: tuple[Mapping[str, tuple[int | bool, ...]], ...]
    starts: tuple[Mapping[str, int | bool], ...]
    computes: str = ""
    exact: bool = False

    @staticmethod
    def parse(text: str, name: str) -> Space:
        """Parse the JSON text of a space.

        Raises: CuirError U115.
        """
        try:
            data = json.loads(text)
        except ValueError as error:
            raise _make_malformed_error(name, f"it is no JSON: {error}") from None
        if not isinstance(data, dict) or not isinstance(data.get("axes"), list):
            raise _make_malformed_error(name, "it is an object with `axes`, a list of objects")
        axes = []
        for axis in data["axes"]:
            if not isinstance(axis, dict) or not axis or not all(isinstance(v, list) and v and all(map(_number, v)) for v in axis.values()):
                raise _make_malformed_error(
                    name, f"an axis is an object of parameters with lists of integers or true, false; found {json.dumps(axis)}"
                )
            axes.append({parameter: tuple(values) for parameter, values in axis.items()})
        starts = data.get("starts", [])
        if not isinstance(starts, list) or not all(isinstance(s, dict) and all(map(_number, s.values())) for s in starts):
            raise _make_malformed_error(name, "`starts` is a list of objects of parameters with a value each")
        repeated = [p for p, n in _counts(axes).items() if n > 1]
        if repeated:
            raise _make_malformed_error(name, f"`{repeated[0]}` is on more than one axis")
        return Space(tuple(axes), tuple(starts), str(data.get("computes", "")))

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the tuned parameters."""
        return tuple(p for axis in self.axes for p in axis)

    def check_names(self, program: Program, kernel: str | None) -> None:
        """Check that the kernel has all parameters of the space.

        Raises: CuirError N111 if it lacks one.
        """
        from ...checking.checker import pick_kernel

        picked = pick_kernel(program, kernel)
        const_names = {p.name for p in picked.params if isinstance(p.type, ConstType)}
        for parameter in self.parameters:
            if parameter not in const_names:
                raise CuirError.of(
                    "N111", f"`{picked.name}` has no const parameter `{parameter}`, which its space of candidates names", picked.span
                )

    def restrict(self, program: Program, kernel: str | None) -> Space:
        """Return the space without parameters that a variant of the kernel lacks.

        The order of its tiles, for example, may need none.
        """
        from ...checking.checker import pick_kernel

        names = {p.name for p in pick_kernel(program, kernel).params}
        axes = [{p: values for p, values in axis.items() if p in names} for axis in self.axes]
        starts = [{p: value for p, value in start.items() if p in names} for start in self.starts]
        return Space(tuple(axis for axis in axes if axis), tuple(starts), self.computes)

    def narrow(self, fixed: Mapping[str, Const]) -> Space:
        """Return the space without fixed parameters, and with the starts that agree with them.

        Of these, the starts for the nearest lengths remain.
        """
        axes = [{p: values for p, values in axis.items() if p not in fixed} for axis in self.axes]
        agreeing = [s for s in self.starts if all(fixed.get(p, value) == value for p, value in s.items() if p in self.parameters)]
        above = [(sum(distances), s) for s in agreeing if min(distances := self._compute_distances(s, fixed), default=0) >= 0]
        nearest = min((distances for distances, _ in above), default=0)
        starts = [{p: v for p, v in s.items() if p in self.parameters and p not in fixed} for distances, s in above if distances == nearest]
        return Space(tuple(axis for axis in axes if axis), tuple(starts), self.computes, bool(above) and nearest == 0)

    def _compute_distances(self, start: Mapping[str, int | bool], fixed: Mapping[str, Const]) -> list[int]:
        """Return by how much the lengths of a start exceed the fixed ones."""
        return [int(n) - int(fixed[p]) for p, n in start.items() if p not in self.parameters and isinstance(fixed.get(p), int)]  # type: ignore[arg-type]

    def vary(self, axis: Mapping[str, tuple[int | bool, ...]], consts: Mapping[str, Const]) -> Iterator[Consts]:
        """Yield `consts` with every combination of values on one axis."""
        for values in itertools.product(*axis.values()):
            yield {**consts, **dict(zip(axis, values, strict=True))}

    def enumerate_all(self) -> Iterator[Consts]:
        """Yield every combination of all axes."""
        values = [v for axis in self.axes for v in axis.values()]
        for chosen in itertools.product(*values):
            yield dict(zip(self.parameters, chosen, strict=True))


def find_violation(program: Program, kernel: str | None, consts: Mapping[str, Const], shared_bytes: int | None = None) -> Diagnostic | None:
    """Return why a candidate does not fit the architecture, without compiling it; None if it fits.

    shared_bytes: the shared memory of a CTA on a card that has less than the architecture.
    """
    from ...checking.checker import check
    from ...checking.resources import count_shared_bytes

    try:
        checked = check(program, kernel, consts)
    except CuirError as error:
        return error.diagnostics[0]
    if shared_bytes is None or (needed := count_shared_bytes(checked)) <= shared_bytes:
        return None
    message = f"a CTA on this card has {shared_bytes} bytes of shared memory, found {needed}"
    return CuirError.of("M301", message, checked.origin.span, "use fewer stages or smaller tiles").diagnostics[0]


def defaults(program: Program, kernel: str | None) -> Consts:
    """Return the const parameters that have a number as their default."""
    from ...checking.checker import pick_kernel

    return {name: value for name, value in with_defaults(pick_kernel(program, kernel), {}).items() if not isinstance(value, DType)}


def plain(consts: Mapping[str, Const]) -> PlainConsts:
    """Return consts as JSON data."""
    return consts_as_json(dict(sorted(consts.items())))


def from_plain(data: Mapping[str, PlainConst]) -> Consts:
    """Return consts from JSON data."""
    return {name: DTYPES[value] if isinstance(value, str) else value for name, value in data.items()}


def _counts(axes: list[dict[str, tuple[int | bool, ...]]]) -> dict[str, int]:
    names = [p for axis in axes for p in axis]
    return {p: names.count(p) for p in names}


def _number(value: object) -> bool:
    return isinstance(value, int)


def _make_malformed_error(name: str, why: str) -> CuirError:
    return CuirError.of("U115", f"{name} is no space of candidates: {why}", hint="docs/tuning.md shows one")


STACK_OVERFLOW = "P018"  # of nested expressions: another caller may have more of the stack left


class _NotKept(Exception):
    """A verdict that holds for this call alone."""


def fits(program: Program, kernel: str | None, consts: Mapping[str, Const], shared_bytes: int | None = None) -> bool:
    """Return whether a candidate passes the checker, and fits a card (see `find_violation`).

    The verdict is from the cache folder if it was asked for before.
    """

    def check() -> bool:
        violation = find_violation(program, kernel, consts, shared_bytes)
        if violation is not None and violation.code == STACK_OVERFLOW:
            raise _NotKept
        return violation is None

    values = sorted((name, repr(value)) for name, value in consts.items())
    limit = [] if shared_bytes is None else [str(shared_bytes)]
    try:
        return remember("fits", [show(program), repr(kernel), repr(values), *limit], bool, check)
    except _NotKept:
        return False


__all__ = ["Consts", "Space", "defaults", "find_violation", "fits", "from_plain", "plain"]
