"""Kernel and consts that the running command judges, for errors that end it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..checking.checked import Const
from ..checking.const_defaults import consts_as_json, describe_consts, with_defaults
from ..syntax.nodes import Kernel


@dataclass(frozen=True)
class JudgedKernel:
    """Name of a kernel, and values of its consts, defaults of its file included."""

    name: str
    consts: Mapping[str, Const]

    def as_json(self) -> dict[str, Any]:
        """Return the keys `kernel` and `consts` of a command's JSON object."""
        return {"kernel": self.name, "consts": consts_as_json(self.consts)}

    def __str__(self) -> str:
        return f"{self.name} with {describe_consts(self.consts)}"


_judged: JudgedKernel | None = None


def remember_judged_kernel(kernel: Kernel, consts: Mapping[str, Const]) -> None:
    """Record the kernel and consts that the command judges from now on."""
    global _judged
    _judged = JudgedKernel(kernel.name, with_defaults(kernel, consts))


def get_judged_kernel() -> JudgedKernel | None:
    """Return the kernel and consts that the command judges; None before the consts are known."""
    return _judged


def forget_judged_kernel() -> None:
    """Forget the kernel of an earlier command of this process."""
    global _judged
    _judged = None


__all__ = ["JudgedKernel", "forget_judged_kernel", "get_judged_kernel", "remember_judged_kernel"]
