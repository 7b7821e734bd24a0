"""Comparison of the compiled kernel with the interpreter on the same inputs.

Compared bit by bit: which elements are -inf, 0 for lack of keys, or NaN, and repeated launches. Everything else has an
error bound, because the order of sums and exp2 differ from the interpreter's; the bound is that of the numbers stage,
PyTorch's own error in half precision. The caller runs this in a process that may hang or fault.

Reports of compute-sanitizer on a lowered kernel, mapped to lines of the CuIR program.

The text is that of compute-sanitizer 2025 (CUDA 12.8 to 13): each line begins with `=========`, a report with a line
that is not indented.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..arguments.binding import Argument
from ..attn.verification.numeric import Numbers, add_note, judge
from ..attn.verification.problems import Case, Launch, make_attention_launch
from ..checking.checked import Checked
from ..interp import run
from ..ops.meaning.tiles import view_bits
from ..spec.specification import Specification
from ..syntax.nodes import Program
from ..text.diagnostics import CuirError, Diagnostic, Note
from ..text.source import Span
from .inputs import find_accumulated
from .values.number_text import show_different

LAUNCHES = 4  # launches of each problem; their results must be bitwise equal
Launching = Callable[[Mapping[str, Argument]], None]  # launches with tensors on a device, and synchronises


@dataclass(frozen=True)
class Compared:
    """The comparison of one problem.

    distance: of the GPU's O from the interpreter's, relative in the norm; repeated: launches with the same bits.
    """

    numbers: Numbers
    distance: float
    repeated: int

    def as_json(self) -> dict[str, object]:
        """Return the comparison as JSON values."""
        n = self.numbers
        return {
            "case": str(n.case),
            "error": n.error,
            "PyTorch, half": n.yardstick,
            "worst query": n.row,
            "worst query, half": n.row_yardstick,
            "LSE": n.lse,
            "from the interpreter": self.distance,
            "launches alike": self.repeated,
        }


def compare(
    program: Program, checked: Checked, spec: Specification, case: Case, launched: Launching, device: str = "cuda", launches: int = LAUNCHES
) -> Compared:
    """Run one problem in the interpreter and `launches` times on the device.

    Outputs are full of NaN before each run. Raises CuirError: V301 to V304 for numbers, V402 where the two disagree or
    launches differ, V403 for a fault that the driver reports.
    """
    interpreted = make_attention_launch(program, checked, spec, case)
    run(checked, interpreted.arguments())
    device_arguments = move_to_device(interpreted.arguments(), device)
    first: Launch | None = None
    for number in range(launches):
        device_arguments |= move_to_device(interpreted.fresh().outputs, device)
        try:
            launched(device_arguments)
            on_gpu = interpreted.with_outputs({name: device_arguments[name].cpu() for name in interpreted.outputs})
        except RuntimeError as error:
            raise make_fault(checked, error, str(case)) from error
        if first is None:
            first = on_gpu
        elif not find_accumulated(checked) & set(interpreted.outputs):
            _require_same_bits(checked, case, first, on_gpu, number)
    assert first is not None
    try:
        numbers = judge(first, spec, case, checked.origin.span, by_tensor_core=True)
    except CuirError as error:
        raise add_note(error, f"on the GPU, in the case {case}") from error
    return Compared(numbers, _measure_distance(checked, case, interpreted, first, numbers), launches)


def move_to_device(arguments: Mapping[str, Argument], device: str) -> dict[str, Any]:
    """Move the tensors among arguments to a device."""
    return {n: v.to(device) if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}


def make_fault(checked: Checked, error: RuntimeError, location: str) -> CuirError:
    """Make the error for a driver's report after a launch; the place in the kernel is unknown."""
    words = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return CuirError.of(
        "V403",
        f"`{checked.name}` faults on the GPU: {words} ({location})",
        checked.origin.span,
        "cuir verify ... --gpu --sanitizer memcheck names the line",
    )


def _require_same_bits(checked: Checked, case: Case, first: Launch, repeated: Launch, number: int) -> None:
    for (name, a), b in zip(first.outputs.items(), repeated.outputs.values()):
        differs = view_bits(a.contiguous()) != view_bits(b.contiguous())
        if differs.any():
            index = torch.nonzero(differs)[0].tolist()
            actual, earlier = show_different(b[tuple(index)].item(), a[tuple(index)].item())
            raise _make_disagreement(
                checked,
                case,
                f"launch {number + 1} gives other bits than launch 1: {name}{index} is {actual}, was {earlier}; "
                f"{int(differs.sum())} of {a.numel()} elements",
                "results must not depend on which CTA or warp is first",
            )


def _measure_distance(checked: Checked, case: Case, interpreted: Launch, on_gpu: Launch, numbers: Numbers) -> float:
    """Return the distance of O; require equal NaN, infinities, and queries without keys."""
    for (name, a), b in zip(interpreted.outputs.items(), on_gpu.outputs.values()):
        exact = ~a.isfinite() | ~b.isfinite()
        if name == "O":
            exact |= (interpreted.lse == -torch.inf)[..., None]
        differs = exact & (a != b) & ~(a.isnan() & b.isnan())
        if differs.any():
            index = torch.nonzero(differs)[0].tolist()
            on_device_text, interpreted_text = show_different(b[tuple(index)].item(), a[tuple(index)].item())
            raise _make_disagreement(
                checked,
                case,
                f"{name}{index} is {on_device_text} on the GPU, {interpreted_text} in the interpreter; {int(differs.sum())} such elements",
                "infinities, NaN and queries without keys are the same in both",
            )
    expected = interpreted.o.double().nan_to_num(0.0, 0.0, 0.0)
    distance = (on_gpu.o.double().nan_to_num(0.0, 0.0, 0.0) - expected).norm().item() / (expected.norm().item() or 1.0)
    bound = numbers.allowed
    if not distance <= bound:
        raise _make_disagreement(checked, case, f"O on the GPU is {distance:.2e} from the interpreter's, more than {bound:.2e}", None)
    return distance


def _make_disagreement(checked: Checked, case: Case, message: str, hint: str | None) -> CuirError:
    return CuirError([Diagnostic("V402", message, checked.origin.span, (Note(f"in the case {case}"),), hint)])


TOOLS = ("memcheck", "racecheck")
# `at KERNEL(...)+0x1b0 in /tmp/x/kernel.cu:123`; the part after `in` needs line information. Host frames have another
# form.
_PLACE = re.compile(
    r"\b(?:at|Device Frame:)\s*(?P<function>[^\s+].*?)\+(?P<offset>0x[0-9a-f]+)(?: in (?P<file>\S+?):(?P<line>\d+))?(?=\s|$)"
)
_SUMMARY = re.compile(r"^(ERROR SUMMARY|RACECHECK SUMMARY|LEAK SUMMARY|COMPUTE-SANITIZER|Target application|No attachable process)")
_PARTY = re.compile(r"(?P<mode>Write|Read|Atomic)\w* access at ")


@dataclass(frozen=True)
class Place:
    """Location in a report: a line of the CUDA text and an offset in the machine code.

    The line is None if the report names a header or no file.
    """

    function: str
    offset: int
    line: int | None


@dataclass(frozen=True)
class Report:
    """One report: its first line without places, further lines, and groups of places.

    A race has two groups; each has the innermost call first.
    """

    title: str
    details: tuple[str, ...]
    places: tuple[tuple[Place, ...], ...]
    parties: tuple[str, ...] = ()  # of a race: Write, Read


def read_reports(text: str) -> list[Report]:
    """Parse the output of compute-sanitizer; summaries and the program's own output are ignored."""
    reports: list[Report] = []
    block: list[str] = []
    for raw in [*text.splitlines(), "========= "]:
        if not raw.startswith("========="):
            continue
        line = raw.removeprefix("=========")
        starts = line.strip() != "" and not line.startswith("  ")
        if block and (starts or not line.strip()):
            reports += _report(block)
            block = []
        if starts and not _SUMMARY.match(line.strip()):
            block = [line.strip()]
        elif block and line.strip():
            block.append(line.strip())
    return reports


def _report(lines: list[str]) -> list[Report]:
    groups: list[list[Place]] = []
    parties: list[str] = []
    details = []
    for line in lines:
        if line.startswith(("Saved host backtrace", "Host Frame")):
            continue
        place = _PLACE.search(line)
        if place is None:
            details.append(line)
            continue
        location = Place(place["function"], int(place["offset"], 16), int(place["line"]) if (place["file"] or "").endswith(".cu") else None)
        party = _PARTY.search(line)
        if party:
            parties.append(party["mode"])
        if party or not groups or not line.startswith("Device Frame"):
            groups.append([location])
        else:
            groups[-1].append(location)
    title = re.sub(r"\s+between (Write|Read|Atomic)\w* access at .*", "", lines[0])
    return [Report(title, tuple(d for d in details if d != lines[0]), tuple(map(tuple, groups)), tuple(parties))] if groups else []


def find_span(places: tuple[Place, ...], line_map: Mapping[int, Span], chains: Mapping[int, tuple[int, ...]]) -> Span | None:
    """Return the CuIR statement of a place: that of the innermost call that has one.

    chains: lines of each instruction, for places without a mapped line.
    """
    lines = [p.line for p in places if p.line is not None]
    for place in places:
        lines += chains.get(place.offset, ())
    return next((line_map[n] for n in lines if n in line_map), None)


def make_diagnostics(
    text: str, line_map: Mapping[int, Span], chains: Mapping[int, tuple[int, ...]] | None = None, kernel: Span | None = None
) -> tuple[Diagnostic, ...]:
    """Return a V404 for each statement and kind of report, in order, with the number of reports.

    line_map: of the lowered kernel. chains: see `cuir.runtime.machine_code.read_lines_of_cubin`. kernel: the place for reports that
    name no statement.
    """
    counts: dict[tuple[str, tuple[Span | None, ...]], int] = {}
    first: dict[tuple[str, tuple[Span | None, ...]], Report] = {}
    for report in read_reports(text):
        spans = tuple(find_span(group, line_map, chains or {}) for group in report.places)
        key = (report.title, spans)
        counts[key] = counts.get(key, 0) + 1
        first.setdefault(key, report)
    return tuple(_make_diagnostic(first[key], key[1], n, kernel) for key, n in counts.items())


def _make_diagnostic(report: Report, spans: tuple[Span | None, ...], count: int, kernel: Span | None) -> Diagnostic:
    notes = []
    for i, span in enumerate(spans[1:], 1):
        text = f"and the {report.parties[i].lower()} is here" if i < len(report.parties) else "and here"
        notes.append(Note(text if span else f"{text}: at {_describe_place(report.places[i][0])}, which no statement gave", span or kernel))
    if spans[0] is None:
        notes.append(Note(f"no statement gave the code at {_describe_place(report.places[0][0])}"))
    notes += [Note(d) for d in report.details[:3]]
    title = report.title.removeprefix("Error: ").removeprefix("Warning: ")
    if report.parties:
        title += f": the {report.parties[0].lower()} is here"
    often = f" ({count} reports)" if count > 1 else ""
    return Diagnostic("V404", f"compute-sanitizer: {title}{often}", spans[0] or kernel, tuple(notes))


def _describe_place(place: Place) -> str:
    return f"{place.function}+{place.offset:#x}" + (f", CUDA line {place.line}" if place.line else "")
