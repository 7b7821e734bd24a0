"""Option `--problem` of verify: one problem under one schedule, and the command line that names it.

The judging is in the library.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ..attn.verification.problems import KINDS, Case, is_attention
from ..checking.checked import Checked
from ..checking.const_defaults import USUAL_DTYPE, consts_as_json, describe_consts, label
from ..interp import Schedule
from ..spec.function_specification import FunctionSpecification
from ..spec.specification import LENGTHS, Lengths
from ..syntax.types import BOOL, F32, I32
from ..text.diagnostics import CuirError, Diagnostic, Note
from ..verification.failing_run import CASE, CONSTS
from ..verification.inputs import list_applicable_kinds
from ..verification.noise_verdicts import check_contraction, choose_contraction_cases
from ..verification.spec_dispatch import AnyCase, check_case, list_made_positive, require_compared, require_judgeable
from ..verification.values.cases import Draw
from ..verification.values.special_plan import SPECIAL
from ..verification.values.special_values import UNDERFLOW
from ..verification.values.step_inputs import KIND as STEPS
from .command_defaults import EXPERT
from .command_inputs import expert_for, read_numbers, suggestion
from .gpu_stage import Verified
from .output import print_json, stdout

Number = int | float | bool
_WHY = {
    "scaled": "the function asks for no scalar called scale",
    "faint": "no scalar keeps a root or a quotient away from 0, as an eps does",
    "hidden": "no tensor that may hold -inf is added to others",
    "bounds": "no tensor is drawn for which the function gives numbers with special values in it",
    "infinite": "the function gives no number where an infinity enters",
    "nan": "the function gives no element of a tensor that NaN would spread to",
    "steep": "no rows enter an exponential that may fall or rise so far",
    "near": "no tensor is drawn",
    "vast": "no tensor is drawn",
    "both": "fewer than two tensors are drawn",
    "edges": "no scalar is drawn that may have other values",
}
_OF_FUNCTIONS = "mods are asked with the values that they capture"
_NO_TENSOR = "it is of tensors with more dims than those that are drawn"


def run_problem(verified: Verified, problem: Sequence[str], kind: str, seed: int, schedule: str, grid: int | None, as_json: bool) -> int:
    """Run and judge the problem; return the exit code.

    Raises CuirError for a wrong call, and for faults of the program.
    """
    checked, spec = verified.checked, verified.specification
    require_judgeable(checked, spec)
    if kind not in (*KINDS, STEPS, UNDERFLOW):
        raise CuirError.of("U100", f"there are no inputs `{kind}`", hint=suggestion(kind, (*KINDS, STEPS, UNDERFLOW), "there are"))
    numbers = read_numbers(problem, "--problem")
    function = isinstance(spec, FunctionSpecification)
    steps = (STEPS, UNDERFLOW) if not is_attention(checked.origin) else ()
    fit = (
        (*list_applicable_kinds(checked, spec), *steps)
        if isinstance(spec, FunctionSpecification)
        else tuple(k for k in KINDS if k not in ("aligned", "faint", *SPECIAL))
    )
    if kind not in fit:
        raise CuirError.of(
            "U100",
            f"--inputs {kind} does not apply to `{checked.name}` against `{spec.name}`: {_OF_FUNCTIONS if kind in SPECIAL and not function else _WHY.get(kind, _NO_TENSOR)}",
            hint=f"these do: {', '.join(fit)}",
        )
    dims = list(checked.dims) if function else list(LENGTHS)
    scalars = _take_scalars(numbers, checked) if function else ()
    _require_lengths(numbers, dims)
    sizes = {n: int(numbers[n]) for n in dims}
    case: AnyCase = Draw("one problem", sizes, kind, seed, scalars=scalars)
    if not function:
        case = Case("one problem", Lengths(**sizes), kind, seed)  # type: ignore[arg-type]  # one that fits is one of KINDS
    judge = partial(check_case, verified.program, checked, spec, case, Schedule.parse(schedule), grid)
    rows = judge()
    if choose_contraction_cases(checked, [case], "quick"):
        check_contraction(checked, judge)
    if as_json:
        require_compared(checked, spec, rows)
        print_json(
            {
                "ok": True,
                "diagnostics": [],
                "kernel": checked.name,
                "consts": consts_as_json(checked.consts),
                "case": str(case),
                "rows": rows,
            }
        )
        return 0
    stdout().print(f"{checked.name} with {describe_consts(checked.consts)}", soft_wrap=True)
    for row in rows:
        stdout().print(
            ", ".join(
                f"{n}: {v:.2e}" if isinstance(v, float) else str(v)
                for n, v in row.items()
                if n not in ("made positive", "scratch") and (n != "not asked" or v)
            ),
            soft_wrap=True,
        )
    if positive := list_made_positive(rows):
        stdout().print(
            f"made positive, since the function fails or gives more NaN for a negative value: {', '.join(positive)}",
            soft_wrap=True,
        )
    require_compared(checked, spec, rows)
    return 0


def _take_scalars(numbers: dict[str, Number], checked: Checked) -> tuple[tuple[str, Number], ...]:
    """Remove the values of the kernel's scalars from the numbers of the command line, and return them.

    Raises CuirError U113 for one of another type.
    """
    scalars: list[tuple[str, Number]] = []
    for s in checked.scalars:
        if s.name not in numbers:
            continue
        value = numbers.pop(s.name)
        if s.dtype == F32 and not isinstance(value, bool):
            value = float(value)
        expected = {I32: int, F32: float, BOOL: bool}.get(s.dtype)
        if expected is not None and type(value) is not expected:
            raise CuirError.of("U113", f"`{s.name}` is a scalar of type {s.dtype}, found {s.name}={value} in --problem")
        if s.dtype == I32 and not -(2**31) <= value < 2**31:
            raise CuirError.of("U113", f"`{s.name}` is an integer of 32 bits, found {s.name}={value} in --problem")
        scalars.append((s.name, value))
    return tuple(scalars)


def _require_lengths(numbers: Mapping[str, Number], dims: Sequence[str]) -> None:
    """Check that there is a length for each dim and nothing else.

    Query heads must share key heads evenly. Raises CuirError U113.
    """

    def wrong(reason: str) -> CuirError:
        """Return the error."""
        return CuirError.of(
            "U113", f"--problem gives the length of each dim, {reason}", hint=f"--problem {','.join(f'{n}=...' for n in dims)}"
        )

    if unknown := [n for n in numbers if n not in dims]:
        raise wrong(f"and there is no dim {', '.join(unknown)}")
    if missing := [n for n in dims if n not in numbers]:
        raise wrong(f"found none of {', '.join(missing)}")
    for n, value in numbers.items():
        if type(value) is not int or value < 0:
            raise wrong(f"an integer >= 0, found {n}={value}" + (", which is negative" if value < 0 else ""))
    H, HK = numbers.get("H", 0), numbers.get("HK", 1)
    if HK < 1 or H % HK:
        raise wrong(f"and HK, at least 1, divides H: as many query heads belong to each key head; found H={H}, HK={HK}")


def add_commands(diagnostics: Sequence[Diagnostic], verified: Verified, consts: Mapping[str, Any]) -> tuple[Diagnostic, ...]:
    """Add to each diagnostic the whole command that reproduces it: the same problem, inputs and schedule."""
    base = ["cuir", "verify", verified.target]
    for option, values in (
        ("--against", [verified.against] if verified.against else []),
        ("-p", verified.parameters),
        ("-k", [verified.kernel] if verified.kernel else []),
    ):
        base += [word for value in values for word in (option, value)]
    head_dims = [value for value in map(verified.plain.get, ("D", "DV")) if isinstance(value, int)]
    if verified.against is None and verified.origin != expert_for(EXPERT, verified.plain.get("T", USUAL_DTYPE), *head_dims):
        base += ["--origin", verified.origin]

    def whole(d: Diagnostic) -> Diagnostic:
        """Add the command to a diagnostic."""
        case = next((m for n in d.notes if (m := CASE.search(n.message))), None)
        if case is None:
            return d
        _, lengths, kind, seed = case.groups()
        other_consts = next((m[1] for n in d.notes if (m := CONSTS.search(n.message))), "")
        used = {**consts, **dict(c.split("=", 1) for c in other_consts.split() if "=" in c)}
        words = [*base, *(["-c", label(used)] if used else []), "--problem", lengths.rstrip(", ").replace(", ", ",")]
        words += ([] if kind == "normal" else ["--inputs", kind]) + (["--data-seed", seed] if seed else [])
        schedule = next((n.message.removeprefix("replay: ") for n in d.notes if n.message.startswith("replay: ")), "")
        note = Note(f"replay: {shlex.join(words)} {schedule}".rstrip())
        return replace(d, notes=(*(n for n in d.notes if not n.message.startswith("replay: ")), note))

    return tuple(map(whole, diagnostics))
