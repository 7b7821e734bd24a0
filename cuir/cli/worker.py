"""The process that runs kernels for `cuir tune` and `cuir bench`: `python -m cuir.cli.worker`. Owns what its requests mean."""

from __future__ import annotations

import functools
import gc
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..bench.cells import Cell, measure_cell
from ..bench.reference import Reference
from ..calls.binding import TORCH
from ..measure.problem import Shape
from ..measure.worker import Tell, serve
from ..syntax.types import DTYPES
from ..tuning.device import LocalDevice
from ..tuning.space import from_plain
from ..variants import TransferResult, transfer
from ..verification.on_gpu import Launching
from .inputs import read_program, read_variant
from .verifying_gpu import Verified

COMMAND = (sys.executable, "-m", "cuir.cli.worker")


@functools.lru_cache(maxsize=32)
def transferred(variant: str, parameters: tuple[str, ...], origin: str) -> TransferResult:
    return transfer(read_program(origin), read_variant(variant, parameters))


@functools.lru_cache(maxsize=1)
def _compiled(job: str) -> tuple[Verified, Launching]:
    import torch

    from ..runtime.compiled import compile

    verified = Verified.from_json(json.loads(job))
    kernel = compile(verified.program, kernel=verified.kernel, consts=verified.consts)

    def launched(arguments: Mapping[str, Any]) -> None:
        kernel.launch(arguments)
        torch.cuda.synchronize()

    return verified, launched


def compare(request: Mapping[str, Any]) -> dict[str, Any]:
    """One problem of `cuir verify --gpu`."""
    from ..verification.on_gpu import compare as compare_one

    verified, launched = _compiled(json.dumps(request["job"]))
    case = verified.cases[request["case"]]
    return compare_one(verified.program, verified.checked, verified.mods, case, launched).as_json()


def stuck(request: Mapping[str, Any]) -> dict[str, Any]:
    """Where the warps of a kernel that hangs wait, on one problem of `cuir verify --gpu`. The process has no GPU after that."""
    from ..lowering import lower
    from ..runtime.watchdog import find_hang
    from ..verification.on_gpu import on_device
    from ..verification.problems import launch

    verified = Verified.from_json(request["job"])
    given = launch(verified.program, verified.checked, verified.mods, verified.cases[request["case"]])
    return {"stuck": [s.as_json() for s in find_hang(lower(verified.checked), on_device(given.arguments(), "cuda"))]}


@functools.lru_cache(maxsize=1)  # tensors of one problem at a time
def _device(job: str) -> LocalDevice:
    r = json.loads(job)
    return LocalDevice(transferred(r["variant"], tuple(r["parameters"]), r["origin"]), r["kernel"], Shape(*r["shape"]), r["dtype"])


def _of(request: Mapping[str, Any]) -> LocalDevice:
    return _device(json.dumps({k: request[k] for k in ("variant", "parameters", "origin", "kernel", "shape", "dtype")}))


def check(request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    status, why = _of(request).check(from_plain(request["consts"]), request["text"], tell)
    return {"status": status, "why": why}


def time(request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    return {"milliseconds": _of(request).time(from_plain(request["consts"]), request["text"], tell)}


def cell(request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    import torch

    _device.cache_clear()
    gc.collect()  # what torch.compile holds of the last problem goes in circles
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
        _reference(request["reference"]) if request["reference"] else None,
        lost=request["lost"],
        tell=tell,
    )


def backward(request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    import torch

    from ..bench.backward import measure_backward

    gc.collect()
    torch.cuda.empty_cache()
    one = Cell.from_json(request)
    spec = read_variant(one.variant, one.arguments)
    return measure_backward(one, spec, request["dtype"], request["peers"], request["rounds"], lost=request["lost"], tell=tell)


def decode(request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    from ..bench.decoding import measure_decode

    return _of_calls(measure_decode, request, tell)


def varlen(request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    from ..bench.packed import measure_varlen

    return _of_calls(measure_varlen, request, tell)


def _of_calls(measure: Callable[..., dict[str, Any]], request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    import torch

    gc.collect()
    torch.cuda.empty_cache()
    return measure(Cell.from_json(request), request["dtype"], request["peers"], request["rounds"], lost=request["lost"], tell=tell)


def prime(request: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    from ..bench.priming import prime_peers

    one = Cell.from_json(request)
    spec = read_variant(one.variant, one.arguments)
    gc.collect()
    torch.cuda.empty_cache()
    return {"failed": prime_peers(one, spec, TORCH[DTYPES[request["dtype"]]], request["peers"], request["share"])}


def prime_reference(request: Mapping[str, Any]) -> dict[str, Any]:
    _reference(request["reference"]).kernel(request["name"])
    return {}


@functools.cache
def _reference(folder: str) -> Reference:
    return Reference(Path(folder))


if __name__ == "__main__":
    sys.exit(
        serve(
            {
                "compare": compare,
                "stuck": stuck,
                "prime": prime,
                "prime_reference": prime_reference,
            },
            telling={"cell": cell, "backward": backward, "decode": decode, "varlen": varlen, "check": check, "time": time},
        )
    )
