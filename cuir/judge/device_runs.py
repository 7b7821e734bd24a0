"""Runs of a solution on a GPU, where there is one, in a process of its own.

`python -m cuir.judge.device_runs SOLUTION REQUEST ANSWER`: the answer grows by each problem, so that a crash keeps the others.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from ..spec.loading import import_file
from .extension_builds import join_sources, list_functions
from .solution_entries import find_entry

# bytes of NaN that the allocator gives out next: from its large blocks, and in halves from what small ones leave
POISONED = (1 << 26, *(1 << n for n in range(20, 8, -1) for _ in range(2)))
REPEATS = 2
COMPILER_ERROR = re.compile(r"\): error\b|:\d+: (?:fatal )?error\b")  # as nvcc and its host compiler write it


class DeviceRequest(NamedTuple):
    """A problem: arguments of the module, its parameters, and inputs of several calls."""

    init: Sequence[object]
    state: dict[str, torch.Tensor]
    inputs: Sequence[Sequence[object]]


class DeviceRun(NamedTuple):
    """Outcome of a solution on one problem.

    Attributes:
        calls: For each inputs, the outputs of each repeat.
        error: What it raised, "" if it returned.
        is_lost: Whether the process, or its GPU, is of no more use.
    """

    calls: list[list[list[torch.Tensor]]]
    error: str = ""
    is_lost: bool = False


def has_device() -> bool:
    """Return whether a GPU can run solutions."""
    return torch.cuda.is_available()


def run_on_device(solution: Path, requests: Sequence[DeviceRequest], seconds: float) -> list[DeviceRun]:
    """Return what a solution did with each problem, up to the first that it is lost in. Raises RuntimeError if it does not load."""
    with tempfile.TemporaryDirectory() as folder:
        request, answer = Path(folder, "request"), Path(folder, "answer")
        torch.save([(list(r.init), r.state, [list(x) for x in r.inputs]) for r in requests], request)
        command = [sys.executable, "-m", "cuir.judge.device_runs", str(solution.resolve()), str(request), str(answer)]
        # a folder of its own for extensions: a lock of a process that was killed would hold up the next
        environment = {**os.environ, "TORCH_EXTENSIONS_DIR": str(Path(folder, "extensions"))}
        try:
            process = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False, env=environment)
            words = find_cause(process.stdout + process.stderr) or f"exit code {process.returncode}"
        except subprocess.TimeoutExpired:
            words = f"it has not returned after {seconds:.0f} s"
        if not answer.is_file():
            raise RuntimeError(words)
        runs = [DeviceRun(*row) for row in torch.load(answer, weights_only=True)]
        if len(runs) < len(requests) and not any(r.is_lost for r in runs):
            runs.append(DeviceRun([], words, True))
        return runs


def find_cause(output: str) -> str:
    """Return the first error of a compiler, whose log says more than the exception behind it; else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next((line for line in lines if COMPILER_ERROR.search(line)), lines[-1] if lines else "")


def load_entry(path: Path) -> Callable[..., object]:
    """Load a solution with PyTorch's own extensions. Raises LookupError."""
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        os.environ.setdefault("TORCH_CUDA_ARCH_LIST", f"{major}.{minor}{'a' if major >= 9 else ''}")
    if path.suffix == ".cu":
        from torch.utils.cpp_extension import load_inline

        text = path.read_text(encoding="utf-8")
        name = "".join(c if c.isalnum() else "_" for c in path.stem)
        module = load_inline(name=name, cpp_sources="", cuda_sources=join_sources([text], list_functions(text)))
    else:
        module = import_file(path, "the solution")
    entry: Callable[..., object] = getattr(module, find_entry(module, path.suffix == ".cu"))
    return entry


def make_function(entry: Callable[..., object], request: DeviceRequest, device: str) -> Callable[..., object]:
    """Return what is called: a function as it is, a module with the reference's parameters if it has them."""
    if not isinstance(entry, type):
        return entry
    torch.manual_seed(0)
    made = entry(*[x.to(device) if isinstance(x, torch.Tensor) else x for x in request.init])
    assert isinstance(made, torch.nn.Module)
    own = made.state_dict()
    if own.keys() == request.state.keys() and all(own[n].shape == x.shape for n, x in request.state.items()):
        made.load_state_dict(request.state)
    return made.to(device)


def run_request(entry: Callable[..., object], request: DeviceRequest, device: str) -> DeviceRun:
    """Run one problem; an error of the solution is in the answer."""
    calls: list[list[list[torch.Tensor]]] = []
    try:
        function = make_function(entry, request, device)
        for inputs in request.inputs:
            calls.append([])
            for _ in range(REPEATS):
                values = [x.to(device, copy=True) if isinstance(x, torch.Tensor) else x for x in inputs]
                poison_memory(device)
                with torch.no_grad():
                    returned = function(*values)
                outputs = list(returned) if isinstance(returned, (tuple, list)) else [returned]
                calls[-1].append([x.detach().cpu().contiguous() for x in outputs if isinstance(x, torch.Tensor)])
    except Exception as error:  # a solution may raise anything
        return DeviceRun([], f"{type(error).__name__}: {error}".partition("\n")[0], not is_alive())
    return DeviceRun(calls) if is_alive() else DeviceRun([], "the GPU reports an error behind the call", True)


def poison_memory(device: str) -> None:
    """Fill memory with NaN, and free it."""
    held = [torch.full((size,), 0xFF, dtype=torch.uint8, device=device) for size in POISONED]
    del held


def is_alive() -> bool:
    """Return whether the GPU takes further work: it does not behind a bad address."""
    try:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def main() -> None:
    """Run a request, and write its answer."""
    path, request, answer = (Path(a) for a in sys.argv[1:4])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    entry = load_entry(path)
    runs: list[DeviceRun] = []
    poison_memory(device)  # before inputs take their part
    for row in torch.load(request, weights_only=True):
        runs.append(run_request(entry, DeviceRequest(*row), device))
        torch.save([tuple(r) for r in runs], answer.with_suffix(".part"))
        answer.with_suffix(".part").replace(answer)
        if runs[-1].is_lost:
            return


if __name__ == "__main__":
    main()
