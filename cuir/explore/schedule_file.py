"""Schedules as JSON files: the launch, the worker of each step, and the fault."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checking.checked import Const
from ..interp import Schedule
from ..syntax.types import DTYPES, DType
from ..text.diagnostics import CuirError
from ..text.jsontext import to_json

FORMAT = "cuir schedule 1"


@dataclass(frozen=True)
class Written:
    """A schedule that can be replayed.

    cluster: None for the whole launch in order. units: of the cluster, if they are handed out dynamically; lockstep: as
    late as possible. steps: labels of workers, and names of copies that land.
    """

    kernel: str
    consts: Mapping[str, Const]
    dims: Mapping[str, int]
    grid: int
    cluster: int | None
    units: tuple[int, ...] | None
    lockstep: bool
    steps: tuple[str, ...]
    code: str
    message: str

    def schedule(self, origin: str = "") -> Schedule:
        """Return the schedule for the interpreter."""
        return Schedule.in_order() if self.cluster is None else Schedule.replay(self.steps, self.cluster, self.lockstep, self.units, origin)

    def as_json(self) -> dict[str, Any]:
        """Return the schedule as JSON values."""
        consts = {n: str(c) if isinstance(c, DType) else c for n, c in self.consts.items()}
        return {
            "format": FORMAT,
            "kernel": self.kernel,
            "consts": consts,
            "dims": dict(self.dims),
            "grid": self.grid,
            "cluster": self.cluster,
            "units": None if self.units is None else list(self.units),
            "late_units": self.lockstep,
            "fault": {"code": self.code, "message": self.message},
            "steps": list(self.steps),
        }

    def save(self, path: Path) -> None:
        """Write the file. Raises CuirError U108."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(to_json(self.as_json()) + "\n", encoding="utf-8")
        except OSError as error:
            raise CuirError.of("U108", f"cannot write {path}: {error.strerror}", hint="name another file") from None


def read_schedule(path: Path) -> Written:
    """Read a file of `Written.save`. Raises CuirError U201, U202 (no such file), U124 (another format)."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CuirError.of("U201", f"there is no file {path}", hint="cuir verify ... --exhaustive --out FILE writes one") from None
    except OSError as error:
        raise CuirError.of("U202", f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise CuirError.of("U124", f"{path} holds no JSON", hint="cuir verify ... --exhaustive --out FILE writes schedules") from None
    if not _fits(value):
        raise CuirError.of(
            "U124", f"{path} holds no schedule of this format ({FORMAT})", hint="cuir verify ... --exhaustive --out FILE writes schedules"
        )
    consts = {n: DTYPES[c] if isinstance(c, str) else c for n, c in value["consts"].items()}
    units = None if value["units"] is None else tuple(value["units"])
    return Written(
        value["kernel"],
        consts,
        value["dims"],
        value["grid"],
        value["cluster"],
        units,
        value["late_units"],
        tuple(value["steps"]),
        value["fault"]["code"],
        value["fault"]["message"],
    )


def _fits(value: Any) -> bool:
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        return False
    consts, dims, fault = value.get("consts"), value.get("dims"), value.get("fault")
    return (
        isinstance(value.get("kernel"), str)
        and isinstance(consts, dict)
        and all(isinstance(c, (int, float)) or (isinstance(c, str) and c in DTYPES) for c in consts.values())
        and isinstance(dims, dict)
        and all(type(n) is int and n >= 0 for n in dims.values())
        and type(value.get("grid")) is int
        and value["grid"] > 0
        and (value.get("cluster") is None or (type(value["cluster"]) is int and value["cluster"] >= 0))
        and "units" in value
        and (value["units"] is None or (isinstance(value["units"], list) and all(type(u) is int and u >= 0 for u in value["units"])))
        and isinstance(value.get("late_units"), bool)
        and isinstance(value.get("steps"), list)
        and all(isinstance(s, str) for s in value["steps"])
        and isinstance(fault, dict)
        and all(isinstance(fault.get(k), str) for k in ("code", "message"))
    )
