"""Rows of results files: what was measured of each contender of a cell, as JSON data."""

from __future__ import annotations

from typing import TypedDict

from ...checking.const_defaults import PlainConsts


class Entry(TypedDict, total=False):
    """Entry of a contender: why it has no figures, or its error and times.

    Attributes:
        failed: Why it did not run.
        wrong: Why its result is wrong.
        error: Largest relative error.
        milliseconds: Median time.
        tflops, gbs: Figures of its suite.
        rounds: Rounds in which it was timed.
        consts: Setting of our kernel.
    """

    failed: str
    wrong: str
    error: float
    milliseconds: float
    tflops: float
    gbs: float
    rounds: int
    consts: PlainConsts


class ComparedRow(TypedDict, total=False):
    """Row of a comparison: a kernel and its figures, None with a reason if it was not timed."""

    what: str
    milliseconds: float | None
    tflops: float | None
    why: str


class Comparison(TypedDict):
    """Comparison of a kernel with PyTorch's.

    Attributes:
        device: On which it ran.
        problem: What was computed.
        rows: This kernel's row, and those of the others.
        error: Of this kernel.
        yardstick: PyTorch's own error in half precision.
        summary: A line for people.
    """

    device: str
    problem: str
    rows: list[ComparedRow]
    error: float
    yardstick: float
    summary: str


class CellRow(TypedDict):
    """Cell of a suite as JSON data."""

    variant: str
    parameters: dict[str, int | float]
    model: str
    shape: list[int]


class Row(CellRow, total=False):
    """Row of a cell: its entries, or why it has none.

    Attributes:
        dtype: Of the tensors.
        flops, bytes: Work that the figures count.
        own_error: Error of PyTorch in half precision.
        bound: Largest error that is accepted.
        contenders: Entries by contender.
        failed: Why the cell has none.
        asked: Contenders that were asked for.
    """

    dtype: str
    flops: float
    bytes: int
    own_error: float
    bound: float
    contenders: dict[str, Entry]
    failed: str
    asked: list[str]
