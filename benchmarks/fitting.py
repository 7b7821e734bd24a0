"""Fit of the tables and the cost model that the package ships, from `benchmarks.defaults measure`.

python -m benchmarks.fitting table rows.jsonl     # -> cuir/performance/selection/tables/GPU.json
python -m benchmarks.fitting fit rows.jsonl       # -> cuir/performance/selection/cost.json
python -m benchmarks.fitting report rows.jsonl    # what each of the two would choose, beside the best that was measured; no GPU
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import cuir.performance.selection
from benchmarks.defaults import Cell, of_cell, parse_setting, whole
from benchmarks.recorded import read_rows
from cuir.performance.selection import Device, cost
from cuir.performance.selection import shipped_table as table
from cuir.performance.selection.setting_dispatch import Evidence, Source, choose
from cuir.performance.selection.work import Work
from cuir.performance.timing.problem import Shape

PLACE = Path(cuir.performance.selection.__file__).parent
CHANGE = 0.02  # of a group's time: least gain for which the setting changes between rows; it is another kernel to compile
SHARED_LOSS = 0.03  # of a cell's time: largest loss by the setting that it shares with its neighbours
FAR = 0.05  # predictions with larger errors weigh less and less
NEAR = 1.12  # settings that are slower than this, beside the best, count half
FIXED_CONSTS = {"QBUF": 2, "STAGED": True, "STAGES": 2, "AHEAD": True}  # as the signature has them


@dataclasses.dataclass(frozen=True)
class Measured:
    """Cell, with the milliseconds of each setting and the bytes of spills a thread, by label."""

    cell: Cell
    times: Mapping[str, float]
    spills: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def best(self) -> float:
        """Milliseconds of the fastest setting."""
        return min(self.times.values())


def read(paths: Iterable[Path]) -> tuple[str, list[Measured]]:
    """Read files; return the GPU and the measurements."""
    rows = [row for path in paths for row in read_rows(path)]
    return next((row["device"] for row in rows if "device" in row), ""), measurements(rows)


def measurements(rows: Iterable[Mapping[str, Any]]) -> list[Measured]:
    """Combine the figures of cells that were measured again.

    They are medians, after each turn was scaled to the pace of the first, as the clock of the GPU differs each time.
    """
    times_of = dict[Cell, dict[str, list[float]]]()
    spills = dict[tuple[str, int], dict[str, int]]()
    for row in rows:
        if "built" in row:
            spills.setdefault((row["built"], row["D"]), {})[row["setting"]] = row["spills"]
        elif "ms" in row:
            times = times_of.setdefault(Cell(row["variant"], Shape(*row["shape"])), {})
            pace_times = {name: statistics.median(samples) for name, samples in row["ms"].items()}
            ratios = [statistics.median(times[name]) / x for name, x in pace_times.items() if name in times]
            pace = statistics.geometric_mean(ratios) if ratios else 1.0
            for name, samples in row["ms"].items():
                times.setdefault(name, []).extend(x * pace for x in samples)
    return [
        Measured(c, {n: statistics.median(t) for n, t in times.items()}, spills.get((c.variant, c.shape.D), {}))
        for c, times in times_of.items()
    ]


@cache
def work_of(cell: Cell) -> tuple[Work, tuple[tuple[str, int | float], ...]]:
    """Return the work of a cell, and the numbers of its variant."""
    transferred = of_cell(cell)
    work = Work.of(transferred.program, transferred.kernel)
    assert work is not None
    return work, tuple(transferred.numbers.items())


# ---- the table
def table_of(measured: Sequence[Measured], sms: int) -> list[table.Row]:
    """Return for each variant and head dim the settings by visited keys of a query: as few as cost little.

    Cells need as many tiles as rows hold for. One that loses more than OWN by the shared setting has a separate row for
    its number of query heads per key head.
    """
    groups: dict[tuple[str, int, int], list[tuple[float, Measured]]] = {}
    for m in measured:
        if table.count_waves(m.cell.shape, sms) < table.MIN_WAVES:
            continue
        work, numbers = work_of(m.cell)
        groups.setdefault((m.cell.variant, m.cell.shape.D, m.cell.shape.DV), []).append(
            (table.compute_mean_keys(work, m.cell.shape, dict(numbers)), m)
        )
    rows = []
    for (variant, D, DV), group in groups.items():
        by_keys: dict[float, list[Measured]] = {}
        for keys, m in sorted(group, key=lambda pair: pair[0]):
            by_keys.setdefault(keys, []).append(m)
        kind = table.Kind.of(work_of(group[0][1].cell)[0])
        for name, keys_of_run in runs(by_keys):
            rows.append(
                table.Row(variant, kind, (D, DV), keys_of_run[0], keys_of_run[-1], parse_setting(name), group[0][1].spills.get(name, 0))
            )
            for keys in keys_of_run:
                for m in by_keys[keys]:
                    best = min(m.times, key=lambda n: m.times[n])
                    if m.times.get(name, math.inf) > (1 + SHARED_LOSS) * m.best:
                        heads = m.cell.shape.H // m.cell.shape.HK
                        rows.append(table.Row(variant, kind, (D, DV), keys, keys, parse_setting(best), m.spills.get(best, 0), heads))
    return rows


def runs(by_keys: Mapping[float, Sequence[Measured]]) -> list[tuple[str, list[float]]]:
    """Return settings for runs of neighbouring keys.

    They minimise the sum of their losses, and of CHANGE for each change, by dynamic programming.
    """
    names = sorted({n for ms in by_keys.values() for m in ms for n in m.times})
    steps = []
    for ms in by_keys.values():
        lost = {n: statistics.mean(math.log(m.times[n] / m.best) if n in m.times else 1.0 for m in ms) for n in names}
        steps.append(lost)
    total, came = dict(steps[0]), list[dict[str, str]]()
    for lost in steps[1:]:
        least = min(total, key=lambda n: total[n])
        came.append({n: n if total[n] <= total[least] + CHANGE else least for n in names})
        total = {n: total[came[-1][n]] + (CHANGE if came[-1][n] != n else 0.0) + lost[n] for n in names}
    chosen = [min(total, key=lambda n: total[n])]
    for back in reversed(came):
        chosen.append(back[chosen[-1]])
    result: list[tuple[str, list[float]]] = []
    for name, keys in zip(reversed(chosen), by_keys, strict=True):
        if result and result[-1][0] == name:
            result[-1][1].append(keys)
        else:
            result.append((name, [keys]))
    return result


# ---- the model
def terms(measured: Sequence[Measured], sms: int) -> list[tuple[cost.Terms, float, float]]:
    """Return (terms, milliseconds, weight) of each figure, for masks whose blocks are known."""
    figures = []
    for m in measured:
        work, numbers = work_of(m.cell)
        if work.blocks != "listed":
            for name, milliseconds in m.times.items():
                weight = 1.0 if milliseconds <= NEAR * m.best else 0.5
                figures.append(
                    (cost.Terms.of(work, m.cell.shape, dict(numbers), {**FIXED_CONSTS, **parse_setting(name)}, sms), milliseconds, weight)
                )
    return figures


def fit(figures: Sequence[tuple[cost.Terms, float, float]], rounds: int = 40) -> cost.Coefficients:
    """Fit the coefficients to the logarithms of measured times.

    The method is Levenberg-Marquardt's, on the logarithms of the coefficients.
    """
    names = [f.name for f in dataclasses.fields(cost.Coefficients)]

    def off(x: np.ndarray) -> np.ndarray:
        c = cost.Coefficients(**dict(zip(names, np.exp(x).tolist(), strict=True)))
        raw = np.array([w * math.log(cost.predict_milliseconds(t, c) / milliseconds) for t, milliseconds, w in figures])
        return np.asarray(np.arcsinh(raw / FAR) * FAR)  # large errors weigh less and less

    x, damping = np.log([getattr(cost.Coefficients(), n) for n in names]), 1.0
    at = off(x)
    for _ in range(rounds):
        slope = np.stack([(off(x + step) - at) / 1e-4 for step in np.eye(len(x)) * 1e-4], 1)
        while damping < 1e9:
            curve = slope.T @ slope
            move = np.linalg.solve(curve + damping * np.diag(np.diag(curve) + 1e-9), -slope.T @ at)
            candidate = np.clip(x + np.clip(move, -1, 1), -12, 12)
            new = off(candidate)
            if new @ new < at @ at:
                break
            damping *= 4
        if damping >= 1e9 or at @ at - new @ new < 1e-6 * (at @ at):
            break
        x, at, damping = candidate, new, max(damping / 8, 1e-6)
    return cost.Coefficients(**{n: float(f"{v:.5g}") for n, v in zip(names, np.exp(x), strict=True)})


# ---- what would be chosen
def report(measured: Sequence[Measured], device: str, source: Source) -> list[tuple[float, Measured, str]]:
    """Return (best over chosen, the cell, the choice) of each cell whose choice was measured."""
    sms = int(device.rpartition(" ")[2])
    results = []
    for m in measured:
        transferred = of_cell(m.cell)
        numbers = dict(work_of(m.cell)[1])
        varied = {n for name in m.times for n in parse_setting(name)}
        fixed = whole({n: FIXED_CONSTS[n] for n in ("AHEAD",) if n not in varied}, m.cell.shape.D)  # measured before it was an axis
        chosen = choose(
            transferred.program, fixed, m.cell.shape.lengths, Evidence(sources=(source,), device=Device(device, sms)), numbers=numbers
        )
        name = next(
            (
                n
                for n in m.times
                if all(chosen.setting.get(k, FIXED_CONSTS.get(k)) == v for k, v in {**FIXED_CONSTS, **parse_setting(n)}.items())
                and all(parse_setting(n).get(k, FIXED_CONSTS.get(k)) == v for k, v in chosen.setting.items())
            ),
            "",
        )
        results.append((m.best / m.times[name] if name else float("nan"), m, str(chosen)))
    return results


def summary(results: Sequence[tuple[float, Measured, str]]) -> str:
    """Format how near the choices come to the best that was measured, by variant and head dim."""
    lines = ["| variant | head dim | cells | mean | worst | where |", "|---|--:|--:|--:|--:|---|"]
    groups: dict[tuple[str, int], list[tuple[float, Measured, str]]] = {}
    for result in results:
        groups.setdefault((result[1].cell.variant, result[1].cell.shape.D), []).append(result)
    for (variant, D), group in groups.items():
        measured = [result for result in group if result[0] == result[0]]
        if measured:
            worst = min(measured, key=lambda result: result[0])
            place = f"{worst[1].cell.shape.N}, {worst[1].cell.shape.H}/{worst[1].cell.shape.HK} heads"
            lines.append(
                f"| {variant} | {D} | {len(measured)} | {statistics.mean(r for r, *_ in measured):.3f} | {worst[0]:.3f} | {place} |"
            )
    every = sorted(r for r, *_ in results if r == r)
    if not every:
        return f"none of the choices was measured in {len(results)} cells"
    short = sum(r < 0.97 for r in every)
    return (
        "\n".join(lines)
        + f"\n\n{len(every)} cells: mean {statistics.mean(every):.4f}, worst {every[0]:.3f}, {short} under 0.97; {len(results) - len(every)} choices were not measured"
    )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=["table", "fit", "report"])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--cells", action="store_true", help="report: a line for each cell whose choice is not the best")
    parser.add_argument("--dims", nargs="+", type=int, help="head dims that count (left out: all that were measured)")
    options = parser.parse_args()
    device, measured = read(options.files)
    measured = [m for m in measured if not options.dims or m.cell.shape.D in options.dims]
    name = Device(device, 0).name
    if options.do == "table":
        rows = ",\n".join("  " + json.dumps(row.as_json()) for row in table_of(measured, int(device.rpartition(" ")[2])))
        place = PLACE / "tables" / f"{table.make_file_stem(name)}.json"
        place.parent.mkdir(exist_ok=True)
        gpu = Device(device, int(device.rpartition(" ")[2]))
        head = f'"gpu": {json.dumps(gpu.name)}, "arch": {json.dumps(gpu.generation)}, "sms": {gpu.sms}'
        place.write_text(f'{{{head}, "rows": [\n{rows}\n]}}\n', encoding="utf-8")
        print(f"{place}: {rows.count(chr(10)) + 1} rows")
    elif options.do == "fit":
        figures = terms(measured, int(device.rpartition(" ")[2]))
        c = fit(figures)
        off = np.array([math.log(cost.predict_milliseconds(t, c) / milliseconds) for t, milliseconds, _ in figures])
        statistics_of_fit = {
            "figures": len(figures),
            "deviation": round(float(off.std()), 4),
            "nine of ten within": round(float(np.quantile(abs(off), 0.9)), 4),
        }
        (PLACE / "cost.json").write_text(
            json.dumps({"gpu": name, **statistics_of_fit, "coefficients": c.as_json()}, indent=1) + "\n", encoding="utf-8"
        )
        print(statistics_of_fit, c)
    else:
        for source in ("table", "model"):
            results = report(measured, device, source)
            print(f"\n{source}\n\n{summary(results)}")
            for ratio, m, chosen in sorted(results, key=lambda result: result[0]) if options.cells else ():
                if not ratio >= 0.985:
                    best = min(m.times, key=lambda n: m.times[n])
                    print(f"{ratio:.3f} {m.cell.variant} {m.cell.shape}: {chosen}; best {best}")


if __name__ == "__main__":
    main()
