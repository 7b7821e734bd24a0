"""CPU time of tracing the mods of the corpus: by the project's tracer, by make_fx, by Dynamo.

`python -m benchmarks.mod_tracers` prints a row for each, every one in a process of its own: mods that it traces, CPU
milliseconds of the first mod (with imports) and of the median mod.
"""

from __future__ import annotations

import argparse
import inspect
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import torch

import corpus
from cuir.attn.tracing.trace import SAMPLE, trace
from cuir.spec.loading import as_specification
from cuir.spec.specification import LENGTHS, Specification

Mod = Callable[..., object]


def list_mods(spec: Specification) -> Iterator[tuple[Mod, list[torch.Tensor]]]:
    """Yield the mods of a specification, closed over their keyword parameters, with sample arguments."""
    values = {**{n: getattr(SAMPLE, n) for n in LENGTHS}, **spec.values(SAMPLE)}
    indices = [torch.zeros((), dtype=torch.int32) for _ in range(4)]
    for mod, arguments in ((spec.mask_mod, indices), (spec.score_mod, [torch.zeros(()), *indices])):
        if mod is not None:
            names = [p.name for p in inspect.signature(mod).parameters.values() if p.kind is p.KEYWORD_ONLY and p.name in values]
            yield close_over(mod, {n: values[n] for n in names}), arguments


def close_over(mod: Mod, keywords: dict[str, object]) -> Mod:
    return lambda *arguments: mod(*arguments, **keywords)


def trace_by_make_fx(spec: Specification) -> None:
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
    from torch.fx.experimental.proxy_tensor import make_fx

    for mod, arguments in list_mods(spec):
        with TransformGetItemToIndex():
            make_fx(mod)(*arguments)


def trace_by_dynamo(spec: Specification) -> None:
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    for mod, arguments in list_mods(spec):
        torch.compiler.reset()
        with TransformGetItemToIndex():
            torch.compile(mod, backend="eager", fullgraph=True)(*arguments)


TRACERS: dict[str, Callable[[Specification], object]] = {"tracer": trace, "make_fx": trace_by_make_fx, "dynamo": trace_by_dynamo}


def measure(name: str) -> tuple[int, list[float]]:
    """Return how many variants of the corpus an engine traces, and the CPU milliseconds of each."""
    traced, times = 0, []
    for variant in sorted(corpus.variants()):
        spec = as_specification(corpus.variant(variant), variant)
        start = time.process_time()
        try:
            TRACERS[name](spec)
            traced += 1
        except Exception as error:  # an engine may refuse a mod in any way
            print(f"{variant}: {type(error).__name__}", file=sys.stderr)
        times.append((time.process_time() - start) * 1e3)
    return traced, times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tracer", nargs="?", choices=TRACERS)
    name = parser.parse_args().tracer
    if name is None:
        for each in TRACERS:
            subprocess.run([sys.executable, "-m", "benchmarks.mod_tracers", each], check=True)
        return
    traced, times = measure(name)
    print(f"{name:8} traces {traced} of {len(times)}; first {times[0]:.1f} ms, median {statistics.median(times):.1f} ms")


if __name__ == "__main__":
    main()
