"""Kernels that are never launched: calls are written down."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch


class Launches:
    """Stands in for kernels: what each launch was given. replays: a call that was made, to be made with other tensors."""

    def __init__(self) -> None:
        self.arguments: list[dict[str, Any]] = []
        self.replays: Any = None  # every call is seen here

    def compile(self, program: Any, consts: Any, run: Any = None) -> Any:
        lse = torch.zeros(1, 2, 40)

        def launch(arguments: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
            self.arguments.append(arguments)
            return arguments["O"], lse

        return SimpleNamespace(launch=launch, spilled=0, make_replay=lambda varying, arguments: self.replays)
