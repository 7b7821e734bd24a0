"""Programs of the corpus and equivalent spellings of them: instructions, registers and spills.

It shows whether it matters how a program is written.

    python -m benchmarks.rewrites                                                 # every kernel of the corpus, one rewrite of each kind and two chains of five
    python -m benchmarks.rewrites --kernels flash_fwd_sm90 --spellings            # and those of the lazy rescale's condition
    python -m benchmarks.rewrites --kernels gemm --within ring --count 99  # every rewrite of one function
    python -m benchmarks.rewrites --kernels variant:alibi gemm --count 3 --out rows.jsonl
    python -m benchmarks.rewrites --table rows.jsonl                             # no compiling: the tables of what was measured

A row is beyond the limit if registers differ by more than 2 %, or instructions, all or those of the shortest turn of a
loop with products (the cost of most turns: a lost branch around an exchange shows only in it), or if spilled bytes do.
Rewrites are drawn with --seed, the same for the same texts.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import corpus
import cuir
from benchmarks.old_and_new import SETTINGS, transfer_expert
from benchmarks.recorded import read_rows
from corpus.computes import COMPUTES
from cuir.attn.verification.problems import is_attention
from cuir.checking.checked import Const
from cuir.cli.command_inputs import read_kernel_consts, read_program
from cuir.rewrites import KINDS, Rewrite, chain, rewrites
from cuir.rewrites.rewrites_table import join_lines
from cuir.runtime.machine_code import parse_functions
from cuir.runtime.nvcc import compile_cuda, target
from cuir.syntax.nodes import Program
from cuir.syntax.types import DTYPES
from cuir.text.diagnostics import CuirError
from cuir.text.markdown import table as markdown_table

LIMIT = 0.02
EXPERT = "flash_fwd_sm90"
VARIANT = "variant:"
CHAIN, SPELLING = "chain", "spelling"

# Spellings of the lazy rescale's condition: (same bits for every input, text of the canonical form, replacement).
MOST, NEW = "    most = row_max(S) * c\n", "where(some, where(moves, most, top), top)"
MOVES = "    moves = most - top > THRESHOLD "  # a comment follows
SPELLINGS: dict[str, tuple[bool, str, str]] = {
    "mirrored comparison": (True, MOVES, "    moves = THRESHOLD < most - top "),
    "not strict": (False, MOVES, "    moves = most - top >= THRESHOLD "),
    "named difference": (True, MOVES, "    growth = most - top\n    moves = growth > THRESHOLD "),
    "turned comparison": (False, MOVES, "    moves = ~(most - top <= THRESHOLD) "),  # differs only with a NaN
    "condition without a name": (True, "where(moves, most, top)", "where(most - top > THRESHOLD, most, top)"),
    "vote without a name": (True, NEW, "where(warp_any(moves), where(moves, most, top), top)"),
    "branches swapped": (True, NEW, "where(~some, top, where(moves, most, top))"),
    "choices swapped": (True, NEW, "where(some, where(~moves, top, most), top)"),
    "both at once": (True, NEW, "where(some & moves, most, top)"),
    "split product": (True, MOST, "    largest = row_max(S)\n    most = largest * c\n"),
    "commuted product": (True, MOST, "    most = c * row_max(S)\n"),
    "a maximum of both": (True, NEW, "where(some, where(moves, max(most, top), top), top)"),
}


@dataclass(frozen=True)
class Subject:
    """Kernel in one setting."""

    name: str
    program: Program
    kernel: str
    consts: dict[str, Const]


@dataclass(frozen=True)
class Draw:
    """Selection of rewrites.

    `count` rewrites of each kind (none named: of all), in some functions (none named: in all), and `chains` of `length`
    rewrites anywhere.
    """

    count: int = 1
    chains: int = 2
    length: int = 5
    seed: int = 0
    kinds: tuple[str, ...] = ()
    within: tuple[str, ...] = ()
    spellings: bool = False


@dataclass(frozen=True)
class Measured:
    """Resources of a compiled kernel.

    `turns` are instructions of the shortest turns of loops with products.
    """

    instructions: int
    turns: tuple[int, ...]  # in order of size
    registers: int
    spills: int  # bytes


@dataclass(frozen=True)
class Row:
    """Rewrite, or a chain of them, and its effect.

    `refused` is the compiler's message, if it accepts the original only; `same_text`: the CUDA text is equal, and
    nothing was compiled.
    """

    subject: str
    kind: str
    line: int
    before: str
    after: str
    same_text: bool
    original: Measured
    now: Measured | None
    refused: str = ""

    @property
    def change(self) -> float:
        """Relative change of the instructions; 0.02 is 2 % more."""
        return self.now.instructions / self.original.instructions - 1 if self.now is not None else float("inf")

    @property
    def turn_change(self) -> float:
        """Largest change of the turns of loops; infinite if the number of loops differs."""
        if self.now is None or len(self.now.turns) != len(self.original.turns):
            return float("inf")
        return max((n / o - 1 for n, o in zip(self.now.turns, self.original.turns)), key=abs, default=0.0)

    @property
    def beyond(self) -> bool:
        """True if the change is beyond the limit."""
        if self.now is None:
            return True
        registers = self.now.registers / self.original.registers - 1
        return max(map(abs, (self.change, self.turn_change, registers))) > LIMIT + 1e-9 or self.now.spills != self.original.spills


def subjects(names: Sequence[str], dtypes: Sequence[str], dims: Sequence[int]) -> Iterator[Subject]:
    """Yield programs of the corpus by name, and `variant:NAME`, in each dtype.

    Attention is yielded with each head dim. A variant is the expert kernel with it, in the settings of `old_and_new`.
    """
    for name in names:
        if name.startswith(VARIANT):
            variant = transfer_expert(name.removeprefix(VARIANT))
            for setting in SETTINGS:
                for dtype in dtypes:
                    setting_text = " ".join(f"{k}={v}" for k, v in setting.items())
                    yield Subject(
                        f"{name} {setting_text} {dtype}", cuir.parse(variant.text), variant.kernel, {"T": DTYPES[dtype], **setting}
                    )
            continue
        program = read_program(name)
        for kernel, computed in COMPUTES[name].items():
            node = program.kernels()[kernel]
            has_dim = is_attention(node) or any(p.name == "D" for p in node.params)
            for dim in dims if has_dim else (None,):
                for dtype in dtypes:
                    consts = read_kernel_consts(node, dtype, dim, (), computed.consts) | {
                        n: v for n, v in computed.small.items() if n != "D"
                    }
                    yield Subject(" ".join([name, kernel, *([f"D={dim}"] if dim else []), dtype]), program, kernel, consts)


def list_subjects() -> list[str]:
    """Return the names of all programs and variants."""
    return [*COMPUTES, *(VARIANT + name for name in sorted(corpus.variants()))]


def measure_program(program: Program, of: Subject) -> tuple[str, Measured]:
    """Return the CUDA text of a program in a subject's setting, and its resources.

    A kernel for older GPUs is compiled for Hopper, since machine code for several is no cubin.
    """
    cuda = cuir.lower(cuir.check(program, of.kernel, of.consts))
    compiled = compile_cuda(replace(cuda, arch="sm_90a") if target(cuda.arch)[0] == "fatbin" else cuda)
    r = compiled.resources
    (machine_code,) = parse_functions(compiled.cubin)
    return cuda.source, Measured(machine_code.instructions, machine_code.shortest_turns, r.registers, r.spill_stores + r.spill_loads)


def draw_rewrites(of: Subject, draw: Draw) -> Iterator[tuple[str, list[Rewrite]]]:
    """Yield rewrites of each kind at places drawn with the seed, then chains of several."""
    rng = random.Random(f"{draw.seed} {of.name}")
    count, chains, length, kinds = draw.count, draw.chains, draw.length, draw.kinds
    lines = [i.span for i in cuir.parse(cuir.show(of.program)).items if i.name in draw.within]
    by_kind: dict[str, list[Rewrite]] = {}
    for r in rewrites(of.program, of.kernel, of.consts, kinds):
        if not draw.within or any(span.line <= r.line <= span.end_line for span in lines):
            by_kind.setdefault(r.kind, []).append(r)
    for kind, candidates in by_kind.items():
        yield from ((kind, [r]) for r in rng.sample(candidates, min(count, len(candidates))))
    for _ in range(chains):
        steps = chain(of.program, rng, length, of.kernel, of.consts, kinds)
        if steps:
            yield CHAIN, steps


def spell_rescales(of: Subject) -> Iterator[tuple[str, Program, str, str]]:
    """Yield spellings of the lazy rescale, for a program that has it.

    They are names, programs, and the text before and after.
    """
    text = cuir.show(of.program)
    for name, (_, before, after) in SPELLINGS.items():
        if before in text:
            yield f"{SPELLING}: {name}", cuir.parse(text.replace(before, after)), before, after


def rows(of: Subject, draw: Draw) -> Iterator[Row]:
    """Yield the effect of each rewrite of a kernel.

    Raises CuirError if the kernel as it is cannot be compiled.
    """
    source, original = measure_program(of.program, of)

    def row(kind: str, program: Program, line: int, before: str, after: str) -> Row:
        try:
            cuda, now = measure_program(cuir.parse(cuir.show(program)), of)
        except CuirError as error:
            first = error.diagnostics[0]
            return Row(of.name, kind, line, before, after, False, original, None, f"{first.code} {first.message}")
        return Row(of.name, kind, line, before, after, cuda == source, original, now)

    if draw.spellings:
        text = cuir.show(of.program)
        for kind, program, before, after in spell_rescales(of):
            yield row(kind, program, text[: text.index(before)].count("\n") + 1, join_lines(before), join_lines(after))
    for kind, steps in draw_rewrites(of, draw):
        texts_after = [str(r) for r in steps] if len(steps) > 1 else [join_lines(steps[0].after)]
        yield row(kind, steps[-1].program, steps[0].line, join_lines(steps[0].before), " | ".join(texts_after))


# ---- tables
def line_of(row: Row) -> str:
    """Format a row."""
    o, n = row.original, row.now
    if n is None:
        counts = f"{o.instructions:>6} refused: {row.refused}"
    else:
        counts = f"{o.instructions:>6} -> {n.instructions:>6} {row.change:>+7.2%}  turns {_numbers(o.turns)} -> {_numbers(n.turns)} {row.turn_change:>+7.2%}  registers {o.registers} -> {n.registers}  spills {o.spills} -> {n.spills}"
    same = " (the same CUDA text)" if row.same_text else ""
    return f"{'*' if row.beyond else ' '} {row.subject:<40} {row.kind:<28} line {row.line:>3}  {counts}{same}"


def _numbers(turns: Sequence[int]) -> str:
    """Format the turns."""
    return "/".join(map(str, turns)) or "-"


def table(measurements: Iterable[Row]) -> list[str]:
    """Return for each kind: rewrites, those beyond the limit, with the same CUDA text, refused, the worst."""
    by_kind = group_by_kind(measurements)
    lines = [f"{'kind':<30} {'rows':>5} {'beyond':>6} {'same text':>9} {'refused':>7}  {'instructions':>16}  {'turns':>16}  worst"]
    for kind in [*KINDS, *sorted(set(by_kind) - set(KINDS))]:
        of = by_kind.get(kind, [])
        if not of:
            lines.append(f"{kind:<30} {0:>5}         not measured: no place drawn has it")
            continue
        compiled = [r for r in of if r.now is not None]
        worst = max(of, key=lambda r: (r.beyond, max(abs(r.change), abs(r.turn_change))))
        spans = "  ".join(f"{_range([getattr(r, name) for r in compiled]):>16}" for name in ("change", "turn_change"))
        place = f"{worst.subject}, line {worst.line}: {worst.before} -> {worst.after}"[:150] if worst.beyond else ""
        lines.append(
            f"{kind:<30} {len(of):>5} {sum(r.beyond for r in of):>6} {sum(r.same_text for r in of):>9} {len(of) - len(compiled):>7}  {spans}  {place}"
        )
    all_rows = [r for of in by_kind.values() for r in of]
    broken = [kind for kind, of in by_kind.items() if any(r.beyond for r in of)]
    stable = [kind for kind in by_kind if kind not in broken]
    lines.append(
        f"{len(all_rows)} rows, {sum(r.beyond for r in all_rows)} beyond {LIMIT:.0%}; kinds that hold: {', '.join(stable) or 'none'}; that do not: {', '.join(broken) or 'none'}"
    )
    return lines


def _range(changes: Sequence[float]) -> str:
    """Format the range of changes."""
    return f"{min(changes):+.2%} {max(changes):+.2%}" if changes else "-"


def as_json(row: Row) -> dict[str, Any]:
    """Return a row as JSON data."""
    return {**asdict(row), "beyond": row.beyond}


def read(path: Path) -> list[Row]:
    """Read the rows of a file."""
    return list(map(from_json, read_rows(path)))


def from_json(data: Mapping[str, Any]) -> Row:
    """Return the row of JSON data."""
    fields = {k: v for k, v in data.items() if k not in ("beyond", "seconds")}
    original, now = (Measured(**{**m, "turns": tuple(m["turns"])}) if m else None for m in (data["original"], data["now"]))
    return Row(**{**fields, "original": original, "now": now})


def group_by_kind(measurements: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the rows of each kind of rewrite."""
    by_kind: dict[str, list[Row]] = {}
    for row in measurements:
        by_kind.setdefault(row.kind, []).append(row)
    return by_kind


def markdown(measurements: Sequence[Row]) -> str:
    """Return the page of rows: a table of the kinds, and the rows whose number of instructions is another one."""
    columns = ["rewrite", "rows", "the same text", "refused", "other numbers of instructions", "their changes"]
    lines = []
    for kind, of in sorted(group_by_kind(measurements).items()):
        compiled = [r for r in of if r.now is not None]
        changes = [r.change for r in compiled if r.change]
        counts = len(of), sum(r.same_text for r in of), len(of) - len(compiled), len(changes)
        lines.append([kind, *map(str, counts), _range(changes)])
    changed = ["    " + line_of(r) for r in measurements if r.change]
    return "\n".join(
        [
            "# Equivalent spellings",
            "",
            "    python -m benchmarks.rewrites --out FILE",
            "",
            *markdown_table(columns, lines),
            "",
            table(measurements)[-1],
            "",
            *changed,
            "",
        ]
    )


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", nargs="+", default=list_subjects(), help=f"programs of the corpus, and {VARIANT}NAME (left out: all)")
    parser.add_argument("--dtypes", nargs="+", default=["f16"], choices=["f16", "bf16"])
    parser.add_argument("--head-dims", nargs="+", type=int, default=[64, 128])
    parser.add_argument("--kinds", nargs="+", default=[], help=f"of {', '.join(sorted(KINDS))} (left out: all)")
    parser.add_argument("--within", nargs="+", default=[], help="functions of the program, or its kernel: only places there")
    parser.add_argument("--count", type=int, default=1, help="rewrites of each kind")
    parser.add_argument("--chains", type=int, default=2)
    parser.add_argument("--length", type=int, default=5, help="rewrites of a chain")
    parser.add_argument("--spellings", action="store_true", help="also those of the lazy rescale's condition")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="lines of JSON, as they come")
    parser.add_argument("--table", type=Path, help="the tables of such a file")
    options = parser.parse_args()
    measurements = read(options.table) if options.table else []
    for row in measurements:
        print(line_of(row))
    draw = Draw(options.count, options.chains, options.length, options.seed, tuple(options.kinds), tuple(options.within), options.spellings)
    for subject in () if options.table else subjects(options.kernels, options.dtypes, options.head_dims):
        start = time.perf_counter()
        try:
            for row in rows(subject, draw):
                measurements.append(row)
                print(line_of(row), flush=True)
                if options.out is not None:
                    with options.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({**as_json(row), "seconds": round(time.perf_counter() - start, 2)}) + "\n")
                start = time.perf_counter()
        except CuirError as error:
            print(f"{subject.name}: not measured: {error.diagnostics[0].message}", file=sys.stderr)
    print("\n".join(["", *table(measurements)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
