"""What tuning found, in the cache folder: the best per shape class, and a journal from which an interrupted search goes on.

Owns the keys. Does not own the search.
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
from typing import Any

from ..checking.checked import Const
from ..measure.problem import Shape
from ..syntax.nodes import Program
from ..syntax.types import DTYPES
from ..text.jsontext import append_line
from .space import Consts, defaults, from_plain, plain, ruled_out

GROUP_PENALTY = 2.0  # another number of query heads per key head is as far as two doublings
FARTHEST = 6.0  # classes that are farther apart than this say nothing about each other
TILE = 128  # rows of a tile when work is counted
NOTHING: Mapping[str, Const] = MappingProxyType({})


@dataclass(frozen=True)
class Key:
    """Architecture, program (its canonical text: the origin with the variant's splice points), dtype, head dims of keys and values; parts: in how many numbers
    operands of f32 are multiplied, 0 where the kernel has no PARTS."""

    arch: str
    program: str
    dtype: str
    head_dim: int
    value_dim: int
    parts: int = 0

    @staticmethod
    def of(arch: str, program: Program, dtype: str, shape: Shape, fixed: Mapping[str, Const] = NOTHING) -> Key:
        """fixed: consts that are given; what they leave out is as in the signature."""
        parts = {**defaults(program, None), **fixed}.get("PARTS", 0)
        return Key(arch, fingerprint(program), dtype, shape.D, shape.DV, int(parts))  # type: ignore[arg-type]

    @property
    def stem(self) -> str:
        dims = f"d{self.head_dim}" if self.value_dim == self.head_dim else f"d{self.head_dim}x{self.value_dim}"
        precision = f"{self.dtype}x{self.parts}" if self.parts else self.dtype
        return f"{re.sub(r'[^A-Za-z0-9]+', '_', self.arch)}-{self.program}-{precision}-{dims}"


@dataclass(frozen=True)
class ShapeClass:
    """Shapes that share a setting: powers of two of M, N and of the tiles of 128 query rows per SM, and the query heads per key head."""

    queries: int
    keys: int
    tiles: int
    group: int

    def __str__(self) -> str:
        return f"M{2**self.queries} N{2**self.keys} tiles/SM {2.0**self.tiles:g} group {self.group}"

    def distance(self, other: ShapeClass) -> float:
        far = abs(self.queries - other.queries) + abs(self.keys - other.keys) + abs(self.tiles - other.tiles)
        return far + (GROUP_PENALTY if self.group != other.group else 0.0)

    def as_list(self) -> list[int]:
        return [self.queries, self.keys, self.tiles, self.group]


def shape_class(shape: Shape, sms: int) -> ShapeClass:
    """The nearest powers of two."""
    tiles = shape.B * shape.H * math.ceil(shape.M / TILE) / sms
    queries, keys, work = (round(math.log2(max(x, 2**-10))) for x in (shape.M, shape.N, tiles))
    return ShapeClass(queries, keys, work, shape.H // shape.HK)


def fingerprint(program: Program) -> str:
    from ..syntax.printer import show

    return hashlib.sha256(show(program).encode()).hexdigest()[:16]


@functools.cache
def lowering_version() -> str:
    """Of the code that turns a program into CUDA: figures of one version say nothing about the next."""
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
    """The architecture that figures hold for, and its number of SMs; ("", 0) without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return "", 0
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return f"{properties.name} sm_{properties.major}{properties.minor} {properties.multi_processor_count}", properties.multi_processor_count


def folder() -> Path:
    from ..runtime.nvcc import cache_dir

    return cache_dir() / "tuned"


def read(key: Key) -> dict[str, Any]:
    """Records by shape class; none if the file is missing or of another version."""
    try:
        data = json.loads((folder() / f"{key.stem}.json").read_text(encoding="utf-8"))
        return {str(k): v for k, v in data.items() if {"class", "consts"} <= set(v)}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def keep(key: Key, shape: ShapeClass, record: Mapping[str, Any]) -> None:
    """Puts the best of a shape class in place of what was there."""
    records = read(key) | {str(shape): {"class": shape.as_list(), **record}}
    place = folder()
    place.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=place)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(records, file, indent=1)
    os.replace(temporary, place / f"{key.stem}.json")


def best(key: Key, shape: ShapeClass) -> dict[str, Any] | None:
    """The record of this class, else of the nearest one."""
    records = [(ShapeClass(*r["class"]).distance(shape), r) for r in read(key).values()]
    near = min(records, key=lambda pair: pair[0], default=None)
    return near[1] if near is not None and near[0] <= FARTHEST else None


def tuned(program: Program, shape: Shape | tuple[int, ...], dtype: str = "f16", fixed: Mapping[str, Const] = NOTHING) -> Consts:
    """The fastest setting that `cuir tune` has found on this GPU for a program and shapes like this one; empty if it has found none.

    shape: B, H, HK, M, N, D, or with DV behind it. fixed: consts that say what is computed, PARTS of float32's kernel; as in the signature if left out. For `cuir.compile(program, consts={"T": cuir.f16, "D": 128, **cuir.tuned(program, shape)})`.
    """
    shape = shape if isinstance(shape, Shape) else Shape(*shape)
    arch, sms = device()
    if not arch:
        return {}
    record = best(Key.of(arch, program, dtype, shape, fixed), shape_class(shape, sms))
    setting = from_plain(record["consts"]) if record else {}
    return setting if ruled_out(program, None, {"T": DTYPES[dtype], **shape.consts, **fixed, **setting}) is None else {}


class Journal:
    """What a search has found out, candidate by candidate, written at once; a later search of the same thing reads it."""

    def __init__(self, path: Path | None):
        self.path = path
        self.entries: dict[str, dict[str, Any]] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    entry = json.loads(line)
                    if {"status", "why"} <= set(entry):
                        self.entries[_name(from_plain(entry["consts"]))] = entry
                except (ValueError, KeyError, TypeError, AttributeError):
                    continue  # the line that was being written when the search was interrupted

    @staticmethod
    def of(key: Key, shape: Shape) -> Journal:
        return Journal(folder() / "journals" / f"{key.stem}-{'x'.join(map(str, shape.as_tuple()))}-{lowering_version()}.jsonl")

    def look(self, consts: Consts) -> dict[str, Any] | None:
        return self.entries.get(_name(consts))

    def write(self, consts: Consts, entry: Mapping[str, Any]) -> None:
        self.entries[_name(consts)] = {"consts": plain(consts), **entry}
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        append_line(self.path, json.dumps(self.entries[_name(consts)]))

    def clear(self) -> None:
        self.entries = {}
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def _name(consts: Consts) -> str:
    return json.dumps(plain(consts))
