"""Timing of rules in worker processes: all compile at once, then one after another has the GPU.

A process that faults costs only the cell under way; its other cells are repeated.
"""

from __future__ import annotations

import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from typing import Any

import torch

from cuir.performance.timing.timing_protocol import describe_error, median_ms, time_in_turns
from cuir.performance.timing.worker import Worker, WorkerLost, serve
from cuir.text.diagnostics import CuirError

from . import RULES
from .rule import Mods, Size

Cell = dict[str, Any]
OURS, FLEX = "ours", "flex"
BUILD_SECONDS, RUN_SECONDS = 150.0, 30.0
GRACE = 40.0  # seconds for compilations under way when the time is up: ending a process loses its other cells
MILLISECONDS = 25.0  # of one contender in a round
SAMPLE = 48  # queries of two heads that are compared with float64
TOLERANCE = 2e-2  # relative: more is wrong
COMMAND = (sys.executable, "-m", "benchmarks.rules.timing")


# ---- in the process that has the GPU
def tensors(cell: Cell) -> list[torch.Tensor]:
    """Return random Q, K and V of a cell."""
    g = torch.Generator(cell["device"]).manual_seed(1)
    shape = cell["batch"], cell["heads"], cell["length"], cell["head_dim"]
    return [torch.randn(shape, device=cell["device"], dtype=torch.bfloat16, generator=g) for _ in range(3)]


def leading(mods: Mods, cell: Cell) -> tuple[int | None, int | None]:
    """Return batch and heads of a block mask: only for dims that the mask depends on."""
    from cuir import Specification
    from cuir.attn.tracing.trace import trace
    from cuir.syntax.walk import names_read

    keep = trace(Specification("mask", mods.mask_mod)).keep
    names = set() if keep is None else names_read(keep)
    return cell["batch"] if "b" in names else None, cell["heads"] if "h" in names else None


def ours(mods: Mods, cell: Cell, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Return our call."""
    import cuir

    n, block_mask = cell["length"], None
    if mods.mask_mod is not None:
        block_mask = cuir.create_block_mask(mods.mask_mod, *leading(mods, cell), n, n, device=cell["device"])
    backend = "auto" if cell["device"] == "cuda" else "interpret"
    return partial(cuir.flex_attention, q, k, v, score_mod=mods.score_mod, block_mask=block_mask, verify="off", backend=backend)


def flex(mods: Mods, cell: Cell, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Return FlexAttention's call."""
    import torch._inductor.config
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._inductor.config.compile_threads = 1
    n, block_mask, score_mod = cell["length"], None, mods.score_mod
    if mods.mask_mod is not None:
        block_mask = create_block_mask(mods.mask_mod, *leading(mods, cell), n, n, device=cell["device"])

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return flex_attention(q, k, v, score_mod=score_mod, block_mask=block_mask)

    code = attention.__code__.replace(co_name=f"{cell['rule']}_{cell['head_dim']}")  # dynamo counts recompilations of a code object
    function = types.FunctionType(code, attention.__globals__, code.co_name, None, attention.__closure__)
    return partial(torch.compile(function, dynamic=False), q, k, v)


def sample_outputs(mods: Mods, cell: Cell, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, tuple[Any, ...]]:
    """Return O of some queries in float64 [2, SAMPLE, D], and where they lie in O."""
    n, g, device = cell["length"], torch.Generator().manual_seed(2), cell["device"]
    rows, keys = torch.randperm(n, generator=g)[:SAMPLE].sort().values.to(device), torch.arange(n, device=device)
    expected = []
    places = ((0, 0), (cell["batch"] - 1, cell["heads"] - 1))
    for batch, head in places:
        b, h = torch.tensor(batch, device=device), torch.tensor(head, device=device)
        s = q[batch, head, rows].double() @ k[batch, head].double().T * cell["head_dim"] ** -0.5
        if mods.score_mod is not None:
            mod = torch.vmap(torch.vmap(mods.score_mod, in_dims=(0, None, None, None, 0)), in_dims=(0, None, None, 0, None))
            s = mod(s.float(), b, h, rows, keys).double()
        if mods.mask_mod is not None:
            mod = torch.vmap(torch.vmap(mods.mask_mod, in_dims=(None, None, None, 0)), in_dims=(None, None, 0, None))
            s = s.masked_fill(~mod(b, h, rows, keys), -torch.inf)
        expected.append(torch.softmax(s, -1).nan_to_num(0.0) @ v[batch, head].double())
    return torch.stack(expected), ([p[0] for p in places], [p[1] for p in places], rows)


class Prepared:
    """Cell whose contenders are compiled and were compared."""

    def __init__(self, cell: Cell) -> None:
        rule = next(r for r in RULES if r.name == cell["rule"])
        mods = rule.mods(Size(cell["batch"], cell["heads"], cell["length"], cell["device"]))
        q, k, v = tensors(cell)
        expected, (batches, heads, rows) = sample_outputs(mods, cell, q, k, v)
        self.calls: dict[str, Callable[[], Any]] = {}
        self.result: Cell = {"off": {}, "first_s": {}, "failed": {}}
        results = {}
        for name, make in ((OURS, ours), (FLEX, flex)):
            if name not in cell["contenders"]:
                continue
            try:
                began = time.perf_counter()
                call = make(mods, cell, q, k, v)
                results[name] = call()
                if cell["device"] == "cuda":
                    torch.cuda.synchronize()
                self.result["first_s"][name] = round(time.perf_counter() - began, 2)
                output = torch.stack([results[name][b, h, rows] for b, h in zip(batches, heads)])
                self.result["off"][name] = float((output.double() - expected).norm() / expected.norm())
                self.calls[name] = call
            except Exception as error:  # PyTorch's compilers raise whatever they meet
                if "CUDA error" in str(error):
                    raise
                self.result["failed"][name] = describe_error(error)
        if len(results) == 2:
            first, second = (x.float() for x in results.values())
            self.result["apart"] = float((first - second).norm() / second.norm())
        del results
        if cell["device"] == "cuda":
            torch.cuda.empty_cache()

    def times(self, rounds: int) -> Cell:
        """Time the contenders; return the record."""
        samples, failed = time_in_turns(self.calls, rounds, partial(median_ms, milliseconds=MILLISECONDS))
        return {"ms": samples, **self.result, "failed": {**self.result["failed"], **failed}}


def main() -> int:
    """Answer `prepare` and `time`."""
    prepared: dict[str, Prepared] = {}

    def prepare(request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            cell = dict(request["cell"])
            prepared[request["name"]] = Prepared(cell)
            return {}
        except CuirError as error:
            return {"failed": f"{error.diagnostics[0].code}: {error.diagnostics[0].message}"}

    def time_cell(request: Mapping[str, Any]) -> dict[str, Any]:
        if request["name"] not in prepared:
            prepare(request)
        return prepared.pop(request["name"]).times(request["rounds"])

    return serve({"prepare": prepare, "time": time_cell})


# ---- in the process that asks
def name_cell(cell: Cell) -> str:
    """Return the name of a cell."""
    return f"{cell['rule']}-{cell['head_dim']}"


def measure_cells(cells: Sequence[Cell], processes: int, rounds: int, seconds: float, tell: Callable[[str], None]) -> Iterator[Cell]:
    """Yield a row for each cell, in their order: median milliseconds of each round, and failures.

    `seconds`: the limit after which nothing more is compiled.
    """
    began, local, workers, owner, lost = time.monotonic(), threading.local(), list[Worker](), dict[str, Worker](), dict[str, str]()

    def prepare(cell: Cell) -> str:
        if not hasattr(local, "worker"):
            local.worker = Worker(COMMAND)
            workers.append(local.worker)
        name = name_cell(cell)
        remaining = began + seconds - time.monotonic()
        if remaining <= 0:
            lost[name] = "no time left to compile it"
            return name
        try:
            answer = local.worker.ask({"do": "prepare", "name": name, "cell": cell}, min(BUILD_SECONDS, remaining + GRACE))
            owner[name] = local.worker
            if "failed" in answer:
                lost[name] = answer["failed"]
        except WorkerLost as error:
            lost[name] = str(error)
        return name

    try:
        with ThreadPoolExecutor(processes) as pool:
            for finished, future in enumerate(as_completed([pool.submit(prepare, c) for c in cells]), 1):
                tell(f"{time.monotonic() - began:.0f} s: {finished} of {len(cells)} compiled, the last {future.result()}")
        for cell in cells:
            name = name_cell(cell)
            row = {k: v for k, v in cell.items() if k not in ("contenders", "device")}
            if name in lost:
                yield {**row, "failed": {"all": lost[name]}}
                continue
            try:
                yield {**row, **owner[name].ask({"do": "time", "name": name, "cell": cell, "rounds": rounds}, RUN_SECONDS + BUILD_SECONDS)}
            except WorkerLost as error:
                yield {**row, "failed": {"all": str(error)}}
    finally:
        for worker in workers:
            worker.close()


if __name__ == "__main__":
    sys.exit(main())
