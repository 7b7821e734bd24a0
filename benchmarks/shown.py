"""Tables and plots of results, on demand: `python -m benchmarks.shown FILE... --out FOLDER`.

A file holds results of `cuir bench` or `cuir eval`, verdicts of `benchmarks.handwritten.judge`, lines of
`benchmarks.old_and_new time`, of `benchmarks.defaults measure`, of `benchmarks.head_dims`, of `benchmarks.float32`, of
`benchmarks.transformers`, of `benchmarks.lifted`, of `benchmarks.of_structures`, of `benchmarks.newest_peers`, of
`benchmarks.invariance`, of `benchmarks.ptx_experts`, of `benchmarks.ptx_mutants`, of `benchmarks.rewrites` or of `benchmarks.rules`. The plot needs matplotlib.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from benchmarks import float32, head_dims, invariance, lifted, newest_peers, of_structures, ptx_experts, ptx_mutants, rewrites, transformers
from benchmarks.defaults import parse_setting
from benchmarks.fitting import measurements
from benchmarks.handwritten.judge import CLASSES, summary
from benchmarks.recorded import read_rows
from benchmarks.rules import rules_table
from cuir.performance.suites import results
from cuir.performance.suites.results import plot as plot_suite
from cuir.text.figures import load_pyplot, save_figure
from cuir.text.markdown import table
from llm import evaluate, scores
from llm import scores as figures

Row = Mapping[str, Any]
COMMAND = "python -m benchmarks.shown"


def markdown(rows: Sequence[Row]) -> str:
    """Return the page of rows: a heading, the command that gave them, and their table."""
    if "verdict" in rows[0]:
        return "\n".join(
            ["# Kernels written by hand", "", "    python -m benchmarks.handwritten.judge --level LEVEL --out FILE", "", *summary(rows), ""]
        )
    if rows[0].get("suite") == "structures":
        head = rows[0]
        conditions = f"TFLOP/s, f16, {head['device']}, driver {head['driver']}, CUDA {head['cuda']}, torch {head['torch']}, {head['date']}."
        return "\n".join(
            [
                "# Programs of structures that no mask says",
                "",
                conditions,
                "",
                f"    {head['command']} --out FILE",
                "",
                of_structures.table(rows[1:]),
            ]
        )
    if rows[0].get("suite") == "newest_peers":
        return newest_peers.markdown(rows)
    if rows[0].get("suite") == "invariance":
        return invariance.markdown(rows)
    if rows[0].get("suite") == "ptx_experts":
        return ptx_experts.markdown(rows)
    if "device" in rows[0]:
        return _settings(rows)
    if "program" in rows[0]:
        return lifted.table(rows)
    if "rule" in rows[0]:
        return f"{rules_table.markdown(rows)}\n"
    if "refused_by" in rows[0]:
        return "\n".join(ptx_mutants.format_rows(cast(Sequence[ptx_mutants.Row], rows)))
    if "same_text" in rows[0]:
        return rewrites.markdown(list(map(rewrites.from_json, rows)))
    if "precision" in rows[0]:
        return "\n".join(float32.format_rows(rows))
    if "rates" in rows[0]:
        introduction = "Tokens a second, bfloat16, contenders in turns; fewer layers than the models have where the table says so."
        return f"# Models of transformers\n\n{introduction}\n\n    python -m benchmarks.transformers --out FILE\n\n{transformers.table(rows)}\n"
    if "dims" in rows[0] and _are_settings(rows):
        return f"# Settings by head dim\n\n{head_dims.format_settings(rows)}\n"
    if "dims" in rows[0]:
        return f"# Head dims\n\n    python -m benchmarks.head_dims --all --out FILE\n\n{head_dims.table(rows)}\n"
    if "tflops" in rows[0]:
        return _list_beside_peer(rows)
    columns = ["name", "length", "old / new", "least", "most", "milliseconds"]
    introduction = "Milliseconds of the text before over those now, in turns: the median of all rounds, the least and the most. Above 1 the text now is faster."
    lines = table(columns, [[str(r[c]) for c in columns] for r in rows])
    return "\n".join(
        ["# Emitted text before and now", "", introduction, "", "    python -m benchmarks.old_and_new time OLD --out FILE", "", *lines, ""]
    )


def plot(rows: Sequence[Row], path: Path) -> None:
    """Write an SVG or PNG. Raises CuirError U120 without matplotlib."""
    of_kinds = {
        "verdict": _verdicts,
        "device": _plot_predictions,
        "precision": _precisions,
        "refused_by": _mutants,
        "same_text": _plot_spellings,
        "dims": _rates,
        "rates": _tokens,
        "program": _plot_lifted,
        "rule": _quotients,
        "tflops": _plot_beside_peer,
    }
    of_suites = {"structures": _structures, "newest_peers": _peer_ratios, "invariance": _plot_costs, "ptx_experts": _plot_rates_of_kernels}
    if draw_suite := of_suites.get(rows[0].get("suite", "")):
        draw_suite(rows[1:], path)
        return
    next((draw_rows for key, draw_rows in of_kinds.items() if key in rows[0]), _ratios)(rows, path)


def _plot_spellings(rows: Sequence[Row], path: Path) -> None:
    """Plot the largest change of instructions by a spelling of each kind."""
    by_kind = rewrites.group_by_kind(map(rewrites.from_json, rows))
    largest = {kind: max((abs(r.change) for r in of if r.now is not None), default=0.0) for kind, of in sorted(by_kind.items())}
    figure, panel = load_pyplot(COMMAND).subplots(figsize=(7.0, 4.0), layout="constrained")
    panel.barh(list(largest), [100 * change for change in largest.values()])
    panel.set_xlabel("largest change of instructions, %")
    panel.invert_yaxis()
    save_figure(figure, path)


def _plot_costs(rows: Sequence[Row], path: Path) -> None:
    """Plot what the fixed order of sums costs, a bar for each problem."""
    timed = [r for r in rows if "cost" in r]
    figure, panel = load_pyplot(COMMAND).subplots(figsize=(7.0, 0.2 * len(timed) + 1), layout="constrained")
    panel.barh([invariance.describe_problem(r) for r in timed], [100 * r["cost"] for r in timed])
    panel.set_xlabel("additional time, %")
    panel.invert_yaxis()
    save_figure(figure, path)


def _plot_rates_of_kernels(rows: Sequence[Row], path: Path) -> None:
    """Plot the speed of the machine for PTX, a bar for each kernel and problem."""
    figure, panel = load_pyplot(COMMAND).subplots(figsize=(7.0, 0.3 * len(rows) + 1), layout="constrained")
    panel.barh([f"{r['expert']} {' '.join(map(str, r['arguments']))}" for r in rows], [r["rate"] for r in rows])
    panel.set_xlabel("million lane instructions a second of CPU time, all schedules")
    panel.invert_yaxis()
    save_figure(figure, path)


def _settings(rows: Sequence[Row]) -> str:
    """Return the fastest settings of each cell, with the relative times of the next ones."""
    measured = sorted(measurements(rows), key=lambda m: (m.cell.variant, m.cell.shape.D, m.cell.shape.N, m.cell.shape.H))
    lines = []
    for m in measured:
        (best, least), *slower = sorted(m.times.items(), key=lambda pair: pair[1])
        next_settings = ", ".join(f"{name} {milliseconds / least:.2f}" for name, milliseconds in slower[:2])
        s = m.cell.shape
        lines.append([m.cell.variant, str(s.D), str(s.M), str(s.N), f"{s.B} x {s.H}/{s.HK}", best, f"{least:.3f}", next_settings])
    columns = ["variant", "head dim", "queries", "keys", "batch x heads", "fastest", "milliseconds", "the next, times as long"]
    introduction = f"{rows[0]['device']}, bf16: settings in turns, medians. Some cells were measured again, with fewer settings."
    command = "    python -m benchmarks.defaults measure --out FILE"
    return "\n".join(["# Settings that may win, cell by cell", "", introduction, "", command, "", *table(columns, lines), ""])


def _plot_predictions(rows: Sequence[Row], path: Path) -> None:
    """Plot the cost model's prediction over the measurement, a point for each setting of each cell."""
    from benchmarks.fitting import FIXED_CONSTS, work_of
    from cuir.performance.selection import cost

    figure, panels = load_pyplot(COMMAND).subplots(1, 2, figsize=(9.0, 3.6), layout="constrained", sharey=True)
    c = cost.Coefficients.load()
    points: dict[tuple[bool, int], list[tuple[float, float]]] = {}
    for m in measurements(rows):
        work, numbers = work_of(m.cell)
        for name, milliseconds in m.times.items():
            terms = cost.Terms.of(work, m.cell.shape, dict(numbers), {**FIXED_CONSTS, **parse_setting(name)}, 132)
            points.setdefault((work.blocks == "listed", m.cell.shape.D), []).append(
                (milliseconds, cost.predict_milliseconds(terms, c) / milliseconds)
            )
    for (listed, D), xy in sorted(points.items()):
        panels[int(listed)].plot(*zip(*xy), "o", markersize=2, label=f"head dim {D}", color=f"C{(D // 32) % 10}", rasterized=True)
    for panel, title in zip(panels, ("blocks that the host can count", "blocks that depend on data")):
        panel.set_xscale("log")
        panel.axhline(1.0, linewidth=0.6, color="black")
        panel.set_ylim(0.6, 1.6)
        panel.set_title(title, fontsize=8)
        panel.set_xlabel("measured, milliseconds", fontsize=8)
    panels[0].set_ylabel("the model's / measured", fontsize=8)
    panels[0].legend(fontsize=7)
    save_figure(figure, path)


def _verdicts(rows: Sequence[Row], path: Path) -> None:
    """Plot for each class, and for right kernels, the share that is judged correctly; a bar a level."""
    figure, panel = load_pyplot(COMMAND).subplots(figsize=(8.0, 3.6), layout="constrained")
    groups = [*CLASSES, None]
    levels = [x for x in ("quick", "full") if any(r["level"] == x for r in rows)]
    for i, level in enumerate(levels):
        of = [[r for r in rows if r["level"] == level and r["class"] == g] for g in groups]
        shares = [100 * sum(r["verdict"] == ("passed" if r["right"] else "refused") for r in g) / max(1, len(g)) for g in of]
        bars = panel.bar([x + 0.38 * i for x in range(len(groups))], shares, 0.36, label=level)
        panel.bar_label(bars, [str(len(g)) for g in of], fontsize=7)
    panel.set_xticks([x + 0.19 for x in range(len(groups))], ["right" if g is None else f"class {g}" for g in groups], fontsize=8)
    panel.set_ylabel("% judged rightly, of how many", fontsize=8)
    figure.legend(fontsize=8, loc="outside upper right", ncols=2, frameon=False)
    save_figure(figure, path)


def _mutants(rows: Sequence[Row], path: Path) -> None:
    """Plot bars for each kernel: mutants that are refused, and those that are not."""
    figure, panel = load_pyplot(COMMAND).subplots(figsize=(9.0, 3.0), layout="constrained")
    names = list(dict.fromkeys(r["kernel"] for r in rows))
    of = [[bool(r["refused_by"]) for r in rows if r["kernel"] == name] for name in names]
    refused = [sum(o) for o in of]
    panel.barh(names, refused, 0.6, label="refused")
    panel.barh(names, [len(o) - n for o, n in zip(of, refused)], 0.6, left=refused, label="not refused: harmless")
    panel.invert_yaxis()
    panel.set_xlabel("mutants", fontsize=8)
    figure.legend(fontsize=8, loc="outside upper right", ncols=2, frameon=False)
    save_figure(figure, path)


def _are_settings(rows: Sequence[Row]) -> bool:
    """Return whether rows by head dim time settings of ours alone, without a peer."""
    return not any(name.startswith("ours") for name in rows[0]["tflops"])


def _plot_settings(rows: Sequence[Row], path: Path) -> None:
    """Plot bars of TFLOP/s of the fastest forward setting of each head dim."""
    figure, panel = load_pyplot(COMMAND).subplots(figsize=(9.0, 3.6), layout="constrained")
    timed = [r for r in rows if "dims" in r]
    panel.bar(range(len(timed)), [max(r["tflops"].values()) for r in timed])
    panel.set_xticks(range(len(timed)), [f"{r['dims'][0]} {r['mask']}\n{r['length']}" for r in timed], fontsize=6)
    panel.set_ylabel("TFLOP/s", fontsize=8)
    save_figure(figure, path)


def _rates(rows: Sequence[Row], path: Path) -> None:
    """Plot bars of TFLOP/s: ours with the first setting, and the peers."""
    if _are_settings(rows):
        _plot_settings(rows, path)
        return
    figure, panel = load_pyplot(COMMAND).subplots(figsize=(9.0, 3.6), layout="constrained")
    contenders = {"ours": "ours", "fa3": "FlashAttention-3", "cudnn": "cuDNN"}
    for i, (prefix, label) in enumerate(contenders.items()):
        rates = [next((rate for name, rate in r["tflops"].items() if name.startswith(prefix)), 0.0) for r in rows]
        panel.bar([x + 0.28 * i for x in range(len(rows))], rates, 0.26, label=label)
    names = [f"{'/'.join(map(str, dict.fromkeys(r['dims'])))} {r['mask']}\n{r['length']}" for r in rows]
    panel.set_xticks([x + 0.28 for x in range(len(rows))], names, fontsize=6)
    panel.set_ylabel("TFLOP/s", fontsize=8)
    figure.legend(fontsize=8, loc="outside upper right", ncols=3, frameon=False)
    save_figure(figure, path)


def _plot_lifted(rows: Sequence[Row], path: Path) -> None:
    """Plot bars of TFLOP/s of each program and length, lifted and source."""
    figure, panel = load_pyplot(COMMAND).subplots(figsize=(9.0, 3.6), layout="constrained")
    timed = [r for r in rows if "tflops" in r]
    for i, name in enumerate(("lifted", "source")):
        panel.bar([x + 0.4 * i for x in range(len(timed))], [r["tflops"][name] for r in timed], 0.38, label=name)
    names = [f"{r['program'].replace('_', chr(10), 2)}{chr(10)}{r['length']}" for r in timed]
    panel.set_xticks([x + 0.2 for x in range(len(timed))], names, fontsize=5)
    panel.set_ylabel("TFLOP/s", fontsize=8)
    figure.legend(fontsize=8, loc="outside upper right", ncols=2, frameon=False)
    save_figure(figure, path)


def _structures(rows: Sequence[Row], path: Path) -> None:
    """Plot bars of TFLOP/s of each structure, on a logarithmic scale."""
    figure, panel = load_pyplot(COMMAND).subplots(figsize=(9.0, 3.6), layout="constrained")
    names = list(dict.fromkeys(n for r in rows for n in r["contenders"]))
    for i, name in enumerate(names):
        rates = {x: c["tflops"] for x, r in enumerate(rows) if "tflops" in (c := r["contenders"].get(name, {}))}
        panel.bar([x + 0.16 * i for x in rates], list(rates.values()), 0.15, label=name)
    panel.set_yscale("log")
    panel.set_xticks([x + 0.32 for x in range(len(rows))], [r["variant"].replace("_", "\n") for r in rows], fontsize=5)
    panel.set_ylabel("TFLOP/s", fontsize=8)
    figure.legend(fontsize=8, loc="outside upper right", ncols=len(names), frameon=False)
    save_figure(figure, path)


def _peer_ratios(rows: Sequence[Row], path: Path) -> None:
    """Plot the peers' milliseconds over ours, a point for each row, peer and protocol."""
    figure, panel = load_pyplot(COMMAND).subplots(figsize=(9.0, 3.6), layout="constrained")
    points: dict[tuple[str, str], dict[int, float]] = {}
    for x, row in enumerate(rows):
        for key, ratio in newest_peers.list_ratios(row).items():
            points.setdefault(key, {})[x] = ratio
    for i, ((peer, protocol), ratios) in enumerate(sorted(points.items())):
        marker = "o" if protocol == "bursts" else "x"
        panel.plot(list(ratios), list(ratios.values()), marker, markersize=3, label=f"{peer}, {protocol}", color=f"C{i // 2}")
    panel.axhline(1.0, linewidth=0.6, color="black")
    names = [newest_peers.describe(row).replace(", heads", "\nheads") for row in rows]
    panel.set_xticks(range(len(rows)), names, fontsize=4, rotation=90)
    panel.set_ylabel("peer's time / ours", fontsize=8)
    figure.legend(fontsize=6, loc="outside upper right", ncols=4, frameon=False)
    save_figure(figure, path)


def _take_ours(row: Row) -> float:
    """Return our TFLOP/s in a row of `benchmarks.sm80`; of several settings, those of the fastest."""
    return max(float(x) for name, x in row["tflops"].items() if name.startswith("ours"))


def _take_peer(row: Row) -> tuple[str, float]:
    """Return the peer of a row of `benchmarks.sm80`, and its TFLOP/s: FlashAttention-2 where it ran."""
    rates = row["tflops"]
    return ("FlashAttention-2", float(rates["fa2"])) if "fa2" in rates else ("FlexAttention", float(rates["flex"]))


def _list_beside_peer(rows: Sequence[Row]) -> str:
    """Return the table of `benchmarks.sm80`: TFLOP/s of ours and of the peer."""
    cells = [[str(r["dim"]), r["mask"], str(r["length"]), f"{_take_ours(r):.0f}", f"{_take_peer(r)[1]:.0f}"] for r in rows]
    lines = table(["head dim", "mask", "length", "ours", _take_peer(rows[0])[0]], cells)
    introduction = "TFLOP/s of the kernel for sm_80 on an H200, contenders in turns."
    return "\n".join(["# The kernel for sm_80", "", introduction, "", "    python -m benchmarks.sm80 --out FILE", "", *lines, ""])


def _plot_beside_peer(rows: Sequence[Row], path: Path) -> None:
    """Plot the quotient of our TFLOP/s and the peer's for each row."""
    figure, panel = load_pyplot(COMMAND).subplots(figsize=(9.0, 3.2), layout="constrained")
    panel.plot([_take_ours(r) / _take_peer(r)[1] for r in rows], "o", markersize=3)
    panel.axhline(1.0, linewidth=0.6, color="black")
    panel.set_xticks(range(len(rows)), [f"d{r['dim']} {r['mask']} {r['length']}" for r in rows], fontsize=5, rotation=90)
    panel.set_ylabel(f"ours / {_take_peer(rows[0])[0]}", fontsize=8)
    save_figure(figure, path)


def _quotients(rows: Sequence[Row], path: Path) -> None:
    """Plot FlexAttention's milliseconds over ours, a point for each rule and head dim."""
    figure, panel = load_pyplot(COMMAND).subplots(figsize=(9.0, 3.6), layout="constrained")
    names = list(dict.fromkeys(r["rule"] for r in rows))
    for dim in sorted({r["head_dim"] for r in rows}):
        quotients = {r["rule"]: x for r in rows if r["head_dim"] == dim and (x := rules_table.ratio(r)) is not None}
        panel.plot([names.index(n) for n in quotients], list(quotients.values()), "o", markersize=3, label=f"head dim {dim}")
    panel.axhline(1.0, linewidth=0.6, color="black")
    panel.set_xticks(range(len(names)), names, fontsize=4, rotation=90)
    panel.set_ylabel("FlexAttention / ours", fontsize=8)
    figure.legend(fontsize=8, loc="outside upper right", ncols=2, frameon=False)
    save_figure(figure, path)


def _precisions(rows: Sequence[Row], path: Path) -> None:
    """Plot bars of TFLOP/s over those of errors, ours and FlexAttention's beside each other."""
    figure, panels = load_pyplot(COMMAND).subplots(2, 1, figsize=(9.0, 5.4), layout="constrained", sharex=True)
    for panel, quantity, label in zip(panels, ("tflops", "errors"), ("TFLOP/s", "relative error"), strict=True):
        for i, (contender, name) in enumerate({"ours": "ours", "flex": "compiled FlexAttention"}.items()):
            panel.bar(
                [x + 0.4 * i for x in range(len(rows))], [r[quantity].get(contender, 0.0) for r in rows], 0.38, label=name, color=f"C{i}"
            )
        panel.set_ylabel(label, fontsize=8)
    panels[1].set_yscale("log")
    names = [f"{r['precision']}\n{r['head dim']} {r['mask']}\n{r['length']}" for r in rows]
    panels[1].set_xticks([x + 0.2 for x in range(len(rows))], names, fontsize=5)
    figure.legend(*panels[0].get_legend_handles_labels(), fontsize=8, loc="outside upper right", ncols=2, frameon=False)
    save_figure(figure, path)


def _tokens(rows: Sequence[Row], path: Path) -> None:
    """Plot bars of each model's tokens a second, relative to the slowest contender."""
    figure, panel = load_pyplot(COMMAND).subplots(figsize=(9.0, 3.2), layout="constrained")
    names = list(dict.fromkeys(n for r in rows for n in r["rates"]))
    for i, name in enumerate(names):
        at = [x + 0.8 / len(names) * i for x in range(len(rows))]
        panel.bar(at, [r["rates"].get(name, 0.0) / min(r["rates"].values()) for r in rows], 0.76 / len(names), label=name, color=f"C{i}")
    panel.set_xticks(range(len(rows)), [f"{r['model']}, {r['layers']} layers\n{r['work']}" for r in rows], fontsize=6)
    panel.set_ylabel("tokens a second, of the slowest", fontsize=8)
    panel.legend(fontsize=7)
    save_figure(figure, path)


def _ratios(rows: Sequence[Row], path: Path) -> None:
    """Plot a line from the least to the most of each text and length, with the median."""
    figure, panel = load_pyplot(COMMAND).subplots(figsize=(7.0, 0.2 * len(rows) + 1.2), layout="constrained")
    at = range(len(rows))
    panel.hlines(at, [r["least"] for r in rows], [r["most"] for r in rows], linewidth=1)
    panel.plot([r["old / new"] for r in rows], at, "o", markersize=3)
    panel.axvline(1.0, linewidth=0.6, color="black")
    panel.set_yticks(at, [f"{r['name']}, {r['length']}" for r in rows], fontsize=6)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.set_xlabel("milliseconds before / now", fontsize=8)
    save_figure(figure, path)


def draw(path: Path, folder: Path) -> None:
    """Write the table, NAME.md, and the plot, NAME.svg, of a file of results into a folder."""
    stem = path.name.partition(".jsonl")[0]
    page, picture = folder / f"{stem}.md", folder / f"{stem}.svg"
    rows = read_rows(path)
    if "replayed" in rows[0]:
        head, samples = evaluate.read(path)
        page.write_text(scores.markdown(head, samples), encoding="utf-8")
        figures.plot(scores.scores(samples), picture)
    elif rows[0].get("suite", "structures") not in ("structures", "newest_peers", "invariance", "ptx_experts"):
        head, cells = results.read(path)
        page.write_text(results.markdown(head, cells), encoding="utf-8")
        plot_suite(head, cells, picture)
    else:
        page.write_text(markdown(rows), encoding="utf-8")
        plot(rows, picture)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="lines of JSON; NAME.jsonl.xz: compressed")
    parser.add_argument("--out", type=Path, default=Path("out/results"), metavar="FOLDER", help="default: out/results")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for path in options.files:
        if not path.is_file():
            parser.error(f"there is no file {path}")
        draw(path, options.out)
        print(options.out / f"{path.name.partition('.jsonl')[0]}.md")


if __name__ == "__main__":
    main()
