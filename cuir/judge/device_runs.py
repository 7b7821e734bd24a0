"""Runs of a solution on a GPU, where there is one: `python -m cuir.judge.device_runs REQUEST ANSWER`, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from ..spec.loading import import_file
from .extension_builds import MODULE, list_functions

POISON = 1 << 26  # bytes of NaN that the allocator gives out next
ENTRIES = ("ModelNew", "Model", "solution", "forward")
REPEATS = 2


def has_device() -> bool:
    """Return whether a GPU can run solutions."""
    return torch.cuda.is_available()


def run_on_device(
    solution: Path, init: Sequence[object], state: dict[str, torch.Tensor], inputs: Sequence[Sequence[object]], seconds: float
) -> list[list[list[torch.Tensor]]]:
    """Return the outputs for each inputs, twice. Raises RuntimeError with what the process said."""
    with tempfile.TemporaryDirectory() as folder:
        request, answer = Path(folder, "request"), Path(folder, "answer")
        torch.save({"init": list(init), "state": state, "inputs": [list(x) for x in inputs]}, request)
        command = [sys.executable, "-m", "cuir.judge.device_runs", str(solution.resolve()), str(request), str(answer)]
        try:
            process = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"it has not returned after {seconds:.0f} s") from None
        if process.returncode or not answer.is_file():
            raise RuntimeError((process.stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1])
        result = torch.load(answer, weights_only=True)
        assert isinstance(result, list)
        return result


def load_entry(path: Path, init: Sequence[object], state: dict[str, torch.Tensor]) -> Callable[..., object]:
    """Load a solution with PyTorch's own extensions. Raises LookupError."""
    if path.suffix == ".cu":
        from torch.utils.cpp_extension import load_inline

        text = path.read_text(encoding="utf-8")
        functions = None if MODULE.search(text) else list_functions(text)
        module = load_inline(name=path.stem, cpp_sources="", cuda_sources=text, functions=functions)
    else:
        module = import_file(path, "the solution")
    name = next((n for n in ENTRIES if hasattr(module, n)), None)
    if name is None:
        raise LookupError(f"it has none of {', '.join(ENTRIES)}")
    entry: Callable[..., object] = getattr(module, name)
    if isinstance(entry, type):
        torch.manual_seed(0)
        made = entry(*[x.cuda() if isinstance(x, torch.Tensor) else x for x in init])
        own = made.state_dict()
        if own.keys() == state.keys() and all(own[n].shape == x.shape for n, x in state.items()):
            made.load_state_dict(state)
        entry = made.cuda()
    return entry


def main() -> None:
    """Run a request, and write its answer."""
    path, request, answer = (Path(a) for a in sys.argv[1:4])
    given = torch.load(request, weights_only=True)
    entry = load_entry(path, given["init"], given["state"])
    answers = []
    for inputs in given["inputs"]:
        repeats = []
        for _ in range(REPEATS):
            values = [x.cuda() if isinstance(x, torch.Tensor) else x for x in inputs]
            poison = torch.full((POISON,), 0xFF, dtype=torch.uint8, device="cuda")
            del poison
            with torch.no_grad():
                returned = entry(*values)
            torch.cuda.synchronize()
            outputs = list(returned) if isinstance(returned, (tuple, list)) else [returned]
            repeats.append([x.detach().cpu().contiguous() for x in outputs if isinstance(x, torch.Tensor)])
        answers.append(repeats)
    torch.save(answers, answer)


if __name__ == "__main__":
    main()
