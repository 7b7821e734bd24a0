"""Process that runs kernels for `cuir tune` and `cuir bench`: `python -m cuir.cli.worker_process`."""

from __future__ import annotations

import functools
import gc
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from ..arguments.binding import TORCH, Argument
from ..attn.splicing.splice import TransferResult, transfer
from ..checking.const_defaults import PlainConsts
from ..performance.search.candidate_runs import LocalDevice
from ..performance.search.space import from_plain
from ..performance.suites.cell_benchmark import Cell, Contenders, Timing, measure_cell
from ..performance.suites.reference import Reference
from ..performance.suites.result_rows import CellRow, Row
from ..performance.timing.problem import Shape
from ..performance.timing.worker import Tell, serve
from ..syntax.types import DTYPES
from ..verification.on_gpu import Launching
from .command_inputs import read_program, read_variant
from .gpu_stage import Verified

COMMAND = (sys.executable, "-m", "cuir.cli.worker_process")


@functools.lru_cache(maxsize=32)
def transfer_variant(variant: str, parameters: tuple[str, ...], origin: str) -> TransferResult:
    """Return the kernel that a transfer of `origin` to a variant gives."""
    return transfer(read_program(origin), read_variant(variant, parameters))


@functools.lru_cache(maxsize=1)
def _compile_job(job: str) -> tuple[Verified, Launching]:
    """Return a compiled kernel to launch, for a job."""
    import torch

    from ..runtime.compiled import compile

    verified = Verified.from_json(json.loads(job))
    kernel = compile(verified.program, kernel=verified.kernel, consts=verified.consts)

    def launch_and_wait(arguments: Mapping[str, Argument]) -> None:
        """Launch and wait."""
        kernel.launch(arguments)
        torch.cuda.synchronize()

    return verified, launch_and_wait


class ComparedJob(TypedDict):
    """Problem of a kernel to verify: the record of `Verified`, and the number of the problem."""

    job: dict[str, Any]
    case: int


class TuningJob(TypedDict):
    """Kernel to tune and its problem."""

    variant: str
    parameters: list[str]
    origin: str
    kernel: str
    shape: list[int]
    dtype: str


class SettingJob(TuningJob):
    """Setting of a kernel, and the text of a program that is not the kernel's."""

    consts: PlainConsts
    text: str


class CallJob(CellRow):
    """Cell whose contenders are calls: dtype and peers, rounds, and contenders not to run, with reasons."""

    dtype: str
    peers: list[str]
    rounds: int
    lost: dict[str, str]


class CellJob(CallJob):
    """Cell of kernels: settings of ours, the expert kernel, and the folder of the user's."""

    settings: list[PlainConsts]
    origin: str
    reference: str | None


class PrimingJob(CellRow):
    """Cell whose peers are prepared, with a share of the GPU's memory."""

    dtype: str
    peers: list[str]
    share: float


class ReferenceJob(TypedDict):
    """Kernel of the user's to build: its folder and name."""

    reference: str
    name: str


def compare(request: ComparedJob) -> dict[str, object]:
    """Run one problem of `cuir verify --gpu`."""
    from ..verification.on_gpu import compare as compare_one

    verified, launched = _compile_job(json.dumps(request["job"]))
    case = verified.cases[request["case"]]
    return compare_one(verified.program, verified.checked, verified.mods, case, launched).as_json()


def locate_stuck_warps(request: ComparedJob) -> dict[str, object]:
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
    return LocalDevice(transfer_variant(r["variant"], tuple(r["parameters"]), r["origin"]), r["kernel"], Shape(*r["shape"]), r["dtype"])


def _of(request: SettingJob) -> LocalDevice:
    """Return the device for a request."""
    return _device(json.dumps({k: v for k, v in request.items() if k in ("variant", "parameters", "origin", "kernel", "shape", "dtype")}))


def check(request: SettingJob, tell: Tell) -> dict[str, str]:
    """Check a setting against float64."""
    status, why = _of(request).check(from_plain(request["consts"]), request["text"], tell)
    return {"status": status, "why": why}


def time(request: SettingJob, tell: Tell) -> dict[str, float]:
    """Time a setting."""
    return {"milliseconds": _of(request).time(from_plain(request["consts"]), request["text"], tell)}


def cell(request: CellJob, tell: Tell) -> Row:
    """Time a cell of a benchmark."""
    import torch

    _device.cache_clear()
    gc.collect()  # torch.compile keeps the last problem alive in reference cycles
    torch.cuda.empty_cache()
    bench_cell = Cell.from_json(request)
    settings = [from_plain(s) for s in request["settings"]]
    return measure_cell(
        bench_cell,
        transfer_variant(bench_cell.variant, tuple(bench_cell.arguments), request["origin"]),
        request["dtype"],
        Contenders(settings, request["peers"], _reference(request["reference"]) if request["reference"] else None),
        Timing(request["rounds"], request["lost"], tell),
    )


def backward(request: CallJob, tell: Tell) -> Row:
    """Time a cell of backward passes."""
    import torch

    from ..performance.suites.backward_suite import measure_backward

    gc.collect()
    torch.cuda.empty_cache()
    bench_cell = Cell.from_json(request)
    spec = read_variant(bench_cell.variant, bench_cell.arguments)
    return measure_backward(bench_cell, spec, request["dtype"], request["peers"], Timing(request["rounds"], request["lost"], tell))


def decode(request: CallJob, tell: Tell) -> Row:
    """Time a cell of decoding."""
    from ..performance.suites.decode_suite import measure_decode

    return _of_calls(measure_decode, request, tell)


def varlen(request: CallJob, tell: Tell) -> Row:
    """Time a cell of packed sequences."""
    from ..performance.suites.packed_suite import measure_varlen

    return _of_calls(measure_varlen, request, tell)


def _of_calls(measure: Callable[[Cell, str, Sequence[str], Timing], Row], request: CallJob, tell: Tell) -> Row:
    """Time a cell whose contenders are calls."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()
    return measure(Cell.from_json(request), request["dtype"], request["peers"], Timing(request["rounds"], request["lost"], tell))


def prime(request: PrimingJob) -> dict[str, str]:
    """Prepare the peers for a cell."""
    import torch

    from ..performance.suites.suite_run import prime_peers

    bench_cell = Cell.from_json(request)
    spec = read_variant(bench_cell.variant, bench_cell.arguments)
    gc.collect()
    torch.cuda.empty_cache()
    return {"failed": prime_peers(bench_cell, spec, TORCH[DTYPES[request["dtype"]]], request["peers"], request["share"])}


def prime_reference(request: ReferenceJob) -> dict[str, object]:
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
                "stuck": locate_stuck_warps,
                "prime": prime,
                "prime_reference": prime_reference,
            },
            telling={"cell": cell, "backward": backward, "decode": decode, "varlen": varlen, "check": check, "time": time},
        )
    )
