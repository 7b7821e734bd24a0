"""A GPU as a choice of settings knows it: name, generation, multiprocessors. Asks the machine, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from ..tuning import cache


@dataclass(frozen=True)
class Device:
    """A GPU by its name as keys of tuning have it (`cuir.tuning.cache.device`), and its multiprocessors; without a GPU an empty name and 0."""

    arch: str
    sms: int

    @staticmethod
    def here() -> Device:
        return Device(*cache.device())

    @property
    def name(self) -> str:
        """As its maker calls it."""
        return self.arch.rpartition(" sm_")[0] or self.arch

    @property
    def generation(self) -> str:
        """`sm_90`; empty where only the name is known."""
        _, found, rest = self.arch.rpartition(" sm_")
        return f"sm_{rest.split()[0]}" if found else ""


__all__ = ["Device"]
