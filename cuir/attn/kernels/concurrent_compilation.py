"""Compilation of a program's settings beside the verification of the one that is expected to run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ...checking.checked import Const
from ...runtime.nvcc import Nvcc
from ..capture.first_call_progress import Progress

if TYPE_CHECKING:
    from ...runtime.compiled_kernel import CompiledKernel

Compile = Callable[[Mapping[str, Const], Nvcc], "CompiledKernel"]


class Superseded(Exception):
    """Raised in the verification of a setting once another one is expected to run."""


class Candidates:
    """Settings that are compiled, in their order, until one spills few registers.

    A later setting takes the place of an earlier one that spills more than is allowed, if it spills half as much.
    As a context manager, it stops the compilers that still run at its end.
    """

    def __init__(
        self,
        first: Mapping[str, Const],
        others: Callable[[], Sequence[Mapping[str, Const]]],
        allowed: int,
        compile: Compile,
        spills: bool,
    ):
        """Create the candidates; nothing is compiled yet.

        Args:
            others: returns the settings after the first one; called if they are needed.
            allowed: bytes that a setting may spill.
            spills: the first setting is expected to spill more, so the second one is compiled beside it.
        """
        self.settings, self.others, self.allowed, self.compile, self.spills = [first], others, allowed, compile, spills
        # plain containers, which a forked process may read whichever thread held a lock
        self.kernels: dict[int, CompiledKernel] = {}
        self.errors: dict[int, BaseException] = {}
        self.compilers: dict[int, Nvcc] = {}
        self.changed, self.listing = threading.Condition(), threading.Lock()
        self.listed = self.ended = False

    def __enter__(self) -> Candidates:
        self._start(0)
        if self.spills:
            self._list_others()
            self.spills = len(self.settings) > 1
        if self.spills:
            self._start(1)
        return self

    def __exit__(self, *_: object) -> None:
        with self.changed:
            self.ended = True
            compilers = list(self.compilers.values())
        for nvcc in compilers:
            nvcc.stop()

    def expected(self) -> tuple[int, bool]:
        """Return the setting that is expected to run, by its index, and whether this is certain."""
        best = self.kernels.get(0)
        if best is None:
            return int(self.spills and 0 not in self.errors), False
        index = 0
        for number in range(1, len(self.settings)):
            if best.spilled <= self.allowed:
                break
            candidate = self.kernels.get(number)
            if candidate is None:
                return number, False
            if candidate.spilled <= best.spilled // 2:
                index, best = number, candidate
        return index, True

    def decided(self) -> tuple[int, CompiledKernel]:
        """Wait for the compilers; return the setting that runs, and its kernel. Raises what a compiler raised."""
        with self.changed:
            while True:
                index, certain = self.expected()
                if certain:
                    return index, self.kernels[index]
                for number in (0, index):
                    if number in self.errors:
                        raise self.errors[number]
                self.changed.wait()

    def verify(self, prove: Callable[[Mapping[str, Const], Progress], object], name: str) -> int:
        """Verify the setting that is expected to run; return its index.

        Verification begins again where another setting is expected meanwhile. Raises the CuirError of `prove`.
        """
        while True:
            index, _ = self.expected()
            # verification would share the interpreter lock with the lowering, which it needs as well
            for nvcc in list(self.compilers.values()):
                nvcc.begun.wait()
            try:
                prove(self.settings[index], _Watch(name, lambda index=index: self.expected()[0] != index))  # type: ignore[misc]
            except Superseded:
                continue
            return index

    def _start(self, number: int) -> None:
        """Start a compiler, unless it was started, and return once its process runs or has ended."""
        with self.changed:
            if self.ended or number in self.compilers:
                return
            nvcc = self.compilers[number] = Nvcc()
        threading.Thread(target=self._run, args=(number, nvcc), name="cuir-nvcc", daemon=True).start()
        nvcc.begun.wait()

    def _list_others(self) -> None:
        with self.listing:
            if not self.listed:
                self.settings += self.others()
                self.listed = True

    def _run(self, number: int, nvcc: Nvcc) -> None:
        try:
            kernel = self.compile(self.settings[number], nvcc)
            if kernel.spilled > self.allowed:
                self._list_others()  # before others see that they are needed
            self.kernels[number] = kernel
        except BaseException as error:
            self.errors[number] = error
        nvcc.note_end()
        with self.changed:
            following, certain = self.expected()
            self.changed.notify_all()
        if not certain and number not in self.errors:
            self._start(following)


class _Watch(Progress):
    """Progress of a verification that ends early if it is needless."""

    def __init__(self, name: str, needless: Callable[[], bool]):
        super().__init__(name)
        self.needless = needless

    def tell(self, text: str, passing: bool = False) -> None:
        if passing and self.needless():
            raise Superseded
        super().tell(text, passing)


__all__ = ["Candidates", "Superseded"]
