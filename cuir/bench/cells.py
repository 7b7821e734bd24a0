"""One problem of a suite on a GPU: all contenders checked against float64, then timed in turns. Owns no suite and no file."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..bind import TORCH
from ..checked import Const
from ..measure.problem import Shape, kept_pairs
from ..measure.protocol import Call, in_turns, median_ms, reason
from ..tuning.device import Prepared
from ..tuning.space import label, plain
from ..types import DTYPES

OURS = "cuir"


@dataclass(frozen=True)
class Cell:
    """A variant with its parameters, a model's name and the shape."""

    variant: str
    parameters: Mapping[str, int | float]
    model: str
    shape: Shape

    @property
    def name(self) -> str:
        return f"{self.variant} {self.model} {self.shape.M}"

    @property
    def arguments(self) -> list[str]:
        """The parameters as the command line takes them."""
        return [f"{k}={v}" for k, v in self.parameters.items()]

    def as_json(self) -> dict[str, Any]:
        return {"variant": self.variant, "parameters": dict(self.parameters), "model": self.model, "shape": list(self.shape.as_tuple())}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Cell:
        return Cell(data["variant"], data["parameters"], data["model"], Shape(*data["shape"]))


def measure_cell(
    cell: Cell, transferred: Any, dtype: str, settings: Sequence[Mapping[str, Const]], peers: Sequence[str], rounds: int = 3, *,
    prepare: Callable[..., Prepared] = Prepared, launch: Callable[[Mapping[str, Const]], Call] | None = None,
    measure: Callable[[Call], float] = median_ms,
) -> dict[str, Any]:  # fmt: skip
    """Our kernel with each setting, and the peers. Returns the cell's row.

    tflops: of unmasked pairs, 4 D each; contenders with a wrong result are not timed. `launch` gives a kernel for a setting (left out: compiled).
    """
    from .peers import contenders

    case = prepare(transferred, cell.shape, TORCH[DTYPES[dtype]])
    flops = 4.0 * cell.shape.D * kept_pairs(transferred.spec, case.problem["Q"], case.problem["K"])
    calls: dict[str, Call] = {}
    rows: dict[str, dict[str, Any]] = {}
    for consts in settings:
        own = {k: v for k, v in consts.items() if k not in ("T", "D")}
        name = f"{OURS} {label(own)}".strip()
        kernel = launch(consts) if launch is not None else _compiled(transferred, consts)
        why = case.verdict(kernel)
        rows[name] = {"consts": plain(own), "error": case.expected.error(case.outputs["O"])} | ({"wrong": why} if why else {})
        if not why:
            calls[name] = lambda kernel=kernel: kernel(**case.arguments)  # type: ignore[misc]
    for name, call in contenders(peers, transferred.spec, case).items():
        try:
            found = call()
            why = case.expected.judge(found)
            rows[name] = {"error": case.expected.error(found)} | ({"wrong": why} if why else {})
            del found
        except RuntimeError as error:
            rows[name] = {"failed": reason(error)}
            continue
        if not why:
            calls[name] = call
    times, failed = in_turns(calls, rounds, measure)
    for name, taken in times.items():
        milliseconds = statistics.median(taken)
        rows[name] |= {"milliseconds": round(milliseconds, 5), "tflops": round(flops / milliseconds / 1e9, 1)}
    for name, why in failed.items():
        rows[name] |= {"failed": why}
    return {
        **cell.as_json(),
        "dtype": dtype,
        "flops": flops,
        "own_error": case.expected.own,
        "bound": case.expected.bound,
        "contenders": rows,
    }


def _compiled(transferred: Any, consts: Mapping[str, Const]) -> Call:
    from ..api import compile

    return compile(transferred.program, kernel=transferred.kernel, consts=consts)
