"""Tables of measured settings, a file for each GPU, made by `python -m benchmarks.fitting table`.

A row covers a kind of programs and a range of work, not one program: a setting measured for a causal mask serves any
mask whose blocks and arithmetic cost as much. Rows of a GPU also serve its relatives, those of its generation with as
many multiprocessors: an H100 (SXM) is an H200 with other memory.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from ...checking.checked import Const
from ..search.space import from_plain, plain
from ..timing.problem import Shape
from .device import Device
from .work import Work

MAX_DISTANCE = 2.5  # greatest distance of a row that is used
RELATIVE_PENALTY = 0.25  # additional distance of a row that was measured on a relative
MIN_WAVES = 4.0  # tiles of 128 queries a multiprocessor: with fewer, their distribution matters more than a row's data
TILE = {"BM": 128, "BN": 128}  # tile for which keys are counted


@dataclass(frozen=True)
class Kind:
    """Properties of a program by which rows are compared, apart from its products.

    These are how the blocks are known, and the instructions for a pair (`Arithmetic`) of score and mask.
    """

    blocks: str
    score: int
    special: int
    keep: int

    @staticmethod
    def of(work: Work) -> Kind:
        """Return the kind of a program."""
        return Kind(work.blocks, work.score.plain, work.score.special, work.keep.plain)

    def distance(self, target: Kind) -> float:
        """Return 0 for programs of equal cost; 1 is like a doubling of the keys that a query visits."""
        unlike = 0.0 if self.blocks == target.blocks else 1.0
        return unlike + abs(self.score - target.score) / 8 + abs(self.special - target.special) + abs(self.keep - target.keep) / 16


@dataclass(frozen=True)
class Row:
    """A setting for programs of a kind whose queries visit from `least` to `most` keys each, on average.

    Attributes:
        variant: The variant that it was measured with.
        spilled: Bytes a thread that it spilled there.
        heads: Query heads a key head, if the row only holds for these.
    """

    variant: str
    kind: Kind
    head_dims: tuple[int, int]
    least: float
    most: float
    setting: Mapping[str, Const]
    spilled: int = 0
    heads: int | None = None

    @staticmethod
    def parse(data: Mapping[str, Any]) -> Row:
        """Return a row from its JSON data."""
        kind, (least, most) = Kind(data["blocks"], data["score"], data["special"], data["keep"]), map(float, data["keys"])
        dims, setting = (data["D"], data["DV"]), from_plain(data["setting"])
        return Row(data["variant"], kind, dims, least, most, setting, data.get("spilled", 0), data.get("heads"))

    def as_json(self) -> dict[str, Any]:
        """Return the row as JSON data."""
        kind = {"blocks": self.kind.blocks, "score": self.kind.score, "special": self.kind.special, "keep": self.kind.keep}
        dims = {"D": self.head_dims[0], "DV": self.head_dims[1]}
        more = {**({"spilled": self.spilled} if self.spilled else {}), **({"heads": self.heads} if self.heads else {})}
        return {
            "variant": self.variant,
            **kind,
            **dims,
            "keys": [round(self.least), round(self.most)],
            "setting": plain(self.setting),
            **more,
        }

    def distance(self, kind: Kind, keys: float, heads: float = 1.0) -> float:
        """Return the distance to a problem.

        Args:
            kind: Kind of its program.
            keys: Keys that a query visits on average.
            heads: Query heads a key head.
        """
        far = max(0.0, math.log2(self.least / keys), math.log2(keys / self.most))
        return far + self.kind.distance(kind) + (abs(math.log2(heads / self.heads)) if self.heads else 0.0)


@dataclass(frozen=True)
class NearestSetting:
    """The setting of a row, a message that says why it was chosen, and its measured spills in bytes."""

    setting: Mapping[str, Const]
    why: str
    spilled: int


def compute_mean_keys(work: Work, shape: Shape, numbers: Mapping[str, int | float]) -> float:
    """Return the keys that a query visits on average, in blocks of 128."""
    steps = work.count_visits(shape.lengths, numbers, TILE).steps
    return max(64.0, 64 * TILE["BN"] * float(steps.mean()) * steps.shape[-1] / max(shape.M, 1))


def count_waves(shape: Shape, sms: int) -> float:
    """Return the tiles of 128 queries a multiprocessor."""
    return shape.B * shape.H * -(-shape.M // TILE["BM"]) / max(sms, 1)


def make_file_stem(name: str) -> str:
    """Return the name of a GPU in the name of its file."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


@functools.cache
def _tables() -> Mapping[str, Mapping[str, Any]]:
    """Return the shipped tables, by the maker's name of the GPU."""
    places = (p for p in (files(__package__) / "tables").iterdir() if p.name.endswith(".json"))
    tables = [json.loads(p.read_text(encoding="utf-8")) for p in places]
    return {data["gpu"]: data for data in sorted(tables, key=lambda data: str(data["gpu"]))}


@functools.cache
def load_rows(name: str) -> tuple[Row, ...]:
    """Return the rows of a GPU, by its maker's name; empty if none were measured."""
    return tuple(Row.parse(row) for row in _tables()[name]["rows"]) if name in _tables() else ()


@functools.cache
def _relatives(arch: str, sms: int) -> tuple[str, ...]:
    """Return the GPUs of this generation (`sm_90`) with as many multiprocessors that have tables."""
    return tuple(name for name, data in _tables().items() if (data["arch"], data["sms"]) == (arch, sms))


def rank_rows(work: Work, shape: Shape, numbers: Mapping[str, int | float], device: Device) -> Iterator[tuple[float, Row, str]]:
    """Yield the rows that hold for a problem, the nearest first.

    Each comes with its distance and the GPU that it was measured on.
    """
    if count_waves(shape, device.sms) < MIN_WAVES:
        return
    dims = tuple(-(-n // 16) * 16 for n in (shape.D, shape.DV))  # columns that products take
    kind, keys, heads = Kind.of(work), compute_mean_keys(work, shape, numbers), shape.H / max(shape.HK, 1)
    candidates = []
    for gpu in dict.fromkeys((device.name, *_relatives(device.generation, device.sms))):
        farther = 0.0 if gpu == device.name else RELATIVE_PENALTY
        candidates += [(row.distance(kind, keys, heads) + farther, row, gpu) for row in load_rows(gpu) if row.head_dims == dims]
    yield from sorted(
        (candidate for candidate in candidates if candidate[0] <= MAX_DISTANCE),
        key=lambda candidate: (candidate[0], candidate[1].heads is None),
    )


def list_shipped_devices() -> dict[str, Device]:
    """Return the GPUs with tables, by their makers' names."""
    return {name: Device(f"{name} {data['arch']} {data['sms']}", data["sms"]) for name, data in _tables().items()}


def find_nearest(
    work: Work, shape: Shape, numbers: Mapping[str, int | float], device: Device, fits: Callable[[Mapping[str, Const]], bool]
) -> NearestSetting | None:
    """Return the setting of the nearest row that fits, or None if no row holds for such a problem."""
    for distance, row, gpu in rank_rows(work, shape, numbers, device):
        if fits(row.setting):
            alike = "for such programs" if distance <= (RELATIVE_PENALTY if gpu != device.name else 0) else "for the most alike program"
            return NearestSetting(
                row.setting, f"as measured on {gpu} {alike} ({row.variant}, {row.least:.0f} to {row.most:.0f} keys a query)", row.spilled
            )
    return None


__all__ = [
    "Kind",
    "NearestSetting",
    "Row",
    "compute_mean_keys",
    "count_waves",
    "find_nearest",
    "list_shipped_devices",
    "load_rows",
    "make_file_stem",
    "rank_rows",
]
