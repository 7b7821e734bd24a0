"""Seconds to the first result of rules that no process has seen, and of the same rules in a second process.

    python -m benchmarks.first_results                         # on a GPU: a cache folder of its own, then the same folder again
    python -m benchmarks.first_results --launch-nothing        # without a GPU: all but the launch, as for an H200
    python -m benchmarks.first_results --profile second.prof   # and shows the parts of the first call of one more second process does

Processes run one after another. The clock starts after `import torch` and `import cuir.flex`, whose times are shown
apart, and after tensors are made; a call ends when the device has finished.
"""

from __future__ import annotations

import argparse
import json
import os
import pstats
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

GPU = ("NVIDIA H200 sm_90 132", 132)  # for which settings are chosen where nothing is launched


def make_rules(device: str) -> Mapping[str, Callable[[], tuple[Any, Any]]]:
    """Return functions that make a score_mod and a mask_mod, by name; each kind of splice is there."""
    import torch

    documents = torch.arange(1024, device=device).div(300, rounding_mode="floor")
    slopes = torch.tensor([2.0 ** -(i + 1) for i in range(4)], device=device)
    bias = torch.linspace(-1, 1, 2047, device=device)
    return {
        "documents, soft cap": lambda: (
            lambda s, b, h, q, k: 30.0 * torch.tanh(s / 30.0),
            lambda b, h, q, k: (documents[q] == documents[k]) & (q >= k),
        ),
        "causal": lambda: (None, lambda b, h, q, k: q >= k),
        "window of 256, slopes": lambda: (lambda s, b, h, q, k: s + slopes[h] * (k - q), lambda b, h, q, k: (q >= k) & (q - k < 256)),
        "bias by distance": lambda: (lambda s, b, h, q, k: s + bias[q - k + 1023], None),
        "prefix": lambda: (None, lambda b, h, q, k: (k < 200) | (q >= k)),
    }


def launch_nothing() -> None:
    """Replace the device, and what loads and starts kernels, by stand-ins."""
    from cuir.attn.kernels import attention_kernel, autograd
    from cuir.performance.search import tuning_records as cache
    from cuir.runtime import launch

    class NoLauncher:
        def __init__(self, compiled: Any, device: Any):
            assert compiled.cubin

        def plan(self, arguments: Any, bound: Any) -> Any:
            return launch.Plan(0, {}, (), (), (), ())

        def launch(self, plan: Any, places: Any, captured: Any = None) -> bool:
            return True

    attention_kernel.need_gpu = autograd.need_gpu = lambda device, arch: None
    cache.device = lambda: GPU
    launch.require_device = lambda checked, device: device  # type: ignore[assignment,return-value]
    launch.Launcher = NoLauncher  # type: ignore[assignment,misc]


def run_process(head_dim: int, without_launch: bool, profile: str | None) -> dict[str, float]:
    """Return seconds of this process: of its imports, and of the first call of each rule."""
    seconds = {}
    start = time.perf_counter()
    import torch

    seconds["import torch"] = time.perf_counter() - start
    start = time.perf_counter()
    import torch.nn.attention.flex_attention

    seconds["import of PyTorch's flex_attention"] = time.perf_counter() - start
    start = time.perf_counter()
    import cuir.flex

    seconds["import cuir.flex"] = time.perf_counter() - start
    device = "cpu" if without_launch else "cuda"
    if without_launch:
        launch_nothing()
    q, k, v = (torch.randn(2, 4, 1024, head_dim, device=device).bfloat16() for _ in range(3))
    torch.ones(2, requires_grad=True).mul(1).backward(torch.ones(2))  # PyTorch imports sympy for the first backward pass of a process
    finish = (lambda: None) if without_launch else torch.cuda.synchronize
    finish()
    for name, make in make_rules(device).items():
        score_mod, mask_mod = make()
        profiler = None
        if profile:
            import cProfile

            profiler = cProfile.Profile()
            profiler.enable()
        start = time.perf_counter()
        block_mask = None if mask_mod is None else cuir.flex.create_block_mask(mask_mod, None, None, 1024, 1024, device=device)
        cuir.flex.flex_attention(q, k, v, score_mod, block_mask)
        finish()
        seconds[name] = time.perf_counter() - start
        if profiler is not None:
            profiler.disable()
            profiler.dump_stats(profile or "")
            profile = None
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    start = time.perf_counter()
    block_mask = cuir.flex.create_block_mask(lambda b, h, q, k: (q >= k) & (q - k < 300), None, None, 1024, 1024, device=device)
    cuir.flex.flex_attention(q, k, v, None, block_mask).backward(torch.ones_like(q))
    finish()
    seconds["window of 300, and its gradients"] = time.perf_counter() - start
    return seconds


def run_apart(arguments: argparse.Namespace, folder: str, profile: str | None = None) -> dict[str, float]:
    """Run one process of this module with a cache folder; return its seconds."""
    command = [sys.executable, "-m", "benchmarks.first_results", "--process", "--head-dim", str(arguments.head_dim)]
    command += ["--launch-nothing"] * arguments.launch_nothing + (["--profile", profile] if profile else [])
    environment = {**os.environ, "CUIR_CACHE": folder}
    output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    result: dict[str, float] = json.loads(output.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5, help="of second processes; the median and the range are shown")
    parser.add_argument("--cache", type=Path, help="folder that is kept; a first process runs if it is empty")
    parser.add_argument("--launch-nothing", action="store_true", help="all but the launch, without a GPU")
    parser.add_argument("--profile", metavar="FILE", help="cProfile of the first call of one more second process")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--process", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.process:
        print(json.dumps(run_process(arguments.head_dim, arguments.launch_nothing, arguments.profile)), flush=True)
        os._exit(0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = str(arguments.cache or temporary)
        is_warm = Path(folder).is_dir() and any(Path(folder).iterdir())
        first = None if is_warm else run_apart(arguments, folder)
        repeats = [run_apart(arguments, folder) for _ in range(arguments.rounds)]
        if arguments.profile:
            run_apart(arguments, folder, os.path.abspath(arguments.profile))
            pstats.Stats(arguments.profile, stream=sys.stderr).sort_stats("cumulative").print_stats(60)
    if arguments.json:
        print(json.dumps({"head_dim": arguments.head_dim, "first": first, "second": repeats}))
        return
    print(f"{'seconds':36} {'first process':>14} {'second process':>15}   range")
    for name in repeats[0]:
        times = [seconds[name] for seconds in repeats]
        cell = f"{first[name]:14.2f}" if first is not None else f"{'':14}"
        print(f"{name:36} {cell} {statistics.median(times):15.3f}   {min(times):.3f} to {max(times):.3f}")


if __name__ == "__main__":
    main()
