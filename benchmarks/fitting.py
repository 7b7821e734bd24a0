"""From measurements (`python -m benchmarks.defaults measure`) to what the package ships for calls that nobody tunes: a table for the GPU, and the model's numbers.

python -m benchmarks.fitting table rows.jsonl     # -> cuir/choice/tables/GPU.json
python -m benchmarks.fitting fit rows.jsonl       # -> cuir/choice/cost.json
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

import cuir.choice
from benchmarks.defaults import Cell, of_cell, parsed, whole
from cuir.choice import Device, cost, table
from cuir.choice.choose import Source, choose
from cuir.choice.work import Work
from cuir.measure.problem import Shape

PLACE = Path(cuir.choice.__file__).parent
CHANGE = 0.02  # of a group's time: what another setting has to gain for the rows between two changes; it is another kernel to compile
OWN = 0.03  # of a cell's time: what it may lose by the setting that it shares with its neighbours
FAR = 0.05  # predictions that are farther off than this count ever less
NEAR = 1.12  # settings that are slower than this, beside the best, count half
HELD = {"QBUF": 2, "STAGED": True, "STAGES": 2, "AHEAD": True}  # as the signature has them


@dataclasses.dataclass(frozen=True)
class Measured:
    """A cell, and by label the milliseconds of each setting and the bytes a thread that it spills."""

    cell: Cell
    times: Mapping[str, float]
    spills: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def best(self) -> float:
        return min(self.times.values())


def read(paths: Iterable[Path]) -> tuple[str, list[Measured]]:
    """(the GPU, what was measured) of files."""
    rows = [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    return next((row["device"] for row in rows if "device" in row), ""), measurements(rows)


def measurements(rows: Iterable[Mapping[str, Any]]) -> list[Measured]:
    """Of a cell that was measured again the figures count together: medians, after those of each turn were brought to the pace of the first, as the card's clock is another one each
    time."""
    found = dict[Cell, dict[str, list[float]]]()
    spills = dict[tuple[str, int], dict[str, int]]()
    for row in rows:
        if "built" in row:
            spills.setdefault((row["built"], row["D"]), {})[row["setting"]] = row["spills"]
        elif "ms" in row:
            times = found.setdefault(Cell(row["variant"], Shape(*row["shape"])), {})
            own = {name: statistics.median(taken) for name, taken in row["ms"].items()}
            both = [statistics.median(times[name]) / x for name, x in own.items() if name in times]
            pace = statistics.geometric_mean(both) if both else 1.0
            for name, taken in row["ms"].items():
                times.setdefault(name, []).extend(x * pace for x in taken)
    return [
        Measured(c, {n: statistics.median(t) for n, t in times.items()}, spills.get((c.variant, c.shape.D), {}))
        for c, times in found.items()
    ]


@cache
def work_of(cell: Cell) -> tuple[Work, tuple[tuple[str, int | float], ...]]:
    made = of_cell(cell)
    work = Work.of(made.program, made.kernel)
    assert work is not None
    return work, tuple(made.numbers.items())


# ---- the table
def table_of(measured: Sequence[Measured], sms: int) -> list[table.Row]:
    """For each variant and head dim the settings by how many keys a query visits: as few as cost little. Of cells with as many tiles as rows hold for; one that loses more than OWN by
    what it shares with others has a row for its number of query heads a key head."""
    groups: dict[tuple[str, int, int], list[tuple[float, Measured]]] = {}
    for m in measured:
        if table.count_waves(m.cell.shape, sms) < table.MIN_WAVES:
            continue
        work, numbers = work_of(m.cell)
        groups.setdefault((m.cell.variant, m.cell.shape.D, m.cell.shape.DV), []).append(
            (table.compute_mean_keys(work, m.cell.shape, dict(numbers)), m)
        )
    made = []
    for (variant, D, DV), group in groups.items():
        by_keys: dict[float, list[Measured]] = {}
        for keys, m in sorted(group, key=lambda pair: pair[0]):
            by_keys.setdefault(keys, []).append(m)
        kind = table.Kind.of(work_of(group[0][1].cell)[0])
        for name, its in runs(by_keys):
            made.append(table.Row(variant, kind, (D, DV), its[0], its[-1], parsed(name), group[0][1].spills.get(name, 0)))
            for keys in its:
                for m in by_keys[keys]:
                    best = min(m.times, key=lambda n: m.times[n])
                    if m.times.get(name, math.inf) > (1 + OWN) * m.best:
                        heads = m.cell.shape.H // m.cell.shape.HK
                        made.append(table.Row(variant, kind, (D, DV), keys, keys, parsed(best), m.spills.get(best, 0), heads))
    return made


def runs(by_keys: Mapping[float, Sequence[Measured]]) -> list[tuple[str, list[float]]]:
    """Settings for runs of neighbouring keys: the least sum of what they lose, and of CHANGE for each change."""
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
    found: list[tuple[str, list[float]]] = []
    for name, keys in zip(reversed(chosen), by_keys, strict=True):
        if found and found[-1][0] == name:
            found[-1][1].append(keys)
        else:
            found.append((name, [keys]))
    return found


# ---- the model
def terms(measured: Sequence[Measured], sms: int) -> list[tuple[cost.Terms, float, float]]:
    """(terms, milliseconds, weight) of each figure; of masks whose blocks are known alone."""
    found = []
    for m in measured:
        work, numbers = work_of(m.cell)
        if work.blocks != "listed":
            for name, taken in m.times.items():
                weight = 1.0 if taken <= NEAR * m.best else 0.5
                found.append((cost.Terms.of(work, m.cell.shape, dict(numbers), {**HELD, **parsed(name)}, sms), taken, weight))
    return found


def fitted(figures: Sequence[tuple[cost.Terms, float, float]], rounds: int = 40) -> cost.Coefficients:
    """The coefficients that make the logarithms of what is predicted and what was measured most alike: Levenberg and Marquardt's method, on their logarithms."""
    names = [f.name for f in dataclasses.fields(cost.Coefficients)]

    def off(x: np.ndarray) -> np.ndarray:
        c = cost.Coefficients(**dict(zip(names, np.exp(x).tolist(), strict=True)))
        raw = np.array([w * math.log(cost.predict_milliseconds(t, c) / taken) for t, taken, w in figures])
        return np.asarray(np.arcsinh(raw / FAR) * FAR)  # those that are far off say ever less

    x, damping = np.log([getattr(cost.Coefficients(), n) for n in names]), 1.0
    at = off(x)
    for _ in range(rounds):
        slope = np.stack([(off(x + step) - at) / 1e-4 for step in np.eye(len(x)) * 1e-4], 1)
        while damping < 1e9:
            curve = slope.T @ slope
            move = np.linalg.solve(curve + damping * np.diag(np.diag(curve) + 1e-9), -slope.T @ at)
            there = np.clip(x + np.clip(move, -1, 1), -12, 12)
            new = off(there)
            if new @ new < at @ at:
                break
            damping *= 4
        if damping >= 1e9 or at @ at - new @ new < 1e-6 * (at @ at):
            break
        x, at, damping = there, new, max(damping / 8, 1e-6)
    return cost.Coefficients(**{n: float(f"{v:.5g}") for n, v in zip(names, np.exp(x), strict=True)})


# ---- what would be chosen
def report(measured: Sequence[Measured], device: str, source: Source) -> list[tuple[float, Measured, str]]:
    """(best over chosen, the cell, the choice) of each cell; without those whose choice was not measured there."""
    sms = int(device.rpartition(" ")[2])
    found = []
    for m in measured:
        made = of_cell(m.cell)
        numbers = dict(work_of(m.cell)[1])
        varied = {n for name in m.times for n in parsed(name)}
        fixed = whole({n: HELD[n] for n in ("AHEAD",) if n not in varied}, m.cell.shape.D)  # measured before it was an axis
        chosen = choose(made.program, fixed, m.cell.shape.lengths, numbers=numbers, device=Device(device, sms), sources=(source,))
        name = next((n for n in m.times if all(chosen.setting.get(k, HELD.get(k)) == v for k, v in {**HELD, **parsed(n)}.items()) and
                     all(parsed(n).get(k, HELD.get(k)) == v for k, v in chosen.setting.items())), "")  # fmt: skip
        found.append((m.best / m.times[name] if name else float("nan"), m, str(chosen)))
    return found


def summary(found: Sequence[tuple[float, Measured, str]]) -> str:
    """Markdown: how near the choices come to the best that was measured, by variant and head dim."""
    lines = ["| variant | head dim | cells | mean | worst | where |", "|---|--:|--:|--:|--:|---|"]
    groups: dict[tuple[str, int], list[tuple[float, Measured, str]]] = {}
    for one in found:
        groups.setdefault((one[1].cell.variant, one[1].cell.shape.D), []).append(one)
    for (variant, D), ones in groups.items():
        known = [one for one in ones if one[0] == one[0]]
        if known:
            worst = min(known, key=lambda one: one[0])
            where = f"{worst[1].cell.shape.N}, {worst[1].cell.shape.H}/{worst[1].cell.shape.HK} heads"
            lines.append(f"| {variant} | {D} | {len(known)} | {statistics.mean(r for r, *_ in known):.3f} | {worst[0]:.3f} | {where} |")
    every = sorted(r for r, *_ in found if r == r)
    if not every:
        return f"none of the choices was measured in {len(found)} cells"
    short = sum(r < 0.97 for r in every)
    return (
        "\n".join(lines)
        + f"\n\n{len(every)} cells: mean {statistics.mean(every):.4f}, worst {every[0]:.3f}, {short} under 0.97; {len(found) - len(every)} choices were not measured"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=["table", "fit", "report"])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--cells", action="store_true", help="report: a line for each cell whose choice is not the best")
    parser.add_argument("--dims", nargs="+", type=int, help="head dims that count (left out: all that were measured)")
    given = parser.parse_args()
    device, measured = read(given.files)
    measured = [m for m in measured if not given.dims or m.cell.shape.D in given.dims]
    name = Device(device, 0).name
    if given.do == "table":
        rows = ",\n".join("  " + json.dumps(row.as_json()) for row in table_of(measured, int(device.rpartition(" ")[2])))
        place = PLACE / "tables" / f"{table.make_file_stem(name)}.json"
        place.parent.mkdir(exist_ok=True)
        gpu = Device(device, int(device.rpartition(" ")[2]))
        head = f'"gpu": {json.dumps(gpu.name)}, "arch": {json.dumps(gpu.generation)}, "sms": {gpu.sms}'
        place.write_text(f'{{{head}, "rows": [\n{rows}\n]}}\n', encoding="utf-8")
        print(f"{place}: {rows.count(chr(10)) + 1} rows")
    elif given.do == "fit":
        figures = terms(measured, int(device.rpartition(" ")[2]))
        c = fitted(figures)
        off = np.array([math.log(cost.predict_milliseconds(t, c) / taken) for t, taken, _ in figures])
        said = {
            "figures": len(figures),
            "deviation": round(float(off.std()), 4),
            "nine of ten within": round(float(np.quantile(abs(off), 0.9)), 4),
        }
        (PLACE / "cost.json").write_text(json.dumps({"gpu": name, **said, "coefficients": c.as_json()}, indent=1) + "\n", encoding="utf-8")
        print(said, c)
    else:
        for source in ("table", "model"):
            found = report(measured, device, source)
            print(f"\n{source}\n\n{summary(found)}")
            for ratio, m, chosen in sorted(found, key=lambda one: one[0]) if given.cells else ():
                if not ratio >= 0.985:
                    best = min(m.times, key=lambda n: m.times[n])
                    print(f"{ratio:.3f} {m.cell.variant} {m.cell.shape}: {chosen}; best {best}")


if __name__ == "__main__":
    main()
