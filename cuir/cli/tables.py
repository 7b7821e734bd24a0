"""Facts, tables, programs and differences on a terminal.

Columns fit a terminal; for programs that read them, a row is a line.
"""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..text.phrases import count_noun
from .output import make_styled_text, stdout

if TYPE_CHECKING:
    from ..checking.checked import Checked
    from ..ops import Op

GAP = 2  # spaces between columns
NARROWEST = 12  # characters below which no column is wrapped
EMPTY = "-"  # an empty cell, where columns are counted
SEPARATOR = re.compile(r"\s+|(?<=,)")  # of the parts of a cell that stay whole: lists of settings have commas alone
Line = list[str]  # cells of a line, padded


class _Wrapper(textwrap.TextWrapper):
    """Wrapper that may break behind commas, too."""

    def _split(self, text: str) -> list[str]:
        return [part for chunk in super()._split(text) for part in re.split(r"(?<=,)", chunk) if part]


def layout_table(head: Sequence[str], rows: Iterable[Sequence[object]], width: int | None) -> list[Line]:
    """Return the lines of a table, each as its padded cells.

    Args:
        head: Names of the columns, all empty for none.
        rows: Cells.
        width: Columns of the terminal, within which cells wrap; None for one line a row, where no cell is empty.
    """
    cells = [[_flatten(cell, width is None) for cell in row] for row in ([head] if any(head) else [])] + [
        [_flatten(cell, width is None) for cell in row] for row in rows
    ]
    columns = max((len(row) for row in cells), default=0)
    cells = [row + [""] * (columns - len(row)) for row in cells]
    natural = [max((len(part) for row in cells for part in row[c].split("\n")), default=0) for c in range(columns)]
    longest_words = [max((len(word) for row in cells for word in SEPARATOR.split(row[c])), default=0) for c in range(columns)]
    widths = natural if width is None else fit_widths(natural, longest_words, width - GAP * (columns - 1))
    return [line for row in cells for line in _wrap_row(row, widths)]


def fit_widths(natural: Sequence[int], words: Sequence[int], total: int) -> list[int]:
    """Return widths of columns whose sum is at most `total`, if columns of NARROWEST allow it.

    The widest columns are narrowed first, all alike. Words are cut only where they do not fit otherwise.
    """
    widths = list(natural)
    for least in ([max(NARROWEST, word) for word in words], words, [NARROWEST] * len(widths)):
        widths = _narrow(widths, least, total)
    return widths


def _narrow(widths: Sequence[int], least: Sequence[int], total: int) -> list[int]:
    """Narrow columns until the sum of their widths is at most `total`.

    Those that are wider than their least width are narrowed, the widest first.
    """
    widths = list(widths)
    while sum(widths) > total and (wide := [c for c, w in enumerate(widths) if w > least[c]]):
        widest = max(wide, key=lambda c: widths[c])
        rivals = [widths[c] for c in wide if c != widest]
        below = max(rivals, default=0)
        widths[widest] = max(least[widest], min(below, widths[widest] - 1), widths[widest] - (sum(widths) - total))
    return widths


def _flatten(cell: object, single: bool) -> str:
    """Return the text of a cell: one line that is not empty, where rows are lines."""
    text = str(cell)
    return (" ".join(text.split()) if "\n" in text else text.strip()) or EMPTY if single else text


def _wrap_row(row: Sequence[str], widths: Sequence[int]) -> list[Line]:
    """Return the lines of a row."""
    wrapped = [_wrap(cell, width) for cell, width in zip(row, widths)]
    lines = []
    for i in range(max(map(len, wrapped), default=0)):
        parts = [cell[i] if i < len(cell) else "" for cell in wrapped]
        last = max((c for c, part in enumerate(parts) if part), default=0)
        lines.append([part.ljust(width + GAP) if c < last else part for c, (part, width) in enumerate(zip(parts, widths)) if c <= last])
    return lines


def _wrap(text: str, width: int) -> list[str]:
    """Return a cell as lines of at most `width` characters; words that are longer are cut."""
    lines: list[str] = []
    for line in text.split("\n"):
        lines += [line] if len(line) <= width else _Wrapper(width, break_on_hyphens=False).wrap(line) or [""]
    return lines


def facts(checked: Checked) -> dict[str, Any]:
    """Return the facts that checking found about a kernel, as data and as lines to read."""
    from ..ops.limits import TARGETS

    limit = TARGETS[checked.arch].shared_bytes
    roles = [{"name": r.name, "workers": r.workers, "threads": r.threads, "registers": r.registers} for r in checked.roles]
    parameters = describe_parameters(checked)
    lines = [
        "takes     " + ", ".join(f"{p['name']}: {p['type']}{' (written)' if p['written'] else ''}" for p in parameters),
        "dims      " + (", ".join(checked.dims) or "none"),
        "consts    " + (", ".join(f"{name} = {value}" for name, value in checked.consts.items()) or "none"),
        "roles     "
        + "; ".join(
            f"{r.name}: {r.workers} x {r.threads} threads" + (f", {r.registers} registers" if r.registers else "") for r in checked.roles
        ),
        f"shared    {checked.shared_bytes:,} of {limit:,} bytes in {count_noun(len(checked.shared), 'array')}",
        "barriers  " + (", ".join(f"{b.name}{f'[{b.stages}]' if b.stages else ''}" for b in checked.barriers.values()) or "none"),
    ]
    return {
        "name": checked.name,
        "arch": checked.arch,
        "cluster": checked.cluster,
        "threads": checked.threads,
        "consts": {name: str(value) if not isinstance(value, (int, float)) else value for name, value in checked.consts.items()},
        "parameters": parameters,
        "dims": list(checked.dims),
        "roles": roles,
        "shared_bytes": checked.shared_bytes,
        "barriers": {b.name: {"kind": b.kind, "count": b.count, "stages": b.stages} for b in checked.barriers.values()},
        "lines": lines,
    }


def describe_parameters(checked: Checked) -> list[dict[str, Any]]:
    """Describe the tensors and scalars that a kernel takes, in the order of its signature.

    Its consts are filled in.
    """
    tensors, scalars = {t.name: t for t in checked.tensors}, {s.name: s for s in checked.scalars}
    described = []
    for name in (p.name for p in checked.origin.params):
        if name in tensors:
            t = tensors[name]
            kind = "Scratch" if t.scratch else "Global"
            described.append({"name": name, "type": f"{kind}[{', '.join(map(str, (t.dtype, *t.dims)))}]", "written": t.written})
        elif name in scalars:
            described.append({"name": name, "type": str(scalars[name].dtype), "written": False})
    return described


def print_table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a plain table: cells wrap on a terminal; elsewhere a row is a line.

    A line for each row lets other programs read it.
    """
    console = stdout()
    lines = layout_table(head, rows, console.width if console.is_terminal else None)
    if title:
        console.print(title, style="bold")
    for i, (first, *rest) in enumerate(lines):
        style = "dim" if i == 0 and any(head) else ""
        console.print(make_styled_text((first, style or "bold"), ("".join(rest), style)), soft_wrap=True)
    console.print()


def print_code(text: str) -> None:
    """Print a CuIR program, coloured on a terminal and unchanged elsewhere."""
    console = stdout()
    if not console.is_terminal:
        print(text, end="" if text.endswith("\n") else "\n")
        return
    from rich.syntax import Syntax

    from ..integrations.highlighting import CuirLexer

    console.print(Syntax(text, CuirLexer(), theme="ansi_dark", background_color="default", word_wrap=False))


def compute_unified_diff(before: str, after: str, a: str, b: str) -> list[str]:
    """Return the unified difference of two texts, without line ends."""
    return list(difflib.unified_diff(before.splitlines(), after.splitlines(), a, b, lineterm="", n=2))


def print_diff(lines: Iterable[str]) -> None:
    """Print a difference, coloured on a terminal."""
    from rich.text import Text

    console = stdout()
    for line in lines:
        style = "bold" if line.startswith(("+++", "---")) else {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
        console.print(Text(line, style=style), soft_wrap=True)


def print_entry(op: Op) -> None:
    """Print an entry of the table in full, with the places that implement it."""
    from . import reference_pages as reference

    console = stdout()
    about = f"   {op.name}: {op.family}; {', '.join(op.archs)}; threads {' or '.join(map(str, op.workers))}"
    console.print(make_styled_text((reference.spelling(op), "bold"), (about, "dim")))
    console.print(f"  {op.doc}")
    for p in op.params:
        left_out = f" (default: {p.default})" if p.default else ""
        console.print(make_styled_text("    ", (p.name, "bold"), f"  {p.description}", (left_out, "dim")))
    for line in reference.effects(op):
        console.print(f"    - {line}")
    if traits := reference.traits(op):
        trait_names = ", ".join(name if value is True else f"{name}={value}" for name, value in traits.items())
        console.print(f"    traits: {trait_names}", style="dim")
    for consumer, place in reference.places(op.name).items():
        console.print(f"    {consumer}: {place}", style="dim")
    console.print()
