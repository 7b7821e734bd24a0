"""Faulty kernels that a GPU can run, and their verdicts by `cuir verify`.

They are chosen with the operators of `cuir mutate` and kept in faults.jsonl: three controls in full, and of each fault the
lines that it changes.

    python -m benchmarks.other_tools.planted_faults     # writes the file anew; some minutes, no GPU
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from cuir.checking.checked import Const
from cuir.checking.checker import check, pick_kernel
from cuir.checking.const_defaults import fill_consts
from cuir.cli.command_inputs import find_computed, read_program, read_specification
from cuir.lowering import lower
from cuir.mutation import FAULTS, Job, Mutant, choose_mutants, judge, mutants
from cuir.spec.function_specification import AnySpecification
from cuir.syntax.nodes import Program
from cuir.syntax.parser import parse
from cuir.syntax.printer import show
from cuir.text.diagnostics import CuirError

FILE = Path(__file__).parent / "faults.jsonl"
EACH = {"flash_fwd_sm90": 3, "flash_fwd": 2, "gemm": 2}  # faults of each class, by kernel of the corpus
SEED, HEAD_DIM = 11, 64
TRIED = 6  # mutants judged for each that is wanted; of some classes no more reach a GPU
SAME = "lowers to the CUDA text of the original"
Change = tuple[int, int, str]  # lines of a text from the first to before the second, counted from 0, and their replacement


@dataclass(frozen=True)
class Fault:
    """Faulty program.

    Attributes:
        kernel: Program of the corpus.
        fault: Class of the fault, 0 for a program of the corpus (a control).
        place: Line and column in the program of the corpus.
        stage: Stage of `cuir verify` that refuses it; "" for a control, as are `code` and `message`.
        unrunnable: Why it cannot be run on a GPU, "" if it can.
    """

    id: str
    kernel: str
    fault: int
    operator: str
    place: tuple[int, int]
    what: str
    stage: str
    code: str
    message: str
    unrunnable: str
    program: str

    @staticmethod
    def from_json(data: dict[str, Any]) -> Fault:
        """Return the fault of JSON data. Raises TypeError, KeyError or ValueError for other data."""
        line, column = data["place"]
        fault = Fault(**{**data, "place": (int(line), int(column))})
        if fault.fault not in (0, *FAULTS):
            raise ValueError(f"there is no class {fault.fault}")
        return fault


@dataclass(frozen=True)
class Origin:
    """Kernel of the corpus: its program, its name, its consts (f16, head dim 64), and its specification."""

    name: str
    program: Program
    kernel: str
    consts: dict[str, Const]
    specification: str

    @cached_property
    def spec(self) -> AnySpecification:
        """Specification of the kernel."""
        return read_specification(self.specification, ())


def origin(name: str) -> Origin:
    """Return a kernel of the corpus. Raises CuirError U101 for an unknown name."""
    program, entry = read_program(name), find_computed(name, None)
    if entry is None:
        raise CuirError.of("U101", f"the corpus does not say what `{name}` computes", hint=f"kernels: {', '.join(EACH)}")
    kernel, entry_data = entry
    consts = fill_consts(pick_kernel(program, kernel), entry_data.small, {"D": HEAD_DIM, **entry_data.consts})
    return Origin(name, parse(show(program), f"{name}.cuir"), kernel, consts, entry_data.specification)


def control(of: Origin) -> Fault:
    """Return the original program as a control."""
    return Fault(f"control-{of.name}", of.name, 0, "", (1, 1), "the program of the corpus", "", "", "", "", show(of.program))


def faults_of(of: Origin, candidates: list[Mutant], fault: int, count: int, seed: int = SEED) -> Iterator[Fault]:
    """Yield mutants of one class that verification refuses after the checker has passed them.

    It ends when `count` of them can be run; those that cannot are yielded, too.
    """
    job = Job(partial(read_specification, of.specification, ()), of.kernel, of.consts)
    original, spec = show(of.program), of.spec
    text = lower(check(of.program, of.kernel, of.consts)).source
    judged = 0
    for m in choose_mutants(candidates, (fault,), None, seed):
        if not count or judged == TRIED * count:
            return
        if m.equivalent or not _well_formed(m, of):
            continue
        judged += 1
        verdict, stage, code, message = judge(m.text, original, spec, job)
        if verdict != "killed":
            continue
        result = Fault(m.id, of.name, fault, m.operator, m.place, m.description, stage, code, message, _unrunnable(m, of, text), m.text)
        count -= not result.unrunnable
        yield result


def _well_formed(m: Mutant, of: Origin) -> bool:
    """Return whether the checker accepts a mutant."""
    try:
        check(parse(m.text, "mutant.cuir"), of.kernel, of.consts)
    except CuirError:
        return False
    return True


def _unrunnable(m: Mutant, of: Origin, original: str) -> str:
    """Return why a mutant cannot be run on a GPU, "" if it can."""
    try:
        source = lower(check(parse(m.text, "mutant.cuir"), of.kernel, of.consts)).source
    except CuirError as error:
        return f"{error.diagnostics[0].code}: {error.diagnostics[0].message}"
    return SAME if source == original else ""


def in_turn(faults: Iterable[Fault]) -> list[Fault]:
    """Return controls first; then the classes take turns, and within a class its kernels."""
    queues_of_class: dict[int, dict[str, list[Fault]]] = {}
    for f in faults:
        queues_of_class.setdefault(f.fault, {}).setdefault(f.kernel, []).append(f)
    ordered = [f for fs in queues_of_class.pop(0, {}).values() for f in fs]
    queues = [_round(list(queues_of_class[c].values())) for c in sorted(queues_of_class)]
    return ordered + _round(queues)


def _round(queues: list[list[Fault]]) -> list[Fault]:
    """Interleave queues."""
    return [q[i] for i in range(max(map(len, queues), default=0)) for q in queues if i < len(q)]


def read_faults(path: Path = FILE) -> list[Fault]:
    """Read the faults of a file, in its order.

    Raises OSError, or ValueError that names the line that is no fault.
    """
    faults: list[Fault] = []
    controls: dict[str, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            data = json.loads(line)
            if "changes" in data:
                data["program"] = apply_changes(controls[data["kernel"]], data.pop("changes"))
            fault = Fault.from_json(data)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"line {number} of {path} is no fault: {error}") from None
        if not fault.fault:
            controls[fault.kernel] = fault.program
        faults.append(fault)
    return faults


def format_faults(faults: Iterable[Fault]) -> str:
    """Return the lines of a file of faults: controls in full, programs of others as changes of their control's lines."""
    controls: dict[str, str] = {}
    lines = []
    for fault in faults:
        data = asdict(fault)
        if not fault.fault:
            controls[fault.kernel] = fault.program
        elif fault.kernel in controls:
            data["changes"] = find_changes(controls[fault.kernel], data.pop("program"))
        lines.append(json.dumps(data) + "\n")
    return "".join(lines)


def find_changes(original: str, text: str) -> list[Change]:
    """Return the changes of lines that make `text` of `original`."""
    before, after = original.splitlines(keepends=True), text.splitlines(keepends=True)
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return [(first, end, "".join(after[low:high])) for kind, first, end, low, high in blocks if kind != "equal"]


def apply_changes(original: str, changes: Sequence[Change]) -> str:
    """Return `original` with the lines of each change replaced."""
    lines = original.splitlines(keepends=True)
    for first, end, text in reversed(changes):
        lines[first:end] = [text]
    return "".join(lines)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FILE)
    parser.add_argument("--class", dest="classes", type=int, action="append", choices=sorted(FAULTS), help="several: again; left out: all")
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    faults: list[Fault] = []
    for name, count in EACH.items():
        of = origin(name)
        faults.append(control(of))
        candidates = mutants(of.program, of.kernel)
        for fault in options.classes or sorted(FAULTS):
            for result in faults_of(of, candidates, fault, count, options.seed):
                faults.append(replace(result, message=result.message[:400]))
                print(
                    f"{name} class {fault}: {result.operator}: {result.stage} {result.code} {result.unrunnable}",
                    file=sys.stderr,
                    flush=True,
                )
    options.out.write_text(format_faults(in_turn(faults)), encoding="utf-8")


if __name__ == "__main__":
    main()
