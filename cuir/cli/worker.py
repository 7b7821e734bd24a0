"""The process that runs kernels for `cuir tune` and `cuir bench`: `python -m cuir.cli.worker`. Owns what its requests mean."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Mapping
from typing import Any

from ..bench.cells import Cell, measure_cell
from ..measure.problem import Shape
from ..measure.worker import serve
from ..transfer import TransferResult, transfer
from ..tuning.device import LocalDevice
from ..tuning.space import from_plain
from .inputs import read_program, read_variant

COMMAND = (sys.executable, "-m", "cuir.cli.worker")


@functools.lru_cache(maxsize=32)
def transferred(variant: str, parameters: tuple[str, ...], origin: str) -> TransferResult:
    return transfer(read_program(origin), read_variant(variant, parameters))


@functools.lru_cache(maxsize=1)  # tensors of one problem at a time
def _device(job: str) -> LocalDevice:
    r = json.loads(job)
    return LocalDevice(transferred(r["variant"], tuple(r["parameters"]), r["origin"]), r["kernel"], Shape(*r["shape"]), r["dtype"])


def _of(request: Mapping[str, Any]) -> LocalDevice:
    return _device(json.dumps({k: request[k] for k in ("variant", "parameters", "origin", "kernel", "shape", "dtype")}))


def check(request: Mapping[str, Any]) -> dict[str, Any]:
    status, why = _of(request).check(from_plain(request["consts"]))
    return {"status": status, "why": why}


def time(request: Mapping[str, Any]) -> dict[str, Any]:
    return {"milliseconds": _of(request).time(from_plain(request["consts"]))}


def cell(request: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    _device.cache_clear()
    torch.cuda.empty_cache()
    one = Cell.from_json(request)
    settings = [from_plain(s) for s in request["settings"]]
    return measure_cell(
        one,
        transferred(one.variant, tuple(one.arguments), request["origin"]),
        request["dtype"],
        settings,
        request["peers"],
        request["rounds"],
    )


if __name__ == "__main__":
    sys.exit(serve({"check": check, "time": time, "cell": cell}))
