"""Judgement by `cuir verify` of kernels written by hand from the documentation.

It counts how many faulty ones are refused, and how many right ones are not.

    python -m benchmarks.handwritten.judge SOURCE... --level quick --out verdicts.jsonl
    python -m benchmarks.handwritten.judge --table verdicts.jsonl

A source is a folder of programs, a PyTorch reference for each, and `index.jsonl`: a line a program, {"file", "kernel",
"against", "consts", "class", "right", "fault"}. Or it is a bundle, NAME.jsonl or NAME.jsonl.xz: such lines with the texts in them,
"text" and "reference"; `--unpack FOLDER` writes them as files. Each is verified in a separate process, with a limit of
time; verdicts in --out are not judged again.
"""

from __future__ import annotations

import argparse
import functools
import json
import lzma
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.recorded import read_rows
from cuir.text.markdown import table

FOLDER = Path(__file__).parent
CLASSES = {
    1: "shared memory: waits, arrivals, stages, products, fences",
    2: "grid and sizes: units of a CTA, more CTAs, more blocks, more batches",
    3: "global memory: CTAs and rows that meet, missing order",
    4: "scope and proxy: fences, clusters, bulk stores",
    5: "floats and limits: NaN, range, cancellation, rounding, overflow",
    6: "values of kernels that are no attention",
    7: "index arithmetic and heads",
    8: "special values: infinities, zeros, padding, cancellation",
    9: "decisions: rounding, casts, ties, buckets",
    10: "gradients",
    11: "caches: pages, lengths, windows, shares",
}


def sources() -> list[Path]:
    """List the bundles beside this file."""
    return sorted(FOLDER.glob("kernels/*.jsonl.xz"))


@functools.cache
def make_unpack_folder() -> tempfile.TemporaryDirectory[str]:
    """Make the folder in which bundles are unpacked; it is removed at the end of the process."""
    return tempfile.TemporaryDirectory(prefix="handwritten-")


def unpack(bundle: Path, folder: Path) -> Path:
    """Write the programs of a bundle, their references and an index into a folder of its name; return that."""
    target = folder / bundle.name.partition(".")[0]
    target.mkdir(parents=True, exist_ok=True)
    index = []
    read = lzma.decompress if bundle.suffix == ".xz" else bytes
    for line in read(bundle.read_bytes()).decode("utf-8").split("\n"):
        if not line:
            continue
        entry = json.loads(line)
        (target / entry["file"]).write_text(entry.pop("text"), encoding="utf-8")
        (target / entry["against"]).write_text(entry.pop("reference"), encoding="utf-8")
        index.append(json.dumps(entry, ensure_ascii=False) + "\n")
    (target / "index.jsonl").write_text("".join(index), encoding="utf-8")
    return target


def programs(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the entries of folders and bundles, each with the folder of its files."""
    entries = []
    for source in paths:
        folder = unpack(source, Path(make_unpack_folder().name)) if source.is_file() else source
        for line in (folder / "index.jsonl").read_text(encoding="utf-8").splitlines():
            if line.strip():
                entries.append({**json.loads(line), "folder": folder})
    return entries


def judge(entry: Mapping[str, Any], level: str, limit: float) -> dict[str, Any]:
    """Run `cuir verify` on one program; return the verdict.

    It is passed, refused, out of time, or crashed (a wrong call, or a fault of cuir).
    """
    folder = entry["folder"]
    command = [
        sys.executable,
        "-m",
        "cuir",
        "verify",
        str(folder / entry["file"]),
        "--against",
        str(folder / entry["against"]),
        "--level",
        level,
        "--json",
    ]
    command += ["-k", entry["kernel"]] if entry.get("kernel") else []
    for name, value in entry.get("consts", {}).items():
        command += ["-c", f"{name}={value}"]
    begin = time.perf_counter()
    record = {"program": f"{folder.name}/{entry['file']}", "class": entry["class"], "right": entry["right"], "level": level}
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {**record, "verdict": "out of time", "seconds": round(limit, 1)}
    seconds = round(time.perf_counter() - begin, 1)
    try:
        output = json.loads(process.stdout)
    except json.JSONDecodeError:
        return {**record, "verdict": "crashed", "seconds": seconds, "message": (process.stderr or process.stdout)[-400:]}
    stages = output.get("stages") or []
    failed = next((s for s in stages if s["verdict"] == "failed"), None)
    diagnostics = (failed or {}).get("diagnostics") or output.get("diagnostics") or []
    first = diagnostics[0] if diagnostics else {}
    verdict = {0: "passed", 1: "refused"}.get(process.returncode, "crashed")
    return {
        **record,
        "verdict": verdict,
        "stage": failed["name"] if failed else "",
        "code": first.get("code", ""),
        "message": first.get("message", "")[:300],
        "seconds": seconds,
    }


def summary(verdicts: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a table of markdown: refused of the faulty ones at each level, then the right ones.

    Faulty ones have a row a class.
    """
    rows: list[tuple[str, ...]] = []
    records = list(verdicts)
    levels = [x for x in ("quick", "full") if any(v["level"] == x for v in records)]

    def share(of: Sequence[Mapping[str, Any]], verdict: str) -> list[str]:
        return [
            f"{sum(v['verdict'] == verdict for v in at)}/{len(at)}" for level in levels for at in [[v for v in of if v["level"] == level]]
        ]

    for number, words in CLASSES.items():
        if of := [v for v in records if v["class"] == number and not v["right"]]:
            rows.append((str(number), words, *share(of, "refused")))
    rows.append(("", "all faulty ones", *share([v for v in records if not v["right"]], "refused")))
    rows.append(("", "right ones that pass", *share([v for v in records if v["right"]], "passed")))
    return list(table(("class", "of", *(f"refused at {x}" for x in levels)), rows))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", type=Path, help="left out: those beside this file")
    parser.add_argument("--unpack", type=Path, metavar="FOLDER", help="write the programs of bundles as files, judge nothing")
    parser.add_argument("--level", choices=("quick", "full"), default="quick")
    parser.add_argument("--out", type=Path, help="a line of JSON a verdict; judged ones are not judged again")
    parser.add_argument("--table", type=Path, nargs="+", help="print the table of what is there, judge nothing")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for one program")
    options = parser.parse_args()
    if options.table:
        print("\n".join(summary(row for path in options.table for row in read_rows(path))))
        return
    chosen = options.sources or sources()
    if options.unpack:
        print("\n".join(str(unpack(s, options.unpack)) for s in chosen if s.is_file()))
        return
    verdicts: list[dict[str, Any]] = []
    if options.out and options.out.exists():
        verdicts = [json.loads(x) for x in options.out.read_text(encoding="utf-8").splitlines()]
    judged_keys = {(v["program"], v["level"]) for v in verdicts}
    todo = [e for e in programs(chosen) if (f"{e['folder'].name}/{e['file']}", options.level) not in judged_keys]
    with ThreadPoolExecutor(options.jobs) as pool:
        for verdict in pool.map(lambda e: judge(e, options.level, options.limit), todo):
            verdicts.append(verdict)
            if options.out:
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(verdict) + "\n")
            wrong = verdict["verdict"] != ("passed" if verdict["right"] else "refused")
            print(
                f"{'!' if wrong else ' '} {verdict['program']}: {verdict['verdict']} {verdict.get('code', '')} {verdict.get('message', '')[:160] if wrong else ''}",
                flush=True,
            )
    print("\n".join(summary(verdicts)))


if __name__ == "__main__":
    main()
