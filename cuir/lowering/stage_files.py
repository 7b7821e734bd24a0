"""The lowering pass by pass: the IR after each, its cost, and the comparison of results."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .compiler import Source, print_kernel, to_checked
from .ir import ops
from .ir.build_ir import build
from .ir.ir_text import show
from .ir.ir_walk import every
from .lowered import Cuda
from .passes.pipeline import select_passes

if TYPE_CHECKING:
    from .ir.ir_evaluator import Argument
    from .validate import Outcome


@dataclass(frozen=True)
class Stage:
    """A pass that has run, or (number 0) the building of the IR.

    Attributes:
        before: Operations of the IR before the pass.
        after: Operations of the IR after it.
        text: The IR after the pass, None if the pass changed nothing.
        outcome: The comparison of results, None if it was not requested.
    """

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
        """Build the IR of a kernel.

        Args:
            source: A checked kernel, a program, or the path of its file.
            without: Names of passes to leave out.
        """
        self.checked, self.without = to_checked(source), without
        start = time.perf_counter()
        self.kernel = build(self.checked)
        self.seconds = time.perf_counter() - start

    def stages(self, arguments: Mapping[str, Argument] | None = None, ctas: int = 1) -> Iterator[Stage]:
        """Run the passes and yield each after it ran, the building of the IR first.

        Ends after a pass whose IR cannot be run.

        Args:
            arguments: Run the IR on these before and after each pass.
            ctas: The number of CTAs (or clusters) for that.

        Raises: Fault if the IR cannot be run before any pass.
        """
        judge = None
        if arguments is not None:
            from .validate import Judge

            judge = Judge(self.kernel, arguments, ctas)
        text, count = show(self.kernel), count_operations(self.kernel)
        yield Stage(0, "build", "the IR as the checked kernel gives it", 0, count, self.seconds, text)
        for number, p in select_passes(self.without):
            previous, before, outcome = text, count, None
            if judge is not None:
                outcome, seconds = judge.judge(p), judge.seconds
            else:
                start = time.perf_counter()
                p.run(self.kernel)
                seconds = time.perf_counter() - start
            if outcome is not None and outcome.error:
                yield Stage(number, p.name, p.purpose, before, before, seconds, None, outcome)
                return
            text, count = show(self.kernel), count_operations(self.kernel)
            yield Stage(number, p.name, p.purpose, before, count, seconds, text if text != previous else None, outcome)

    def cuda(self) -> Cuda:
        """Return the CUDA of the IR in its present state, after all passes."""
        self.kernel.verify()
        return print_kernel(self.kernel, self.checked)


def count_operations(kernel: ops.Kernel) -> int:
    """Count the operations of a kernel, the kernel itself among them."""
    return 1 + sum(1 for _ in every(kernel))
