"""Figure of roles, barriers and engines of the expert attention kernel over time: `make picture`.

It is drawn from a run in the interpreter.
"""

from __future__ import annotations

import argparse
from importlib.resources import files
from pathlib import Path

import torch

import cuir
from cuir.interp import Trace, plot_trace
from cuir.syntax.types import F16

HEADS, LENGTH, DIM = 1, 1024, 128
START, STOP = 0.0, 17200.0  # cycles shown


def record() -> Trace:
    """Run one CTA on a head of causal attention, longest row of tiles first; return the trace."""
    program = cuir.parse((files("corpus") / "kernels" / "flash_fwd_sm90.cuir").read_text(encoding="utf-8"), "flash_fwd_sm90.cuir")
    checked = cuir.check(program, consts={"T": F16, "D": DIM, "PINGPONG": True})
    q, k, v = (torch.randn(1, HEADS, LENGTH, DIM).to(torch.float16) for _ in range(3))
    trace = Trace()
    arguments = {"Q": q, "K": k, "V": v, "O": torch.empty_like(q), "LSE": torch.empty(1, HEADS, LENGTH), "scale": DIM**-0.5}
    cuir.run(checked, arguments, grid=1, trace=trace)
    return trace


def reduce_colours(path: Path) -> None:
    """Write a PNG again with a palette of 256 colours, a third of its size."""
    from PIL import Image

    if path.suffix == ".png":
        Image.open(path).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, help="a .png or .svg file")
    path = parser.parse_args().path
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    plot_trace(record(), path, START, STOP)
    reduce_colours(path)


if __name__ == "__main__":
    main()
