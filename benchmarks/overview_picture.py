"""Picture of docs/index.md: from a mask to CUDA, with the lines of each step as they are made: `make picture`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import corpus
import cuir
from benchmarks.barrier_pictures import ASYNC, PALE_ASYNC, PALE_GENERIC, save
from cuir.text.figures import load_pyplot

MASK = """\
def prefix_lm(b, h, q_idx, kv_idx):
    return (kv_idx < 256) | (kv_idx <= q_idx)
"""
QUESTIONS = "well-formed?\nevery kept pair visited?\nno race, deadlock or missing fence,\n    in a hundred schedules and more?\nthe right keys?\nthe right numbers?"
USES = "flex_attention, serving, training,\ntransformers, vLLM, your own operator"
INK, EDGE = "#222222", "#9a9a9a"


def collect_lines() -> dict[str, str]:
    """Transfer the mask to the expert kernel and lower the result; return lines of each program."""
    expert = cuir.parse(corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8"), "flash_fwd_sm90.cuir")
    space: dict[str, Any] = {}
    exec(MASK, space)
    program = cuir.transfer(expert, cuir.Specification("prefix_lm", space["prefix_lm"])).program
    cuda = cuir.lower(cuir.check(program, consts={"T": cuir.f16, "D": 128})).source
    return {
        "expert": find_keep(cuir.show(expert)) + "\n...\n" + find_wait(cuir.show(expert)),
        "adapted": find_keep(cuir.show(program)) + "\n...\n" + find_wait(cuir.show(program)),
        "cuda": find_cuda_wait(cuda),
    }


def find_keep(text: str) -> str:
    """Return the splice point of the mask, without its comment."""
    match = re.search(r"^def keep\(.*\):.*\n    return .*$", text, re.M)
    assert match is not None
    return re.sub(r"  +#.*", "", match[0])


def find_wait(text: str) -> str:
    """Return the wait for a tile of keys, and the release of its stage behind the product that reads it."""
    match = re.search(r"^ *(k_full\[s\]\.wait\(phase\)).*?^ *(mma_wait\(S\)).*?\n *(k_empty\[s\]\.arrive\(.*?\))", text, re.M | re.S)
    assert match is not None
    return "\n".join((match[1], "...", match[2], match[3]))


def find_cuda_wait(cuda: str) -> str:
    """Return the same wait in CUDA, behind the line of the program that it comes from."""
    match = re.search(r"^ *(// \d+: k_full\[s\]\.wait\(phase\)).*\n *(cuir::wait\(.*;)$", cuda, re.M)
    assert match is not None
    return f"{match[1]}\n{match[2]}"


def draw_overview(path: Path) -> None:
    """Draw the steps as boxes, with an arrow for each command."""
    pyplot = load_pyplot("make picture")
    lines = collect_lines()
    figure, axes = pyplot.subplots(figsize=(11.5, 4.6))

    def box(x: float, y: float, width: float, height: float, title: str, text: str, color: str) -> None:
        axes.add_patch(pyplot.Rectangle((x, y), width, height, facecolor=color, edgecolor=EDGE, linewidth=0.8))
        axes.text(x + 0.15, y + height - 0.32, title, fontsize=9, fontweight="bold", va="center", color=INK)
        axes.text(x + 0.15, y + height - 0.62, text, fontsize=7.6, family="monospace", va="top", linespacing=1.45, color=INK)

    def arrow(start: tuple[float, float], stop: tuple[float, float], words: str = "") -> None:
        axes.annotate("", stop, start, arrowprops={"arrowstyle": "-|>", "color": INK, "linewidth": 1.2})
        if words:
            middle = (start[0] + stop[0]) / 2, (start[1] + stop[1]) / 2 + 0.32
            axes.text(*middle, words, fontsize=9, fontweight="bold", ha="center", va="center", color=ASYNC)

    box(0, 5.0, 7.3, 1.7, "your mask, as for FlexAttention", MASK.rstrip(), PALE_GENERIC)
    box(0, 0.9, 7.3, 3.1, "an expert kernel in CuIR", lines["expert"], PALE_GENERIC)
    box(9.1, 2.0, 5.6, 3.1, "the adapted kernel in CuIR", lines["adapted"], PALE_ASYNC)
    box(16.4, 4.0, 6.6, 2.7, "on a CPU", QUESTIONS, "white")
    box(16.4, 2.1, 6.6, 1.4, "CUDA C++, a cubin for sm_90a", lines["cuda"], PALE_GENERIC)
    box(16.4, 0.2, 6.6, 1.4, "on a Hopper GPU", USES, "white")
    arrow((7.3, 5.6), (9.1, 4.4))
    arrow((7.3, 2.6), (9.1, 3.0), "transfer")
    arrow((14.7, 4.4), (16.4, 5.2), "verify")
    arrow((14.7, 3.0), (16.4, 2.8), "lower")
    arrow((19.7, 2.1), (19.7, 1.6))
    axes.set_xlim(-0.1, 23.1)
    axes.set_ylim(0.1, 6.8)
    axes.axis("off")
    save(figure, path)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, help="a .svg or .png file")
    draw_overview(parser.parse_args().path)


if __name__ == "__main__":
    main()
