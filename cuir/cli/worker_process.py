"""Process that runs kernels for `cuir tune` and `cuir bench`: `python -m cuir.cli.worker_process`."""

from __future__ import annotations

import functools
import gc
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..arguments.binding import TORCH
from ..attn.splicing.splice import TransferResult, transfer
from ..performance.search.candidate_runs import LocalDevice
from ..performance.search.space import from_plain
from ..performance.suites.cells import Cell, measure_cell
from ..performance.suites.reference import Reference
from ..performance.timing.problem import Shape
from ..performance.timing.worker import Tell, serve
from ..syntax.types import DTYPES
from ..verification.on_gpu import Launching
from .command_inputs import read_program, read_variant
from .gpu_stage import Verified

COMMAND = (sys.executable, "-m", "cuir.cli.worker_process")


@functools.lru_cache(maxsize=32)
def transferred(variant: str, parameters: tuple[str, ...], origin: str) -> TransferResult:
    """Transfer a kernel to a variant."""
    return transfer(read_program(origin), read_variant(variant, parameters))


@functools.lru_cache(maxsize=1)
def _compiled(job: str) -> tuple[Verified, Launching]:
    """Return a compiled kernel to launch, for a job."""
    import torch

    from ..runtime.compiled import compile

    verified = Verified.from_json(json.loads(job))
    kernel = compile(verified.program, kernel=verified.kernel, consts=verified.consts)

    def launched(arguments: Mapping[str, Any]) -> None:
        """Launch and wait."""
        kernel.launch(arguments)
        torch.cuda.synchronize()

    return verified, launched


def compare(request: Mapping[str, Any]) -> dict[str, Any]:
    """Run one problem of `cuir verify --gpu`."""
    from ..verification.on_gpu import compare as compare_one

    verified, launched = _compiled(json.dumps(request["job"]))
    case = verified.cases[request["case"]]
    return compare_one(verified.program, verified.checked, verified.mods, case, launched).as_json()


def stuck(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return where the warps of a kernel that hangs wait, on one problem of `cuir verify --gpu`.

    The process has no GPU after that.
    """
    from ..attn.verification.problems import make_attention_launch
    from ..lowering import lower
    from ..runtime.watchdog import find_hang
    from ..verification.on_gpu import move_to_device

    verified = Verified.from_json(request["job"])
    launch_data = make_attention_launch(verified.program, verified.checked, verified.mods, verified.cases[request["case"]])
    return {"stuck": [s.as_json() for s in find_hang(lower(verified.checked), move_to_device(launch_data.arguments(), "cuda"))]}


@functools.lru_cache(maxsize=1)  # tensors of one problem at a time
def _device(job: str) -> LocalDevice:
    """Return the device for a job of tuning."""
    r = json.loads(job)
    return LocalDevice(transferred(r["variant"], tuple(r["parameters"]), r["origin"]), r["kernel"], Shape(*r["shape"]), r["dtype"])


def _of(request: Mapping[str, Any]) -> LocalDevice:
    """Return the device for a request."""
    return _device(json.dumps({k: request[k] for k in ("variant", "parameters", "origin", "kernel", "shape", "dtype")}))


def check(request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Check a setting against float64."""
    status, why = _of(request).check(from_plain(request["consts"]), request["text"], tell)
    return {"status": status, "why": why}


def time(request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Time a setting."""
    return {"milliseconds": _of(request).time(from_plain(request["consts"]), request["text"], tell)}


def cell(request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Time a cell of a benchmark."""
    import torch

    _device.cache_clear()
    gc.collect()  # torch.compile keeps the last problem alive in reference cycles
    torch.cuda.empty_cache()
    bench_cell = Cell.from_json(request)
    settings = [from_plain(s) for s in request["settings"]]
    return measure_cell(
        bench_cell,
        transferred(bench_cell.variant, tuple(bench_cell.arguments), request["origin"]),
        request["dtype"],
        settings,
        request["peers"],
        request["rounds"],
        _reference(request["reference"]) if request["reference"] else None,
        lost=request["lost"],
        tell=tell,
    )


def backward(request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Time a cell of backward passes."""
    import torch

    from ..performance.suites.backward_suite import measure_backward

    gc.collect()
    torch.cuda.empty_cache()
    bench_cell = Cell.from_json(request)
    spec = read_variant(bench_cell.variant, bench_cell.arguments)
    return measure_backward(bench_cell, spec, request["dtype"], request["peers"], request["rounds"], lost=request["lost"], tell=tell)


def decode(request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Time a cell of decoding."""
    from ..performance.suites.decode_suite import measure_decode

    return _of_calls(measure_decode, request, tell)


def varlen(request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Time a cell of packed sequences."""
    from ..performance.suites.packed_suite import measure_varlen

    return _of_calls(measure_varlen, request, tell)


def _of_calls(measure: Callable[..., dict[str, Any]], request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Time a cell whose contenders are calls."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()
    return measure(Cell.from_json(request), request["dtype"], request["peers"], request["rounds"], lost=request["lost"], tell=tell)


def prime(request: Mapping[str, Any]) -> dict[str, Any]:
    """Prepare the peers for a cell."""
    import torch

    from ..performance.suites.priming import prime_peers

    bench_cell = Cell.from_json(request)
    spec = read_variant(bench_cell.variant, bench_cell.arguments)
    gc.collect()
    torch.cuda.empty_cache()
    return {"failed": prime_peers(bench_cell, spec, TORCH[DTYPES[request["dtype"]]], request["peers"], request["share"])}


def prime_reference(request: Mapping[str, Any]) -> dict[str, Any]:
    """Build a kernel of the reference."""
    _reference(request["reference"]).kernel(request["name"])
    return {}


@functools.cache
def _reference(folder: str) -> Reference:
    """Return the reference of a folder."""
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
