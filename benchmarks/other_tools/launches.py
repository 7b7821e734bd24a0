"""Process that launches faulty kernels on a GPU: `python -m benchmarks.other_tools.launches`.

Requests come over pipes as in `cuir/performance/timing/worker.py`. A launch that hangs or faults costs only this process.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from cuir.attn.verification.numeric import judge
from cuir.attn.verification.problems import Case
from cuir.attn.verification.sizes import collect_mask_integers
from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.performance.timing.worker import serve
from cuir.runtime.compiled import compile as compile_kernel
from cuir.runtime.nvcc import Compiled
from cuir.spec.function_specification import FunctionSpecification
from cuir.spec.specification import Lengths, Specification
from cuir.syntax.parser import parse
from cuir.text.diagnostics import CuirError
from cuir.verification.function_judge import judge_function
from cuir.verification.inputs import FunctionLaunch
from cuir.verification.spec_dispatch import AnyCase, AnyLaunch, get_tile_sizes, make_number_cases, make_schedule_cases, prepare_launch
from cuir.verification.tile_steps import find_tiles
from cuir.verification.values.cases import Draw

from .planted_faults import Origin, origin

RIGHT, WRONG, DIFFERS, HANGS, ERROR, ENDED = "right every time", "wrong", "differs from run to run", "hangs", "error", "ended"
ALIGNED = 16  # bytes: alignment of strides for the copy engine
SANITIZED_CASES = 4  # of the numbers stage: the smallest, as `verify --gpu --sanitizer` takes them

Launching = Callable[[Mapping[str, Any], int | None], None]  # takes tensors of a device and a limit on CTAs; waits for the end


class Hangs(Exception):
    """Error of a launch that did not end in its time."""


@dataclass(frozen=True)
class Problem:
    """Problem to launch `rounds` times with each of `data` inputs.

    The inputs take turns, so that values that one launch leaves in memory are wrong for the next. `grid` limits the
    CTAs.
    """

    case: AnyCase
    grid: int | None
    data: int
    rounds: int


def problems(of: Origin, checked: Checked) -> list[Problem]:
    """Return the problems of a kernel.

    Those of the schedules stage on two CTAs, 20 launches each; one of 16 CTAs with four tiles each; those of the
    numbers stage as a user launches them, three times.
    """
    spec = of.spec
    marks = collect_mask_integers(spec, of.program) if isinstance(spec, Specification) else []
    fixed_grid = [Problem(c, 2, 4, 5) for c in make_schedule_cases(checked, spec)]
    fixed_grid.append(Problem(many_tiles(checked, spec), 16, 2, 10))
    return fixed_grid + [Problem(c, None, 1, 3) for c in make_number_cases(checked, spec, marks, "quick")]


def list_sanitizer_problems(of: Origin, checked: Checked) -> list[Problem]:
    """Return the problems of the schedules stage, and the smallest of the numbers stage, one launch each.

    Problems without work are left out.
    """
    every = [replace(p, data=1, rounds=1) for p in problems(of, checked)]
    few = sorted((p for p in every if p.grid is None and _elements(p.case)), key=lambda p: _elements(p.case))
    return [p for p in every if p.grid == 2] + few[:SANITIZED_CASES]


def _elements(case: AnyCase) -> int:
    """Return the size of a problem."""
    at = case.lengths if isinstance(case, Case) else None
    return math.prod((at.B, at.H, at.M, at.N) if at is not None else case.sizes.values())  # type: ignore[union-attr]


def many_tiles(checked: Checked, spec: object) -> AnyCase:
    """Return a problem of eight tiles along each dim that is tiled, so that 16 CTAs have several each."""
    if not isinstance(spec, FunctionSpecification):
        BM, BN = get_tile_sizes(checked)
        return Case("many tiles", Lengths(1, 8, 2, 8 * BM, 8 * BN))
    return Draw("many tiles", {d: 8 * n or 2 for d, n in find_tiles(checked).items()})


def pad(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose first columns will be those of x, without gaps.

    A copy to a device would drop gaps. It is x itself, unless its rows would not start at multiples of 16 bytes then.
    """
    unit = ALIGNED // x.element_size()
    dense = torch.empty_like(x).stride() == x.stride()
    if x.dim() < 2 or (dense and all(s % unit == 0 for s in x.stride()[:-1])):
        return x
    wider = torch.zeros((*x.shape[:-1], -(-x.shape[-1] // unit) * unit), dtype=x.dtype)
    wider[..., : x.shape[-1]] = x
    return wider


def judge_outputs(checked: Checked, of: Origin, launch: AnyLaunch, case: AnyCase) -> str:
    """Judge outputs as verification does: "" if they are right."""
    try:
        if isinstance(launch, FunctionLaunch):
            assert isinstance(case, Draw) and isinstance(of.spec, FunctionSpecification)
            judge_function(checked, of.spec, launch, case)
        else:
            assert isinstance(case, Case) and isinstance(of.spec, Specification)
            judge(launch, of.spec, case, checked.origin.span)
    except CuirError as error:
        return f"{error.diagnostics[0].code}: {error.diagnostics[0].message}"
    return ""


def observe(of: Origin, checked: Checked, todo: list[Problem], launched: Launching, device: str) -> dict[str, Any]:
    """Compare results up to the first problem with a fault: outcome, problem, message, number of launches.

    Outputs are NaN before each launch. `differs from run to run`: launches with the same inputs give different bits,
    whether or not one of them is right.
    """
    total = 0
    for problem in todo:
        runs = [_Run(checked, of, replace(problem.case, seed=problem.case.seed + i), device) for i in range(problem.data)]
        for run in runs * problem.rounds:
            total += 1
            failed = run.once(launched, problem.grid)
            if failed is not None:
                return _make_observation(failed[0], run.case, failed[1], total)
        for run in runs:
            words = [judge_outputs(checked, of, launch, run.case) for launch in run.distinct]
            if len(words) > 1:
                right = sum(n for n, w in zip(run.counts, words, strict=True) if not w)
                message = f"{right} of {problem.rounds} launches right, {len(words)} different results; {next((w for w in words if w), '')}"
                return _make_observation(DIFFERS, run.case, message, total)
            if words[0]:
                return _make_observation(WRONG, run.case, words[0], total)
    return {"outcome": RIGHT, "problem": "", "says": "", "launches": total}


def _make_observation(outcome: str, case: AnyCase, says: str, launches: int) -> dict[str, Any]:
    """Return the record of an observation."""
    return {"outcome": outcome, "problem": str(case), "says": says[:400], "launches": launches}


class _Run:
    """Problem with one set of inputs, its tensors on the device, and the distinct results so far.

    Memory is copied between host and device without a change of layout, so that no kernel of PyTorch runs, which a tool
    around the process would check as well.
    """

    def __init__(self, checked: Checked, of: Origin, case: AnyCase, device: str):
        self.case, self.launch = case, prepare_launch(of.program, checked, of.spec, case)
        values = self.launch.arguments()
        self.padded_values = {n: pad(v) for n, v in values.items() if isinstance(v, torch.Tensor)}
        self.device = {n: x.to(device, copy=True) for n, x in self.padded_values.items()}
        self.device_values = {n: self.device[n][..., : v.shape[-1]] if isinstance(v, torch.Tensor) else v for n, v in values.items()}
        self.distinct: list[AnyLaunch] = []
        self.counts: list[int] = []

    def once(self, launched: Launching, grid: int | None) -> tuple[str, str] | None:
        """Launch with poisoned outputs and record the result.

        Without a result, returns HANGS or ERROR with a message.
        """
        now = self.launch.fresh()
        try:
            for name in now.outputs:
                self.device[name].copy_(self.padded_values[name])
            launched(self.device_values, grid)
            for name, x in now.outputs.items():
                x.copy_(self.device[name].cpu()[..., : x.shape[-1]])
        except Hangs as error:
            return HANGS, str(error)
        except CuirError as error:
            return ERROR, f"{error.diagnostics[0].code}: {error.diagnostics[0].message}"
        except RuntimeError as error:  # of the driver, through PyTorch
            return ERROR, next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        for i, previous in enumerate(self.distinct):
            if all(_same(x, previous.outputs[n]) for n, x in now.outputs.items()):
                self.counts[i] += 1
                return None
        self.distinct.append(now)
        self.counts.append(1)
        return None


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors have the same bits."""
    kind = torch.int16 if a.element_size() == 2 else torch.int32
    return torch.equal(a.view(kind), b.view(kind))


# ---- on a GPU
_ready: tuple[Origin, Checked, Compiled] | None = None
_hung = False


def prepare(request: Mapping[str, Any]) -> dict[str, Any]:
    """Read and compile a fault; create the context of the GPU."""
    global _ready
    of = origin(request["kernel"])
    kernel = compile_kernel(parse(request["program"], "mutant.cuir"), kernel=of.kernel, consts=of.consts)
    torch.empty(1, device="cuda")
    _ready = of, check(of.program, of.kernel, of.consts), kernel.compiled
    return {}


def _launching(compiled: Compiled, seconds: float) -> Launching:
    """Return a function that launches within a limit of time."""
    from cuir.arguments.requirements import require_layout
    from cuir.runtime.launch import Launcher, bind_arguments

    checked = compiled.cuda.checked
    device = torch.device("cuda", torch.cuda.current_device())
    launcher = Launcher(compiled, device)

    def launch_grid(arguments: Mapping[str, Any], grid: int | None) -> None:
        global _hung
        bound = bind_arguments(checked, arguments)
        require_layout(checked, compiled.cuda.aligned, arguments)
        plan = launcher.plan(arguments, bound)
        plan = replace(plan, grid=min(plan.grid, grid or plan.grid))
        launcher.launch(plan, tuple(arguments[t.name].data_ptr() for t in checked.tensors))
        ended = torch.cuda.Event()
        ended.record()
        begin = time.monotonic()
        while not ended.query():
            if time.monotonic() - begin > seconds:
                _hung = True
                raise Hangs(f"a launch does not end within {seconds:g} s")
            time.sleep(0.0005)

    return launch_grid


def results(request: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the results of the prepared fault; `seconds`: the limit of one launch."""
    assert _ready is not None
    of, checked, compiled = _ready
    return observe(of, checked, problems(of, checked), _launching(compiled, request["seconds"]), "cuda")


def launches(request: Mapping[str, Any]) -> dict[str, Any]:
    """Launch the prepared fault under a tool around this process; results are not compared."""
    assert _ready is not None
    of, checked, compiled = _ready
    launched, todo = _launching(compiled, request["seconds"]), list_sanitizer_problems(of, checked)
    for total, problem in enumerate(todo, 1):
        failed = _Run(checked, of, problem.case, "cuda").once(launched, problem.grid)
        if failed is not None:
            return _make_observation(failed[0], problem.case, failed[1], total)
    return {"outcome": ENDED, "problem": "", "says": "", "launches": len(todo)}


def main() -> None:
    """Answer requests until the end.

    The context of a GPU that hangs cannot be destroyed, so nothing waits for that.
    """
    torch.set_num_threads(1)  # many such processes run at once
    code = serve({"prepare": prepare, "results": results, "launches": launches})
    if _hung:
        os._exit(1)
    sys.exit(code)


if __name__ == "__main__":
    main()
