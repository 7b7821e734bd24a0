"""Systematic faults of synchronisation, made line by line in the text of a right kernel, with the lines that a report may name for each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

CALL = re.compile(r"^(\s+)(\w+)(\[.*?\])?\.(wait|arrive|expect|sync)\((.*)\)\s*(#.*)?$")
COUNT = re.compile(r"\b(mbarrier|named_barrier)\(([\w ]+(?:\* ?\w+)?)([,)])")
COPY = re.compile(r"^(\s+)copy_async\((.*), (\w+)(\[.*?\])?(, cluster=True)?\)\s*(#.*)?$")


@dataclass(frozen=True)
class LineFault:
    """Fault in a line: its description, the faulty text, the lines to blame (from 1), and its barrier.

    A report of something left out names the barrier in words.
    """

    kind: str
    text: str
    lines: tuple[int, ...]
    barrier: str
    left_out: bool = False

    def __str__(self) -> str:
        return f"{self.kind} @{self.lines[0]}"


def line_faults(text: str) -> Iterator[LineFault]:
    """Each parity turned, count off by one, expect dropped, halved, doubled or without bytes, wait and arrival dropped, arrival moved up, barrier at another stage."""
    lines = text.split("\n")

    def with_line(kind: str, i: int, new: str, barrier: str, also: tuple[int, ...] = (), left_out: bool = False) -> LineFault:
        return LineFault(kind, "\n".join([*lines[:i], new, *lines[i + 1 :]]), (i + 1, *also), barrier, left_out)

    for i, line in enumerate(lines):
        for m in COUNT.finditer(line):
            names = line.split("=")[0]
            name = names.split(",")[len(COUNT.findall(line[: m.start()]))].strip() if "," in names else names.strip()
            for sign in "+-":
                if not (sign == "-" and m[2].strip() == "1"):
                    yield with_line(f"count {sign} 1", i, f"{line[: m.start(2)]}{m[2]} {sign} 1{line[m.end(2) :]}", name)
        if (c := COPY.match(line)) is not None and c[4]:
            for stage in ("0", f"({c[4][1:-1]} + 1) % STAGES"):
                yield with_line(
                    f"copy on stage {stage}", i, f"{c[1]}copy_async({c[2]}, {c[3]}[{stage}]{c[5] or ''})", c[3], _partners(lines, i, c[3])
                )
        if (m := CALL.match(line)) is None:
            continue
        indent, name, stage, description, argument, _ = m.groups()
        put, at = f"{indent}{name}{{}}.{{}}({{}})", stage or ""
        drop = with_line(f"drop {description}", i, "", name, _near(lines, i), True)
        if description == "wait":
            yield with_line("parity turned", i, put.format(at, description, f"{argument} ^ 1"), name)
            yield drop
        elif description == "expect":
            partners = _partners(lines, i, name)
            yield drop
            for kind, bytes_ in (("halved", f"({argument}) // 2"), ("doubled", f"2 * ({argument})"), ("without bytes", "0")):
                yield with_line(f"expect {kind}", i, put.format(at, description, bytes_), name, partners)
        elif description == "arrive":
            yield drop
            for up in (1, 2, 4):
                if i - up >= 0 and all(_indent(x) == len(indent) for x in lines[i - up : i]):
                    moved = [*lines[: i - up], line, *lines[i - up : i], *lines[i + 1 :]]
                    yield LineFault(f"arrive {up} earlier", "\n".join(moved), (i - up + 1,), name)
            yield with_line("arrive twice", i, f"{line}\n{line}", name, (i + 2,))
        if stage and "%" not in stage:
            for second in ("[0]", f"[({stage[1:-1]} + 1) % STAGES]"):
                if name != "turn":
                    yield with_line(
                        f"{description} on stage {second}", i, put.format(second, description, argument), name, _partners(lines, i, name)
                    )


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip()) if line.strip() else -1


def _near(lines: list[str], i: int) -> tuple[int, ...]:
    """The statements behind a line that was left out: what it guarded or released is among them."""
    return tuple(j + 1 for j in range(i - 6, i + 8) if 0 <= j < len(lines) and lines[j].strip())


def _partners(lines: list[str], i: int, name: str) -> tuple[int, ...]:
    """The copies and expects near a line that are on the same barrier."""
    return tuple(
        j + 1
        for j in range(max(0, i - 4), min(len(lines), i + 5))
        if j != i and re.search(rf"\b{name}\b", lines[j]) and ("copy_async" in lines[j] or ".expect(" in lines[j])
    )
