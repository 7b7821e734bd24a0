"""Picture of a mask: its blocks, and the order in which a tile visits them.

A block keeps no pair, some, or all.

Section of a variant: its description, the code of its mods, the picture of its mask.
"""

from __future__ import annotations

import inspect
import math
import textwrap
from dataclasses import asdict, dataclass
from html import escape

import numpy as np
import torch
from pygments import highlight
from pygments.lexers import PythonLexer
from torch.nn.attention.flex_attention import BlockMask

from ..attn.splicing.captured_arguments import compute_captured_arguments
from ..attn.verification.splice_evaluator import Evaluator, collect_kernel_values
from ..checking.checked import Checked
from ..spec.function_specification import AnySpecification, FunctionSpecification
from ..spec.specification import Lengths, Specification
from ..syntax.nodes import Program
from ..text.diagnostics import CuirError
from ..verification.spec_dispatch import get_tile_sizes
from .program_html import FORMATTER

COLORS = {"none": "#f1efe9", "some": "#e0a458", "all": "#5b8fb9"}
_CELL, _LABEL = 18, 60
_MOST = 64  # rows and columns drawn


@dataclass(frozen=True)
class BlockMap:
    """Kinds of the blocks of one head, and for each the number of its visit.

    Attributes:
        shares: Share of the pairs that a block keeps, NaN for some, [tiles, blocks].
        visits: Number of the visit of a block, -1 for one that is skipped, [tiles, blocks]; None if unknown.
        order: Number of the unit of work that a tile is, [tiles]; None if unknown.
    """

    shares: np.ndarray
    visits: np.ndarray | None = None
    order: np.ndarray | None = None


def count_blocks(mask: torch.Tensor, BM: int, BN: int) -> BlockMap:
    """Return the kinds of the blocks of a mask, bool [M, N]."""
    M, N = mask.shape
    tiles, blocks = -(-M // BM), -(-N // BN)
    padded = torch.zeros(tiles * BM, blocks * BN)
    padded[:M, :N] = mask.float()
    sizes = torch.zeros(tiles * BM, blocks * BN)
    sizes[:M, :N] = 1.0
    counts, pairs = (x.view(tiles, BM, blocks, BN).sum((1, 3)) for x in (padded, sizes))
    return BlockMap((counts / pairs).numpy())


def find_visits(program: Program, checked: Checked, spec: Specification, lengths: Lengths, kinds: BlockMap) -> BlockMap:
    """Add the order of visits by the kernel's `kv_count` and `kv_block`, and of the tiles by its `tile`.

    For batch and head 0. Unknown where the functions cannot be evaluated.
    """
    funcs = program.funcs()
    if not {"kv_count", "kv_block"} <= funcs.keys():
        return kinds
    visits: np.ndarray = np.full(kinds.shares.shape, -1)
    try:
        captured = compute_captured_arguments(program, checked.origin, spec, lengths, consts=checked.consts)
        evaluator = Evaluator(program, collect_kernel_values(checked.origin, asdict(lengths), checked.consts, captured))
        for m in range(visits.shape[0]):
            number = int(np.asarray(evaluator.call("kv_count", 0, 0, m)[1]))
            for i in range(number):
                block = int(np.asarray(evaluator.call("kv_block", 0, 0, m, i)))
                if 0 <= block < visits.shape[1]:
                    visits[m, block] = i
        order = _find_order(evaluator, len(visits)) if "tile" in funcs else None
    except (CuirError, KeyError, TypeError):
        return kinds
    return BlockMap(kinds.shares, visits, order)


def _find_order(evaluator: Evaluator, tiles: int) -> np.ndarray | None:
    """Return the unit of work of each tile; None unless the units are the tiles, each once."""
    order: np.ndarray = np.full(tiles, -1)
    for t in range(tiles):
        m = int(np.asarray(evaluator.call("tile", t)[2]))
        if not 0 <= m < tiles:
            return None
        order[m] = t
    return order if order.min() >= 0 else None


def render_block_mask(mask: BlockMask) -> str:
    """Render the blocks of a BlockMask, for batch and head 0, with their places in its lists.

    In these, blocks with a mask come first.
    """
    counts = [(mask.kv_num_blocks, mask.kv_indices, math.nan), (mask.full_kv_num_blocks, mask.full_kv_indices, 1.0)]
    shares = np.zeros((mask.kv_num_blocks.shape[-1], mask.kv_indices.shape[-1]))
    visits = np.full(shares.shape, -1)
    for number, indices, share in counts:
        if number is None or indices is None:
            continue
        for m, count in enumerate(number[0, 0].tolist()):
            blocks = indices[0, 0, m, :count].cpu().numpy()
            shares[m, blocks] = share
            visits[m, blocks] = visits[m].max(initial=-1) + 1 + np.arange(count)
    text = f"BlockMask{tuple(mask.shape)}, blocks of {mask.BLOCK_SIZE}, {mask.sparsity():.1f} % are left out; batch and head 0"
    return f"<p>{escape(text)}; a number is a block's place in the lists.</p>{render_blocks(BlockMap(shares, visits), text)}"


def render_blocks(blocks: BlockMap, title: str = "") -> str:
    """Render blocks as SVG: a row for each tile of queries, a column for each block of keys."""
    tiles, columns = (min(n, _MOST) for n in blocks.shares.shape)
    more = f"<p>The first {tiles} of {blocks.shares.shape[0]} rows and {columns} of {blocks.shares.shape[1]} columns.</p>"
    cells = []
    for m in range(tiles):
        if blocks.order is not None:
            cells.append(
                f'<text x="{columns * _CELL + 6}" y="{m * _CELL + 12}" font-size="9" fill="#555">unit {int(blocks.order[m])}</text>'
            )
        for j in range(columns):
            share = float(blocks.shares[m, j])
            kind = "none" if share == 0 else "all" if share == 1 else "some"
            visit = -1 if blocks.visits is None else int(blocks.visits[m, j])
            pairs = "" if math.isnan(share) or kind != "some" else f", {share:.0%} of pairs"
            visited = f", visit {visit}" if visit >= 0 else "" if blocks.visits is None else ", skipped"
            x, y = j * _CELL, m * _CELL
            cells.append(
                f'<rect x="{x}" y="{y}" width="{_CELL - 1}" height="{_CELL - 1}" fill="{COLORS[kind]}">'
                f"<title>queries {m}, keys {j}: {kind}{pairs}{visited}</title></rect>"
            )
            if visit >= 0:
                cells.append(f'<text x="{x + _CELL / 2 - 0.5}" y="{y + 12}" font-size="8" text-anchor="middle">{visit}</text>')
    width, height = columns * _CELL + _LABEL * (blocks.order is not None), tiles * _CELL
    legend = "".join(
        f'<rect x="{90 * i}" y="{height + 8}" width="12" height="12" fill="{color}"/><text x="{90 * i + 16}" y="{height + 18}" font-size="11">{kind}</text>'
        for i, (kind, color) in enumerate(COLORS.items())
    )
    size = f'width="{max(width, 270)}" height="{height + 26}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size} font-family="sans-serif">'
        f"<title>{escape(title)}</title>{''.join(cells)}{legend}</svg>"
    ) + more * (blocks.shares.shape != (tiles, columns))


_TILES = 8  # tiles of queries in the picture of a mask


def render_variant(spec: AnySpecification) -> str:
    """Render the description of a specification and the code of its functions, where that is at hand."""
    doc = f"<p>{escape(spec.doc)}</p>" if spec.doc else ""
    functions = [spec.reference] if isinstance(spec, FunctionSpecification) else [spec.mask_mod, spec.score_mod]
    texts = [text for f in functions if (text := _find_code(f))]
    return doc + "".join(f"<pre>{highlight(text, PythonLexer(), FORMATTER)}</pre>" for text in dict.fromkeys(texts))


def render_mask(program: Program, checked: Checked, spec: Specification) -> str:
    """Render the blocks of a mask for some tiles, with the order in which the kernel visits them."""
    BM, BN = get_tile_sizes(checked)
    lengths = Lengths(1, 1, 1, _TILES * BM, _TILES * BM)
    mask = spec.compute_kept(lengths)[0, 0]
    picture = render_blocks(find_visits(program, checked, spec, lengths, count_blocks(mask, BM, BN)), f"mask of {spec.name}")
    text = f"{lengths.M} queries in tiles of {BM}, as many keys in blocks of {BN}; a number is a block's place in the order of visits; units of work are handed out in their order."
    return f"<p>{text}</p>{picture}"


def _find_code(function: object) -> str:
    """Return the source of a function; "" where Python has none."""
    if function is None:
        return ""
    try:
        return textwrap.dedent(inspect.getsource(inspect.unwrap(function)))  # type: ignore[arg-type]  # TypeError for others
    except (OSError, TypeError):
        return ""
