"""Section of a variant: its description, the code of its mods, the picture of its mask."""

from __future__ import annotations

import inspect
import textwrap
from html import escape

from pygments import highlight
from pygments.lexers import PythonLexer

from ..checking.checked import Checked
from ..spec.function_specification import AnySpecification, FunctionSpecification
from ..spec.specification import Lengths, Specification
from ..syntax.nodes import Program
from ..verification.spec_dispatch import get_tile_sizes
from .mask_picture import count_blocks, find_visits, render_blocks
from .program_html import FORMATTER

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
