"""Results of tuning in the cache folder: the best setting for each shape class, journals of searches.

A journal lets an interrupted search continue.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import TypedDict

from ...caching.disk import TUNING, cache_dir
from ...checking.checked import Const
from ...checking.const_defaults import PlainConsts
from ...syntax.nodes import Program
from ...syntax.types import DTYPES
from ...text.jsontext import append_line
from ..timing.problem import Shape
from .space import Consts, defaults, fits, from_plain, plain

GROUP_PENALTY = 2.0  # a different number of query heads per key head counts as two doublings
MAX_DISTANCE = 6.0  # greatest distance at which a class serves another
TILE = 128  # rows of a tile when work is counted
NO_CONSTS: Mapping[str, Const] = MappingProxyType({})


@dataclass(frozen=True)
class Key:
    """Cache key of tuning results.

    Attributes:
        arch: Architecture.
        program: Fingerprint of the canonical text: the origin with the variant's splice points.
        dtype: Element type of the operands.
        head_dim: Head dim of queries and keys.
        value_dim: Head dim of values.
        parts: Number of parts in which operands of f32 are multiplied, 0 where the kernel has no PARTS.
    """

    arch: str
    program: str
    dtype: str
    head_dim: int
    value_dim: int
    parts: int = 0

    @staticmethod
    def of(arch: str, program: Program, dtype: str, shape: Shape, fixed: Mapping[str, Const] = NO_CONSTS) -> Key:
        """Return the key of a program and shape.

        `fixed` are given consts; others have the values of the signature.
        """
        parts = {**defaults(program, None), **fixed}.get("PARTS", 0)
        return Key(arch, compute_fingerprint(program), dtype, shape.D, shape.DV, int(parts))  # type: ignore[arg-type]

    @property
    def stem(self) -> str:
        """Stem of the file name."""
        dims = f"d{self.head_dim}" if self.value_dim == self.head_dim else f"d{self.head_dim}x{self.value_dim}"
        precision = f"{self.dtype}x{self.parts}" if self.parts else self.dtype
        return f"{re.sub(r'[^A-Za-z0-9]+', '_', self.arch)}-{self.program}-{precision}-{dims}"


@dataclass(frozen=True)
class ShapeClass:
    """Shapes that share a setting.

    They agree in the nearest powers of two of M, N and of the tiles of 128 query rows per SM, and in the query heads per
    key head.
    """

    queries: int
    keys: int
    tiles: int
    group: int

    def __str__(self) -> str:
        return f"M{2**self.queries} N{2**self.keys} tiles/SM {2.0**self.tiles:g} group {self.group}"

    def distance(self, target: ShapeClass) -> float:
        """Return the distance to another class in doublings."""
        far = abs(self.queries - target.queries) + abs(self.keys - target.keys) + abs(self.tiles - target.tiles)
        return far + (GROUP_PENALTY if self.group != target.group else 0.0)

    def as_list(self) -> list[int]:
        """Return the class as JSON data."""
        return [self.queries, self.keys, self.tiles, self.group]


def shape_class(shape: Shape, sms: int) -> ShapeClass:
    """Return the class of a shape, by the nearest powers of two."""
    tiles = shape.B * shape.H * math.ceil(shape.M / TILE) / sms
    queries, keys, work = (round(math.log2(max(x, 2**-10))) for x in (shape.M, shape.N, tiles))
    return ShapeClass(queries, keys, work, shape.H // shape.HK)


def compute_fingerprint(program: Program) -> str:
    """Return a hash of the program's canonical text."""
    from ...syntax.printer import show

    return hashlib.sha256(show(program).encode()).hexdigest()[:16]


@functools.cache
def lowering_version() -> str:
    """Return a hash of the code that turns a program into CUDA.

    Figures of one version do not hold for the next.
    """
    digest = hashlib.sha256()
    folders = [files("cuir") / room for room in ("lowering", "runtime")]
    while folders:
        for item in sorted(folders.pop().iterdir(), key=lambda i: i.name):
            if item.is_dir():
                folders.append(item)
            elif item.name.endswith((".py", ".hpp", ".cuh")):
                digest.update(item.read_bytes())
    return digest.hexdigest()[:12]


def device() -> tuple[str, int]:
    """Return the architecture that figures hold for, and its number of SMs; ("", 0) without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return "", 0
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return f"{properties.name} sm_{properties.major}{properties.minor} {properties.multi_processor_count}", properties.multi_processor_count


def folder() -> Path:
    """Return the folder of tuning results."""
    return cache_dir() / TUNING.folder


TuningRecord = TypedDict("TuningRecord", {"class": list[int], "consts": PlainConsts})


def read_records(key: Key) -> dict[str, TuningRecord]:
    """Return the records by shape class; none if the file is missing or of another version."""
    try:
        data = json.loads((folder() / f"{key.stem}.json").read_text(encoding="utf-8"))
        return {str(k): v for k, v in data.items() if {"class", "consts"} <= set(v)}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def store_best(key: Key, shape: ShapeClass, record: Mapping[str, object]) -> None:
    """Replace the best setting of a shape class."""
    records = read_records(key) | {str(shape): {"class": shape.as_list(), **record}}
    place = folder()
    place.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=place)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(records, file, indent=1)
    os.replace(temporary, place / f"{key.stem}.json")


def find_nearest_record(key: Key, shape: ShapeClass) -> TuningRecord | None:
    """Return the record of this class, or else of the nearest one within FARTHEST."""
    records = [(ShapeClass(*r["class"]).distance(shape), r) for r in read_records(key).values()]
    near = min(records, key=lambda pair: pair[0], default=None)
    return near[1] if near is not None and near[0] <= MAX_DISTANCE else None


def tuned(program: Program, shape: Shape | tuple[int, ...], dtype: str = "f16", fixed: Mapping[str, Const] = NO_CONSTS) -> Consts:
    """Return the fastest setting that `cuir tune` has found on this GPU for a program and such shapes.

    It is empty if none was found. Use it as in
    `cuir.compile(program, consts={"T": cuir.f16, "D": 128, **cuir.tuned(program, shape)})`.

    Args:
        program: The program.
        shape: B, H, HK, M, N, D, with an optional DV at the end.
        dtype: Name of the operands' dtype.
        fixed: Consts that determine the result, such as PARTS of float32's kernel; defaults as in the signature.
    """
    shape = shape if isinstance(shape, Shape) else Shape(*shape)
    arch, sms = device()
    if not arch:
        return {}
    record = find_nearest_record(Key.of(arch, program, dtype, shape, fixed), shape_class(shape, sms))
    setting = from_plain(record["consts"]) if record else {}
    return setting if fits(program, None, {"T": DTYPES[dtype], **shape.consts, **fixed, **setting}) else {}


class JournalEntry(TypedDict, total=False):
    """Result of a candidate: its setting, how far it came and why, its times, and its use of registers."""

    consts: PlainConsts
    status: str
    why: str
    milliseconds: list[float]
    registers: int
    spills: int


class Journal:
    """Results of a search, candidate by candidate.

    They are written at once and read by a later search of the same problem.
    """

    def __init__(self, path: Path | None):
        self.path = path
        self.entries: dict[str, JournalEntry] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    entry = json.loads(line)
                    if {"status", "why"} <= set(entry):
                        self.entries[_name(from_plain(entry["consts"]))] = entry
                except (ValueError, KeyError, TypeError, AttributeError):
                    continue  # a line that an interruption cut off

    @staticmethod
    def of(key: Key, shape: Shape) -> Journal:
        """Return the journal of a key and shape, for this version of the lowering."""
        return Journal(folder() / "journals" / f"{key.stem}-{'x'.join(map(str, shape.as_tuple()))}-{lowering_version()}.jsonl")

    def find(self, consts: Consts) -> JournalEntry | None:
        """Return the entry of a setting, or None."""
        return self.entries.get(_name(consts))

    def write(self, consts: Consts, entry: JournalEntry) -> None:
        """Record the entry of a setting."""
        self.entries[_name(consts)] = {"consts": plain(consts), **entry}
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        append_line(self.path, json.dumps(self.entries[_name(consts)]))

    def clear(self) -> None:
        """Remove all entries."""
        self.entries = {}
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def _name(consts: Consts) -> str:
    return json.dumps(plain(consts))
