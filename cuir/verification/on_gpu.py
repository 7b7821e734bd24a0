"""The compiled kernel against the interpreter on the same inputs. Owns what is compared; the process that may hang or fault is the caller's.

Compared bit by bit: which elements are -inf, 0 for want of keys, or NaN, and repeated launches. Bounded: everything else, because the order of sums and
exp2 differ from the interpreter's; the bound is that of the numbers stage, PyTorch's own error in half precision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..checking.checked import Checked
from ..interp import run
from ..spec.specification import Specification
from ..syntax.nodes import Program
from ..text.diagnostics import CuirError, Diagnostic, Note
from .inputs import added
from .number_text import show_different
from .numeric import Numbers, judge, with_note
from .problems import Case, Launch, launch

LAUNCHES = 4  # of each problem; their results must be the same bits
Launching = Callable[[Mapping[str, Any]], None]  # launches with tensors on a device, and waits for the end


@dataclass(frozen=True)
class Compared:
    """One problem. apart: the distance of the GPU's O from the interpreter's, relative in the norm; repeated: launches that gave the same bits."""

    numbers: Numbers
    apart: float
    repeated: int

    def as_json(self) -> dict[str, Any]:
        n = self.numbers
        return {"case": str(n.case), "error": n.error, "PyTorch, half": n.yardstick, "worst query": n.row, "worst query, half": n.row_yardstick,
                "LSE": n.lse, "from the interpreter": self.apart, "launches alike": self.repeated}  # fmt: skip


def compare(
    program: Program, checked: Checked, spec: Specification, case: Case, launched: Launching, device: str = "cuda", launches: int = LAUNCHES
) -> Compared:
    """Runs one problem in the interpreter and `launches` times on the device, outputs full of NaN before each run.

    Raises CuirError: V301 to V304 for numbers, V402 where the two disagree or launches differ, V403 for a fault that the driver reports.
    """
    given = launch(program, checked, spec, case)
    run(checked, given.arguments())
    there = on_device(given.arguments(), device)
    first: Launch | None = None
    for number in range(launches):
        there |= on_device(given.fresh().outputs, device)
        try:
            launched(there)
            now = given.given({name: there[name].cpu() for name in given.outputs})
        except RuntimeError as error:
            raise faulted(checked, error, str(case)) from error
        if first is None:
            first = now
        elif not added(checked) & set(given.outputs):
            _same_bits(checked, case, first, now, number)
    assert first is not None
    try:
        numbers = judge(first, spec, case, checked.origin.span)
    except CuirError as error:
        raise with_note(error, f"on the GPU, in the case {case}") from error
    return Compared(numbers, _agree(checked, case, given, first, numbers), launches)


def on_device(arguments: Mapping[str, Any], device: str) -> dict[str, Any]:
    return {n: v.to(device) if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}


def faulted(checked: Checked, error: RuntimeError, where: str) -> CuirError:
    """What the driver says after a launch, in a line; it does not say where in the kernel."""
    words = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return CuirError.of("V403", f"`{checked.name}` faults on the GPU: {words} ({where})", checked.origin.span,
                        "cuir verify ... --gpu --sanitizer memcheck names the line")  # fmt: skip


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.int16 if x.element_size() == 2 else torch.int32)


def _same_bits(checked: Checked, case: Case, first: Launch, now: Launch, number: int) -> None:
    for (name, a), b in zip(first.outputs.items(), now.outputs.values()):
        differs = _bits(a) != _bits(b)
        if differs.any():
            at = torch.nonzero(differs)[0].tolist()
            now_is, was = show_different(b[tuple(at)].item(), a[tuple(at)].item())
            raise _disagree(checked, case, f"launch {number + 1} gives other bits than launch 1: {name}{at} is {now_is}, was {was}; "
                            f"{int(differs.sum())} of {a.numel()} elements", "results must not depend on which CTA or warp is first")  # fmt: skip


def _agree(checked: Checked, case: Case, interpreted: Launch, on_gpu: Launch, numbers: Numbers) -> float:
    """The distance of O; exact where the meaning is: NaN, infinities, and queries without keys."""
    for (name, a), b in zip(interpreted.outputs.items(), on_gpu.outputs.values()):
        exact = ~a.isfinite() | ~b.isfinite()
        if name == "O":
            exact |= (interpreted.lse == -torch.inf)[..., None]
        differs = exact & (a != b) & ~(a.isnan() & b.isnan())
        if differs.any():
            at = torch.nonzero(differs)[0].tolist()
            there, here = show_different(b[tuple(at)].item(), a[tuple(at)].item())
            raise _disagree(checked, case, f"{name}{at} is {there} on the GPU, {here} in the interpreter; {int(differs.sum())} such elements",
                            "infinities, NaN and queries without keys are the same in both")  # fmt: skip
    wanted = interpreted.o.double().nan_to_num(0.0, 0.0, 0.0)
    apart = (on_gpu.o.double().nan_to_num(0.0, 0.0, 0.0) - wanted).norm().item() / (wanted.norm().item() or 1.0)
    bound = numbers.allowed
    if not apart <= bound:
        raise _disagree(checked, case, f"O on the GPU is {apart:.2e} from the interpreter's, more than {bound:.2e}", None)
    return apart


def _disagree(checked: Checked, case: Case, message: str, hint: str | None) -> CuirError:
    return CuirError([Diagnostic("V402", message, checked.origin.span, (Note(f"in the case {case}"),), hint)])
