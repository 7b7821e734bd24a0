"""Runs a function in a process of its own, with a limit of time: a kernel that hangs or faults ends one test and not the suite."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MARK = "result: "


def run_isolated(function: Callable[..., Any], *args: Any, seconds: float = 120.0) -> Any:
    """Return the result of a top-level function of a module under `tests`, for arguments that JSON can say.

    Raises AssertionError with what it printed, if it raises, faults, or takes longer than `seconds`.
    """
    command = [sys.executable, "-m", "tests.gpu.isolation", function.__module__, function.__name__, json.dumps(args)]
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH")) if p)
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            text, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            text, _ = process.communicate()
            raise AssertionError(f"{function.__name__}{args} hangs: no end after {seconds} s\n{text[-3000:]}") from None
    assert process.returncode == 0, f"{function.__name__}{args} ended with {process.returncode}\n{text[-5000:]}"
    results = [line for line in text.splitlines() if line.startswith(MARK)]
    return json.loads(results[-1].removeprefix(MARK))


def main() -> None:
    import torch

    torch.set_num_threads(2)  # several such processes run at once
    module, function, args = sys.argv[1:]
    result = getattr(importlib.import_module(module), function)(*json.loads(args))
    print(f"\n{MARK}{json.dumps(result)}", flush=True)
    os._exit(0)  # an interpreter that ends while a thread of autograd lets go of Python objects aborts


if __name__ == "__main__":
    main()
