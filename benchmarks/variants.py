"""Table and figure of the corpus's variants in docs/variants.md: `make docs`."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

import corpus
from benchmarks.picture import reduce_colours
from cuir.attn.splicing.splice import transfer
from cuir.spec.loading import as_specification
from cuir.spec.specification import Lengths, Specification
from cuir.syntax.parser import parse

BEGIN, END = "<!-- variants: made by `make docs` -->\n", "<!-- end of variants -->\n"
QUERIES, KEYS, BLOCK = 84, 96, 12  # of the picture; more keys than queries, to show the alignment of a mask
COLUMNS = 6
# Small enough for the picture; parameters without an entry keep their default.
SHOWN_PARAMETERS: dict[str, dict[str, int | float]] = {
    "alibi": {"heads": 6}, "alibi_causal": {"heads": 6}, "causal_blockwise": {"length": 24}, "causal_document": {"length": 30, "stagger": 0}, "combo": {"prefix": 30},
    "document": {"length": 30, "stagger": 0}, "global_sliding_window": {"left": 14, "right": 14, "tokens": 6}, "local": {"left": 20, "right": 8},
    "prefix_document": {"length": 40, "prefix": 14, "stagger": 0}, "prefix_lm": {"prefix": 30}, "qk_sparse": {"start": 12, "length": 24},
    "relative_position": {"weight": 0.03}, "relative_position_table": {"radius": 16}, "share_question": {"question": 16, "answer": 10, "answers": 3},
    "sliding_window": {"window": 24}, "sliding_window_global": {"window": 20, "tokens": 8},
}  # fmt: skip
_WHOLE, _SOME, _EMPTY = (
    (0.16, 0.36, 0.60),
    (0.98, 0.90, 0.78),
    (0.93, 0.93, 0.93),
)  # a kept pair; a dropped one in a block that is visited, or is not


# ---- the table
def table() -> str:
    """Return a row for each variant: definition, visited blocks, captured values."""
    origin = parse(corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8"))
    lines = ["| variant | definition | blocks | parameters=defaults |", "|---|---|---|---|"]
    for name, place in corpus.variants().items():
        factory = corpus.variant(name)
        spec = as_specification(factory, name)
        result = transfer(origin, spec)
        funcs = set(result.program.funcs())
        if result.lists is not None:
            blocks = "lists"
        elif spec.mask_mod is None:
            blocks = "all"
        else:
            blocks = "runs" if "rank" in funcs else "run" if "spans" in funcs else "prefix"
        parameters = ", ".join(
            f"`{p.name}={p.default}`" if p.default is not None else f"`{p.name}`" for p in inspect.signature(factory).parameters.values()
        )
        lines.append(f"| [`{name}`](../corpus/variants/{place.name}) | {definition(spec)} | {blocks} | {parameters} |")
    return "\n".join(lines) + "\n"


def definition(spec: Specification) -> str:
    """Return the first sentence of a variant's docstring, with its formulas as code, without ", no mask"."""
    text = re.split(r"(?<=[a-z0-9)\]])[.:;] |\n\s*\n|\.\n", spec.doc.strip())[0].rstrip(".")
    text = " ".join(text.split()).replace("|", "\\|").removesuffix(", no mask")
    return f"`{text}`" if re.match(r"(keep|score|p) = ", text) else text


def with_table(page: str) -> str:
    """Return the page with the current table."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


# ---- the picture
def image(spec: Specification) -> np.ndarray:
    """Return the colours of all pairs, [QUERIES, KEYS, 3].

    A kept pair is as strong as its weight relative to the largest of its query, where all products are 1.
    """
    at = Lengths(1, 6, 6, QUERIES, KEYS)
    logits = spec.scores(torch.ones(1, 6, QUERIES, KEYS, dtype=torch.float64), at)
    mask = spec.mask(at)[0, 2]
    p = spec.weights(logits, at)[0][0, 2]
    strength = torch.where(mask, p / p.amax(-1, keepdim=True).clamp(min=1e-300), 0.0).numpy()[..., None]
    some = mask.view(QUERIES // BLOCK, BLOCK, KEYS // BLOCK, BLOCK).any(3).any(1).repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    ground = np.where(some.numpy()[..., None], np.array(_SOME), np.array(_EMPTY))
    opacity = np.where(mask.numpy()[..., None], 0.15 + 0.85 * strength, 0.0)
    colours: np.ndarray = ground * (1 - opacity) + np.array(_WHOLE) * opacity
    return colours


def draw(path: Path, names: Mapping[str, object]) -> None:
    """Draw all variants into a file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = -(-len(names) // COLUMNS)
    figure = Figure(figsize=(COLUMNS * 1.75, rows * 1.8), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, COLUMNS, squeeze=False).flatten()
    for axes in grid:
        axes.set_axis_off()
    for axes, name in zip(grid, names):
        spec = as_specification(corpus.variant(name), name, SHOWN_PARAMETERS.get(name, {}))
        axes.imshow(image(spec), interpolation="nearest", extent=(0, KEYS, QUERIES, 0))
        for x in range(0, KEYS + 1, BLOCK):
            axes.plot([x, x], [0, QUERIES], color="white", linewidth=0.4)
        for y in range(0, QUERIES + 1, BLOCK):
            axes.plot([0, KEYS], [y, y], color="white", linewidth=0.4)
        axes.set_title(name, fontsize=7.5, family="DejaVu Sans Mono", pad=3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, metadata={"Software": None} if path.suffix == ".png" else None)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path, help="the page whose table is made anew")
    parser.add_argument("picture", type=Path, help="a .png or .svg file")
    options = parser.parse_args()
    text = options.page.read_text(encoding="utf-8")
    options.page.write_text(with_table(text), encoding="utf-8")
    draw(options.picture, corpus.variants())
    reduce_colours(options.picture)


if __name__ == "__main__":
    main()
