"""Measurement of settings that may win, for the tables and the cost model of first calls.

    python -m benchmarks.defaults measure --out rows.jsonl                     # on a GPU: the grid, every setting of SETTINGS, in turns
    python -m benchmarks.defaults measure --held-out --out held.jsonl         # problems that no table is made of, and every tile that fits
    python -m benchmarks.defaults measure --plan cells.jsonl --out more.jsonl  # other cells and settings

Batch x length is 16384 tokens, bf16. All kernels are built in parallel, and a cell is timed when its kernels are built.
Each setting of a cell takes a turn in each of three rounds, with a cold L2 cache; those far behind the best of the
first round are not timed again. Results are compared with those of the cell's first setting, whose correctness
tests/gpu checks.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

import corpus
import cuir
from benchmarks.old_and_new import as_they_come
from cuir.checking.checked import Const
from cuir.performance.search.space import find_violation, label, plain
from cuir.performance.selection.cost import fit_buffers
from cuir.performance.suites.suites import VARIANTS
from cuir.performance.timing.problem import Shape, make_tensors
from cuir.performance.timing.timing_protocol import time_calls
from cuir.spec.specification import lengths_of
from cuir.syntax.types import BF16

ORIGIN = "flash_fwd_sm90"
TOKENS = 16384
ROUNDS, TURN, MOST = 3, 10.0, 20  # of a setting; milliseconds of a turn, and at most so many calls in it
BURN = 200.0  # milliseconds of work before the first turn of a cell: the clock falls under load, which would favour the first settings
BEHIND = 1.08  # a setting this much slower than the best of the first round is not timed again
SPILLED = 256  # bytes allowed, more than for a first call: spills outside of the loop cost little
OFF = 1e-2  # relative: results of two settings differ by their roundings

Setting = Mapping[str, int | bool]


def _settings(*texts: str) -> list[dict[str, int | bool]]:
    """Parse `192x80 QBUF=1` and the like: BM, BN and consts that differ from the signature."""
    parsed_settings = []
    for text in texts:
        tile, *options = text.split()
        BM, _, BN = tile.partition("x")
        more = {name: json.loads(value.lower()) for name, _, value in (o.partition("=") for o in options)}
        parsed_settings.append({"BM": int(BM), "BN": int(BN), **more})
    return parsed_settings


# Settings to time: of all tiles that fit, those that won before, and their neighbours.
SETTINGS: dict[int, list[dict[str, int | bool]]] = {
    64: _settings("128x128", "192x128", "128x64", "192x96", "128x176", "192x64", "128x96", "192x112", "192x128 PINGPONG=true"),
    96: _settings("192x96 QBUF=1", "192x80", "128x128", "128x96", "128x64", "192x64", "128x144 QBUF=1", "128x160 QBUF=1", "192x96 QBUF=1 PINGPONG=true", "192x96 QBUF=1 AHEAD=false"),
    128: _settings("128x128", "192x80", "384x80 CLUSTER=2", "192x64", "128x64", "128x96", "128x112", "128x144 QBUF=1", "128x160 QBUF=1", "128x128 PINGPONG=true", "128x144 QBUF=1 AHEAD=false"),
    256: _settings("128x64 QBUF=1 STAGED=false", "128x80 QBUF=1 STAGED=false", "256x80 QBUF=1 STAGED=false CLUSTER=2", "128x64 QBUF=1 STAGED=false PINGPONG=true",
                   "128x80 QBUF=1 STAGED=false PINGPONG=true", "64x80 QBUF=1", "64x64 QBUF=2",
                   "128x64 QBUF=1 STAGED=false AHEAD=false", "128x80 QBUF=1 STAGED=false AHEAD=false", "256x80 QBUF=1 STAGED=false CLUSTER=2 AHEAD=false"),
}  # fmt: skip
GRID = {
    "variants": ("full", "causal", "sliding_window", "prefix_lm", "document", "softcap", "alibi"),
    "dims": (128, 64, 256, 96),
    "lengths": (1024, 2048, 4096, 8192, 16384),
    "heads": ((32, 32), (64, 8)),
}


HELD_OUT = (
    ("causal_document", 128),
    ("softcap_causal", 64),
    ("prefix_document", 64),
    ("sliding_window_global", 128),
    ("alibi_causal", 128),
    ("causal", 80),
)
FEW = (
    (1, 8, 8, 1024, 1024),
    (1, 32, 8, 1024, 1024),
    (1, 8, 8, 4096, 4096),
    (2, 32, 8, 128, 8192),
    (1, 16, 16, 2048, 2048),
    (1, 64, 8, 512, 512),
)


@dataclass(frozen=True)
class Cell:
    """Problem: a variant with the parameters that the suites give it for the length, and the shape."""

    variant: str
    shape: Shape

    @property
    def parameters(self) -> Mapping[str, int | float]:
        """Parameters of the variant."""
        return {**VARIANTS[self.variant](self.shape.M), **({"heads": self.shape.H} if self.variant.startswith("alibi") else {})}

    def as_json(self) -> dict[str, Any]:
        """Return the cell as JSON data."""
        return {"variant": self.variant, "parameters": dict(self.parameters), "shape": list(self.shape.as_tuple()), "dtype": "bf16"}


def cells(chosen: Mapping[str, Any]) -> list[Job]:
    """Return the cells with the settings of their head dim; those that share kernels follow each other."""
    return [
        (Cell(v, Shape(max(1, TOKENS // n), H, HK, n, n, D)), SETTINGS[D])
        for D in chosen["dims"]
        for v in chosen["variants"]
        for n in chosen["lengths"]
        for H, HK in chosen["heads"]
    ]


Job = tuple[Cell, Sequence[Setting]]


def list_held_out() -> list[Job]:
    """Return problems that no table is made of, with every tile that registers and shared memory allow.

    Some tiles also have PINGPONG.
    """
    many = [(v, (n, H, HK), D) for v, D in HELD_OUT for n, H, HK in ((1536, 96, 8), (3072, 16, 16), (12288, 96, 8))]
    unusual = [Cell(v, Shape(max(1, TOKENS // n), H, HK, n, n, D)) for v, (n, H, HK), D in many]
    few = [Cell(v, Shape(*lengths, D)) for D in (64, 128) for v in ("full", "causal") for lengths in FEW]
    return [(cell, list_fitting_tiles(cell.shape)) for cell in (*few, *unusual)]


def list_fitting_tiles(shape: Shape) -> list[Setting]:
    """Return every tile that fits."""
    settings: list[Setting] = []
    for BM, BN in itertools.product((64, 128, 192), range(64, 177, 16)):
        tile = fit_buffers(shape, BM, BN)
        if tile is not None:
            settings += [tile, {**tile, "PINGPONG": True}] if BM >= 128 and BN in (64, 80, 96, 128) else [tile]
    return settings


@cache
def adapt(variant: str, parameters: tuple[tuple[str, int | float], ...]) -> Any:
    """Return the expert kernel with a variant."""
    origin = cuir.parse(corpus.kernels()[ORIGIN].read_text(encoding="utf-8"), f"{ORIGIN}.cuir")
    return cuir.transfer(origin, corpus.variant(variant)(**dict(parameters)))


def of_cell(cell: Cell) -> Any:
    """Return the expert kernel of a cell."""
    return adapt(cell.variant, tuple(cell.parameters.items()))


def whole(setting: Setting, D: int) -> dict[str, Const]:
    """Return all consts of a setting."""
    return {"T": BF16, "D": D, "DV": D, **setting}


class Kernels:
    """Kernels by program and setting, built by parallel processes while others are timed."""

    def __init__(self, plan: Sequence[Job], tell: Callable[[Mapping[str, Any]], None]):
        self.tell, self.changed = tell, threading.Condition()
        self.jobs: dict[tuple[str, int, str], Setting] = {}
        self.built: dict[tuple[str, int, str], Any] = {}
        self.work = []
        for cell, settings in plan:
            transferred, D = of_cell(cell), cell.shape.D
            for setting in settings:
                key = (cell.variant, D, label(setting))
                if key not in self.jobs and find_violation(transferred.program, transferred.kernel, whole(setting, D)) is None:
                    self.jobs[key] = setting
                    self.work.append((transferred.text, transferred.kernel, whole(setting, D)))

    def build(self, jobs: int | None) -> None:
        """Build all kernels."""
        from cuir.performance.search import compile_all

        keys = list(self.jobs)
        for i, built in compile_all(self.work, jobs):
            self.tell(
                {
                    "built": keys[i][0],
                    "D": keys[i][1],
                    "setting": keys[i][2],
                    "refused": built.refused,
                    "spills": built.spills,
                    "serialised": built.serialised,
                    "registers": built.registers,
                    "seconds": round(built.seconds, 2),
                }
            )
            with self.changed:
                self.built[keys[i]] = built
                self.changed.notify_all()

    def usable(self, cell: Cell, settings: Sequence[Setting]) -> list[Setting]:
        """Return the settings that spill no more than SPILLED, once all of them are built.

        If all spill more, those that compile.
        """
        keys = [(cell.variant, cell.shape.D, label(s)) for s in settings]
        possible = [k for k in keys if k in self.jobs]
        with self.changed:
            self.changed.wait_for(lambda: all(k in self.built for k in possible))
        compiled = [k for k in possible if not self.built[k].refused]
        usable = [k for k in compiled if self.built[k].spills <= SPILLED and not self.built[k].serialised]
        return [self.jobs[k] for k in usable or compiled]


def measure_settings(cell: Cell, settings: Sequence[Setting], rounds: int = ROUNDS, device: str = "cuda") -> dict[str, Any]:
    """Measure milliseconds of each setting: the median of each of its turns."""
    transferred, shape = of_cell(cell), cell.shape
    problem = make_tensors(shape, torch.bfloat16, device)
    lengths, o = lengths_of(problem["Q"], problem["K"]), torch.empty_like(problem["Q"])
    lse = torch.empty(o.shape[:-1], device=device)
    calls: dict[str, Callable[[], Any]] = {}
    wrong: dict[str, str] = {}
    first: torch.Tensor | None = None
    each: dict[str, float] = {}
    for setting in settings:
        consts, name = whole(setting, shape.D), label(setting)
        try:
            kernel = compile_once(transferred, name, consts)
            call = partial(kernel, **problem, O=o, LSE=lse, scale=shape.D**-0.5, **transferred.arguments(lengths, device, consts))
            o.fill_(float("nan"))
            call()
            first_value = o[-1, -1].float()
            off = 0.0 if first is None else float((first_value - first).norm() / first.norm())
            first = first_value if first is None else first
            if not off < OFF:
                wrong[name] = f"off by {off:.3g}"
                continue
            each[name] = time_calls(call, 2)[1]  # the first warms up
            calls[name] = call
        except Exception as error:  # a setting that does not run costs its own figures alone
            if "CUDA error" in str(error):
                raise
            wrong[name] = str(error)[:200]
    if calls and device == "cuda":
        first_call = next(iter(calls))
        time_calls(calls[first_call], 1 + int(BURN / each[first_call]))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds):
        names = list(calls)[:: -1 if turn % 2 else 1]
        best = min((t[0] for t in times.values() if t), default=float("inf"))
        for name in names:
            if turn and times[name][0] > BEHIND * best:
                continue
            times[name].append(statistics.median(time_calls(calls[name], 1 + max(1, min(MOST, int(TURN / each[name]))))[1:]))
    return {**cell.as_json(), "ms": {n: [round(t, 5) for t in ts] for n, ts in times.items()}, **({"wrong": wrong} if wrong else {})}


_KERNELS: dict[tuple[str, str], Any] = {}


def compile_once(transferred: Any, name: str, consts: Mapping[str, Const]) -> Any:
    """Compile a kernel, once."""
    key = transferred.text, str(plain(consts))
    if key not in _KERNELS:
        _KERNELS[key] = cuir.compile(transferred.program, kernel=transferred.kernel, consts=consts)
    return _KERNELS[key]


def measure(plan: Sequence[Job], seconds: float, jobs: int | None) -> Iterator[Mapping[str, Any]]:
    """Yield records of built kernels and measured cells. Nothing begins after `seconds`."""
    from cuir.performance.search.tuning_records import device

    began, lines = time.monotonic(), []  # type: ignore[var-annotated]
    yield {"device": device()[0], "torch": torch.__version__, "rounds": ROUNDS}
    kernels = Kernels(plan, lines.append)
    threading.Thread(target=kernels.build, args=(jobs,), daemon=True).start()
    before = None
    for cell, settings in plan:
        usable = kernels.usable(cell, settings)
        while lines:
            yield lines.pop(0)
        if time.monotonic() - began > seconds:
            yield {"stopped": f"after {seconds:.0f} s"}
            return
        if (cell.variant, cell.shape.D) != before:
            _KERNELS.clear()
        before = cell.variant, cell.shape.D
        yield {**measure_settings(cell, usable), "at": round(time.monotonic() - began, 1)}


def read_plan(path: Path) -> list[Job]:
    """Read cells and settings from a file of JSON lines, as `measure` writes them.

    Lines have `variant`, `shape`, and `settings` or the names under `ms`.
    """
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [
        (Cell(r["variant"], Shape(*r["shape"])), [parse_setting(s) for s in r.get("settings", r.get("ms"))]) for r in rows if "variant" in r
    ]


def parse_setting(name: str) -> dict[str, int | bool]:
    """Parse a setting that `cuir.performance.search.space.label` wrote."""
    return {n: json.loads(value.lower()) for n, _, value in (part.partition("=") for part in name.split(","))}


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    measure_parser = commands.add_parser("measure")
    measure_parser.add_argument("--plan", type=Path, help="cells and settings, instead of the grid: JSON lines of variant, shape, settings")
    measure_parser.add_argument(
        "--held-out",
        action="store_true",
        help="other lengths, variants, heads and head dims, and launches of few tiles, with every tile that fits",
    )
    measure_parser.add_argument("--only", nargs="+", default=[], help="variants")
    measure_parser.add_argument("--dims", nargs="+", type=int, default=[])
    measure_parser.add_argument("--seconds", type=float, default=1e9, help="after which nothing begins")
    measure_parser.add_argument("--jobs", type=int)
    measure_parser.add_argument("--out", type=Path, help="lines of JSON, as they come")
    options = parser.parse_args()
    from cuir.performance.timing.gpu import explain_missing_gpu

    if reason := explain_missing_gpu():
        print(f"nothing measured: {reason}", file=sys.stderr)
        return 1
    chosen = {**GRID, **({"variants": options.only} if options.only else {}), **({"dims": options.dims} if options.dims else {})}
    plan = read_plan(options.plan) if options.plan else list_held_out() if options.held_out else cells(chosen)
    as_they_come(measure(plan, options.seconds, options.jobs), options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
