"""Report of a verification, for people (markdown, one line) and tools (JSON)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ..checking.const_defaults import consts_as_json, describe_consts
from ..text.diagnostics import Diagnostic
from ..text.markdown import table
from ..text.notebook import ShownInNotebooks
from .coverage.coverage_figure import Figure
from .narrow_products import NarrowSum

Verdict = Literal["passed", "failed", "skipped"]


@dataclass
class Stage:
    """One question and its answer; `reason` explains the verdict in one line."""

    name: str
    question: str
    verdict: Verdict = "skipped"
    reason: str = "not asked: an earlier question was answered with no"
    diagnostics: tuple[Diagnostic, ...] = ()
    seconds: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)  # of a table, for the numbers

    def as_json(self) -> dict[str, object]:
        """Return the stage as JSON values."""
        return {
            "name": self.name,
            "question": self.question,
            "verdict": self.verdict,
            "reason": self.reason,
            "seconds": round(self.seconds, 3),
            "diagnostics": [d.as_json() for d in self.diagnostics],
            "rows": self.rows,
        }


@dataclass
class VerifyReport(ShownInNotebooks):
    """The stages in their order; `ok`: none failed.

    left_out, unreached: first and last lines of text that is not in the kernel with these consts, and of text that no
    run has executed (see line_coverage.py).
    """

    html_renderer = "pages.verification_page:render_verification"

    variant: str
    kernel: str
    level: str
    consts: dict[str, Any]
    stages: list[Stage] = field(default_factory=list)
    left_out: list[tuple[int, int]] = field(default_factory=list)
    unreached: list[tuple[int, int]] = field(default_factory=list)
    short: list[int] = field(default_factory=list)  # lines of loops that made at most one turn in every run
    runs: int = 0  # runs under different schedules in the schedules stage
    steps: list[str] = field(default_factory=list)  # dims in which no problem was longer than one tile or block
    source: str = ""  # the file of these lines
    spills: str = ""  # the report of ptxas on tiles that do not fit the registers
    # products of 8-bit floats, which the tensor core sums with fewer bits
    narrow: list[NarrowSum] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)  # on problems that the specification's functions prevent
    coverage: Figure = field(default_factory=Figure)  # of the sides of the kernel's conditions
    negative: str = ""  # a read of a captured tensor that PyTorch counts from its end

    def __repr__(self) -> str:
        failed = next((s for s in self.stages if s.verdict == "failed"), None)
        codes = " ".join(dict.fromkeys(d.code for d in failed.diagnostics)) if failed is not None else ""
        verdict = (
            f"verified, {self.runs} runs under different schedules"
            if self.ok
            else f"wrong, {failed.name} {codes}".rstrip()
            if failed is not None
            else "not asked"
        )
        return f"VerifyReport({self.kernel} against {self.variant}, {describe_consts(self.consts)}: {verdict})"

    def __bool__(self) -> bool:
        """Return `ok`, so that `assert cuir.verify(...)` holds only for a right kernel."""
        return self.ok

    @property
    def ok(self) -> bool:
        """True if there are stages and none failed."""
        return bool(self.stages) and all(s.verdict != "failed" for s in self.stages)

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Diagnostics of all stages."""
        return tuple(d for s in self.stages for d in s.diagnostics)

    @property
    def seconds(self) -> float:
        """Seconds of all stages."""
        return sum(s.seconds for s in self.stages)

    @property
    def left_open(self) -> str:
        """Description of what was checked only by the checker; "" if there is nothing."""
        texts = [self.spills] if self.spills else []
        if self.left_out:
            texts.append(
                f"these consts leave out {_lines(self.left_out)} of {self.source}: other consts make another kernel, of which nothing is said"
            )
        if self.unreached:
            texts.append(
                f"no run has reached {_lines(self.unreached)} of {self.source}: at other lengths they may run, and nothing is said of that"
            )
        if self.short:
            loops = "the loop" if len(self.short) == 1 else "each loop"
            texts.append(
                f"in no run {loops} at {_lines([(n, n) for n in self.short])} of {self.source} made more than one turn: nothing is said of what one turn leaves to the next"
            )
        if self.steps:
            texts.append(
                f"no problem is longer than one step of the kernel through {', '.join(self.steps)}: nothing is said of a second one"
            )
        texts += self.warnings
        if words := self.coverage.name_open_sides(self.source):
            texts.append(words)
        if self.negative:
            texts.append(
                f"a negative index that a mod computes reads 0, here and in the kernel, where PyTorch counts it from the end, so add the length to it: {self.negative}"
            )
        texts += [str(n) for n in self.narrow]
        return "; ".join(texts)

    def summary(self) -> str:
        """Summarise in one line."""
        failed = next((s for s in self.stages if s.verdict == "failed"), None)
        if failed is not None:
            return f"{failed.name}: {failed.reason}"
        return "; ".join(s.reason for s in self.stages if s.verdict == "passed")

    def as_json(self) -> dict[str, object]:
        """Return the report as JSON values."""
        return {
            "ok": self.ok,
            "variant": self.variant,
            "kernel": self.kernel,
            "level": self.level,
            "runs": self.runs,
            "consts": consts_as_json(self.consts),
            "seconds": round(self.seconds, 3),
            "stages": [s.as_json() for s in self.stages],
            "left_out": [list(lines) for lines in self.left_out],
            "unreached": [list(lines) for lines in self.unreached],
            "short_loops": self.short,
            "single_steps": self.steps,
            "narrow_products": [asdict(n) for n in self.narrow],
            "coverage": self.coverage.as_json(),
            "negative": self.negative,
            "warnings": self.warnings,
            "spills": self.spills,
        }

    def as_markdown(self) -> str:
        """Format the report as markdown."""
        lines = [
            f"# {self.kernel} against {self.variant}",
            "",
            f"With {describe_consts(self.consts)}: level {self.level}, {self.seconds:.1f} s. {'Verified.' if self.ok else 'Wrong.'}",
            "",
        ]
        rows = [(s.name, s.question, s.verdict, s.reason, f"{s.seconds:.1f}") for s in self.stages]
        lines += table(("stage", "question", "verdict", "reason", "s"), rows)
        if self.coverage:
            lines += ["", f"{str(self.coverage)[0].upper()}{str(self.coverage)[1:]}."]
        if self.left_open:
            lines += ["", f"{self.left_open[0].upper()}{self.left_open[1:]}."]
        for s in self.stages:
            if s.rows:
                columns = list(s.rows[0])
                lines += ["", f"## {s.name}", "", *table(columns, ([_cell(r.get(c, "")) for c in columns] for r in s.rows))]
        for d in self.diagnostics:
            lines += ["", "```", d.render(), "```"]
        return "\n".join(lines) + "\n"


def _lines(ranges: list[tuple[int, int]]) -> str:
    lines = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)
    return f"line{'s' if lines.strip('0123456789') else ''} {lines}"


def _cell(value: object) -> str:
    return f"{value:.2e}" if isinstance(value, float) else str(value)
