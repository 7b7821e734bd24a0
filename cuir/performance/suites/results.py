"""Results of a suite: rows in a file of JSON lines, and tables of them.

An interrupted run continues from its file.

Figure of results: rates over the length, a panel for each variant and model. Needs matplotlib.

Panels of decoding are divided by number of queries and batch, too.
"""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...text.diagnostics import CuirError
from ...text.figures import load_pyplot, save_figure
from ...text.jsontext import append_line, has_content, read_lines
from ...text.markdown import table
from .cell_benchmark import OURS, Cell, family, queries
from .result_rows import Entry, Row

UNITS = {"tflops": "TFLOP/s of unmasked pairs", "gbs": "GB/s of keys and values"}  # key of a contender's figure -> its unit


def rate(contender: Entry) -> float | None:
    """Return a contender's TFLOP/s, or GB/s if it has none; None if it was not timed."""
    return contender.get("tflops", contender.get("gbs"))


def unit(rows: Iterable[Row]) -> str:
    """Return the unit of the figures of rows, which are those of one suite."""
    return next(
        (words for r in rows for c in r.get("contenders", {}).values() for name, words in UNITS.items() if name in c), UNITS["tflops"]
    )


class Results:
    """Results file: a head line (suite, command, date, versions), then a row a line.

    Rows are written when they are measured.
    """

    def __init__(self, path: Path, head: Mapping[str, object], fresh: bool = False):
        self.path, self.head, self.rows = path, dict(head), list[Row]()
        if has_content(path):  # a file of something else is not begun anew, either
            previous = read(path, "--out names another file")
            if not fresh:
                self.head, self.rows = previous
                return
        self._append(path, self.head, fresh=True)

    def missing(self, cells: Iterable[Cell], requested: Iterable[str] = ()) -> list[Cell]:
        """Return the cells without a row, or whose row failed or lacks some of the requested contenders."""
        complete = [Cell.from_json(r) for r in self.rows if "failed" not in r and set(requested) <= set(r.get("asked", ()))]
        return [c for c in cells if c not in complete]

    def add(self, row: Row) -> None:
        """Record a row in place of an earlier one of its cell."""
        self.rows = [r for r in self.rows if Cell.from_json(r) != Cell.from_json(row)] + [row]
        self._append(self.path, row)

    @staticmethod
    def _append(path: Path, line: Mapping[str, object], fresh: bool = False) -> None:
        """Append a line. Raises CuirError U108."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if fresh:
                path.unlink(missing_ok=True)
            append_line(path, json.dumps(line))
        except OSError as error:
            raise CuirError.of("U108", f"cannot write {path}: {error.strerror}", hint="name another file with --out") from None


def read(path: Path, hint: str = "name a file that `cuir bench --out` has written") -> tuple[dict[str, object], list[Row]]:
    """Read head and rows of a results file, compressed if it is named NAME.xz.

    Lines that an interruption cut short are left out. Raises CuirError U119 with the hint.
    """
    try:
        lines = read_lines(path)
    except (OSError, UnicodeDecodeError, lzma.LZMAError) as error:
        message = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text" if isinstance(error, ValueError) else str(error)
        raise CuirError.of("U119", f"{path} cannot be read: {message}", hint=hint) from None
    records = []
    for number, line in enumerate(lines):
        try:
            records.append(json.loads(line))
        except ValueError:
            if number == 0:
                raise CuirError.of("U119", f"the first line of {path} is no JSON", hint=hint) from None
    columns = {"variant", "parameters", "model", "shape"}
    if (
        not records
        or not all(isinstance(f, dict) for f in records)
        or "suite" not in records[0]
        or not all(columns <= set(r) for r in records[1:])
    ):
        raise CuirError.of("U119", f"{path} holds no results of `cuir bench`", hint=hint)
    rows = {json.dumps([r["variant"], r["parameters"], r["shape"]]): r for r in records[1:]}  # a cell that was measured again counts once
    return records[0], list(rows.values())


def best(row: Row, of: str) -> tuple[str, Entry] | None:
    """Return the fastest contender of a family that ran and was right: its name and figures.

    Those that dropped out after the first round are excluded: a single time is not reliable.
    """
    timed = [(n, c) for n, c in row.get("contenders", {}).items() if family(n) == of and rate(c) is not None]
    rounds = max((c.get("rounds", 1) for _, c in timed), default=1)
    return max((pair for pair in timed if pair[1].get("rounds", 1) == rounds), key=lambda pair: rate(pair[1]) or 0.0, default=None)


def ours(row: Row) -> tuple[str, Entry] | None:
    """Return the fastest of our settings: its name and figures."""
    return best(row, OURS)


def peers(row: Row) -> dict[str, float]:
    """Return the rates of the peers that ran and were right; of a reference the best configuration."""
    by_peer = {name: best(row, name) for name in names_of_peers([row])}
    return {name: rate(fastest[1]) or 0.0 for name, fastest in by_peer.items() if fastest}


def ratios(row: Row) -> dict[str, float]:
    """Return our rate over each peer's."""
    mine = ours(row)
    return {name: (rate(mine[1]) or 0.0) / peer_rate for name, peer_rate in peers(row).items()} if mine else {}


def ratio(row: Row) -> float | None:
    """Return our rate over the best peer's."""
    return min(ratios(row).values(), default=None)


def names_of_peers(rows: Sequence[Row]) -> list[str]:
    """Return the families of peers in rows."""
    return list(dict.fromkeys(f for r in rows for n in r.get("contenders", {}) if (f := family(n)) != OURS))


def place(row: Row) -> str:
    """Return the name of a row's cell."""
    return Cell.from_json(row).name


@dataclass(frozen=True)
class Mean:
    """Our rate over a peer's in a group of rows.

    It has the geometric mean, the number of rows, and the smallest ratio with its cell.
    """

    mean: float
    count: int
    smallest: float
    where: str

    @property
    def text(self) -> str:
        """Mean and smallest ratio as text."""
        return f"{self.mean:.2f} ({self.smallest:.2f})"


def means(rows: Sequence[Row]) -> dict[str, dict[str, Mean]]:
    """Return group -> peer -> mean.

    Groups are all rows, each head dim, each number of queries of decoding, each variant; those with one row or with all
    rows are left out.
    """
    groups: dict[str, list[Row]] = {"all": list(rows)}
    for row in rows:
        groups.setdefault(f"d{row['shape'][5]}", []).append(row)
    for row in rows:
        if row["shape"][3] != row["shape"][4]:
            groups.setdefault(queries(row["shape"][3]), []).append(row)
    for row in rows:
        groups.setdefault(row["variant"], []).append(row)
    by_group: dict[str, dict[str, Mean]] = {}
    for group, members in groups.items():
        for peer in names_of_peers(rows):
            shares = [(share, place(r)) for r in members if (share := ratios(r).get(peer)) is not None]
            if shares and (group == "all" or 1 < len(members) < len(rows)):
                by_group.setdefault(group, {})[peer] = Mean(geometric_mean([s for s, _ in shares]), len(shares), *min(shares))
    return by_group


def markdown(head: Mapping[str, object], rows: Sequence[Row]) -> str:
    """Return a table of rates, with the conditions of the measurement, and the means."""
    names, few = names_of_peers(rows), any(r["shape"][3] != r["shape"][4] for r in rows)
    counted = (
        " (10 x head dim each), backward"
        if head.get("pass") == "backward"
        else ""
        if head.get("pass") == "decode"
        else " (4 x head dim each), forward"
    )
    lines = [
        f"# `cuir bench {head['suite']}`",
        "",
        f"{unit(rows)}{counted}; {head.get('protocol', 'medians with a cold L2 cache')}, contenders in turns; every result was checked against float64.",
        f"{head.get('device')}, driver {head.get('driver')}, CUDA {head.get('cuda')}, torch {head.get('torch')}, {head.get('date')}.",
        "",
        f"    {head.get('command')}",
        "",
        *([f"{consts[0].upper()}{consts[1:]}.", ""] if (consts := describe_row_consts(head, rows)) else []),
        *table(
            [
                "variant",
                "model",
                "head dim",
                *(["queries"] if few else []),
                "length",
                "batch",
                OURS,
                *names,
                *(f"{OURS} / {n}" for n in names),
                "setting",
            ],
            [_entries(r, names, few) for r in rows],
        ),
    ]
    by_group = means(rows)
    if by_group:
        lines += ["", f"Geometric means of {OURS} / peer, and the smallest:", ""]
        lines += table(["rows", *names], [[group, *(of[n].text if n in of else "" for n in names)] for group, of in by_group.items()])
    return "\n".join([*lines, "", *(f"{line}  " for line in summary(rows)), ""])


def describe_row_consts(head: Mapping[str, object], rows: Sequence[Row]) -> str:
    """Name the consts of our kernels in rows.

    Those that all settings of a row share come first, then where the others stand.

    Rows of suites whose contender is a call have other kernels for each call; their dtype and head dims are named.
    """
    dims = sorted({(r["shape"][5], (r["shape"][6:] or r["shape"][5:6])[0]) for r in rows})
    texts = [f"D={D}" + (f", DV={DV}" if DV != D else "") for D, DV in dims]
    if not texts or "dtype" not in head:
        return ""
    shared = f"T={head['dtype']} and {'; '.join(texts)}"
    if "origin" in head:
        return f"{OURS} is {head['origin']} with {shared}; a setting names the other consts that differ from its defaults"
    return f"{OURS} is a call with {shared}, whose kernels have the consts that such a call gets"


def _entries(row: Row, names: Sequence[str], few: bool) -> list[str]:
    """Return the cells of a table row."""
    B, _, _, M, N, D = row["shape"][:6]
    mine, shares = ours(row), ratios(row)
    figures = [_entry(row, OURS), *(_entry(row, n) for n in names)]
    if "contenders" not in row:
        figures[0] = row.get("failed", "")
    ratio_texts = [f"{shares[n]:.2f}" if n in shares else "" for n in names]
    return [
        row["variant"],
        row["model"],
        str(D),
        *([str(M)] if few else []),
        str(N),
        str(B),
        *figures,
        *ratio_texts,
        mine[0].removeprefix(OURS).strip() if mine else "",
    ]


def summary(rows: Sequence[Row]) -> list[str]:
    """Return lines with the mean and the smallest ratio to each peer, then what was wrong or failed."""
    lines = [
        f"{OURS} / {peer}: {m.mean:.2f} in the geometric mean of {m.count} rows, smallest {m.smallest:.2f} ({m.where})"
        for peer, m in means(rows).get("all", {}).items()
    ]
    for kind in ("wrong", "failed"):
        lines += [f"{kind}: {place(r)}: {n}: {c[kind]}" for r in rows for n, c in r.get("contenders", {}).items() if kind in c]
    return lines + [f"failed: {place(r)}: {r['failed']}" for r in rows if "failed" in r]


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def _entry(row: Row, of: str) -> str:
    """Return a contender's rate, else why there is none."""
    fastest = best(row, of)
    if fastest:
        return f"{rate(fastest[1]):.0f}"
    untimed = [c for n, c in row.get("contenders", {}).items() if family(n) == of]
    return "" if not untimed else "wrong" if any("wrong" in c for c in untimed) else str(untimed[0].get("failed", ""))


WIDTH = 4  # panels in a row


def plot(head: Mapping[str, object], rows: Sequence[Row], path: Path) -> None:
    """Write a PNG or SVG, by the name's ending.

    Raises CuirError U120 without matplotlib, U108 if it cannot be written.
    """
    pyplot = load_pyplot("cuir bench SUITE --show")
    series = _series(rows)
    across = min(WIDTH, max(1, len(series)))
    down = -(-max(1, len(series)) // across)
    figure, axes = pyplot.subplots(down, across, figsize=(3.6 * across, 2.8 * down), squeeze=False, sharey=True)
    names = ["cuir", *names_of_peers(rows)]
    for panel, (title, lines) in zip(axes.flat, series.items()):
        for number, name in enumerate(names):
            points = lines.get(name, [])
            style = {"linewidth": 2.2, "color": "black"} if name == "cuir" else {"linewidth": 1.2, "color": f"C{number - 1}"}
            panel.plot([str(m) for m, _ in points], [t for _, t in points], marker="o", markersize=3, label=name, **style)
        panel.set_title(title, fontsize=8)
        panel.tick_params(labelsize=7)
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    for panel in list(axes.flat)[len(series) :]:
        panel.axis("off")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(names), fontsize=8, frameon=False)
    figure.supylabel(unit(rows), fontsize=8)
    figure.suptitle(f"cuir bench {head['suite']}: {head.get('device')}, {head.get('date')}", fontsize=9)
    figure.tight_layout(rect=(0.0, 0.05, 1.0, 1.0))
    save_figure(figure, path)


def _series(rows: Sequence[Row]) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Return panel -> contender -> (length, rate), by length."""
    panels: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for row in sorted(rows, key=lambda r: r["shape"][4]):
        B, _, _, M, N = row["shape"][:5]
        few = "" if M == N else f", {B} x {queries(M)}"
        panel = panels.setdefault(f"{row['variant']}, {row['model']}{few}", {})
        mine = ours(row)
        for name, figure in {**({"cuir": rate(mine[1]) or 0.0} if mine else {}), **peers(row)}.items():
            panel.setdefault(name, []).append((N, figure))
    return panels
