"""The lowering pass by pass: the IR behind each, what each costs, and whether results stay as they are."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .compiler import Source, checked_of, printed
from .ir import ops
from .ir.build import build
from .ir.text import show
from .ir.walk import every
from .lowered import Cuda
from .passes.pipeline import chosen

if TYPE_CHECKING:
    from .ir.evaluate import Argument
    from .validate import Outcome


@dataclass(frozen=True)
class Stage:
    """A pass that has run, or (number 0) the building of the IR. `before`, `after`: operations of the IR; `text`: the IR behind it, None if the pass changed
    nothing; `outcome`: what it did to results, None if nobody asked."""

    number: int
    name: str
    purpose: str
    before: int
    after: int
    seconds: float
    text: str | None
    outcome: Outcome | None = None


class Lowering:
    """A kernel on its way through the passes, which change its IR in place."""

    def __init__(self, source: Source, without: Collection[str] = ()):
        """without: names of passes to leave out."""
        self.checked, self.without = checked_of(source), without
        start = time.perf_counter()
        self.kernel = build(self.checked)
        self.seconds = time.perf_counter() - start

    def stages(self, arguments: Mapping[str, Argument] | None = None, ctas: int = 1) -> Iterator[Stage]:
        """Runs the passes and gives each after it ran, the building of the IR first. Ends behind a pass after which the IR cannot be run.

        arguments: run the IR on these before and after each pass, by `ctas` CTAs (or clusters). Raises Fault where it cannot be run before any.
        """
        judge = None
        if arguments is not None:
            from .validate import Judge

            judge = Judge(self.kernel, arguments, ctas)
        text, count = show(self.kernel), size(self.kernel)
        yield Stage(0, "build", "the IR as the checked kernel gives it", 0, count, self.seconds, text)
        for number, p in chosen(self.without):
            was, before, outcome = text, count, None
            if judge is not None:
                outcome, seconds = judge.judge(p), judge.seconds
            else:
                start = time.perf_counter()
                p.run(self.kernel)
                seconds = time.perf_counter() - start
            if outcome is not None and outcome.error:
                yield Stage(number, p.name, p.purpose, before, before, seconds, None, outcome)
                return
            text, count = show(self.kernel), size(self.kernel)
            yield Stage(number, p.name, p.purpose, before, count, seconds, text if text != was else None, outcome)

    def cuda(self) -> Cuda:
        """The CUDA of the IR as it is now: behind all passes."""
        self.kernel.verify()
        return printed(self.kernel, self.checked)


def size(kernel: ops.Kernel) -> int:
    """How many operations a kernel has, its own among them."""
    return 1 + sum(1 for _ in every(kernel))
