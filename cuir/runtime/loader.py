"""Interface of loaders, which load a compiled kernel into a context of the CUDA driver and start it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

from ..text.diagnostics import CuirError
from .argument_buffer import Arguments

DRIVER, PYCUDA = "driver", "pycuda"
LOADERS = (DRIVER, PYCUDA)
L = TypeVar("L")  # a launch as a loader takes it


class LoadedKernel(ABC, Generic[L]):
    """A kernel in one context.

    Loading, and every method but `enter`, takes place where the context is current (`activate`, `enter`). resident:
    CTAs, or clusters, that the device holds at a time.
    """

    resident: int

    @abstractmethod
    def activate(self) -> AbstractContextManager[None]:
        """Make the context current inside of a `with`, also for a thread whose stream is captured.

        The thread may load and allocate there.
        """

    @abstractmethod
    def enter(self) -> bool:
        """Make the context current in a thread that has none; return whether it had none."""

    @abstractmethod
    def prepare(self, grid: int, stream: int, arguments: Arguments) -> L:
        """Make a launch that `start` may start repeatedly, from several threads."""

    @abstractmethod
    def start(self, launch: L) -> None:
        """Launch without synchronising.

        Raises CuirError L011 if the driver refuses.
        """


def require_loader(name: str) -> str:
    """Return the name of a loader.

    Raises CuirError U512 for an unknown one.
    """
    if name not in LOADERS:
        raise CuirError.of("U512", f"no loader is called `{name}`", hint=f"loaders: {', '.join(LOADERS)}")
    return name
