"""Cached values of the parameters that a variant adds to a kernel: captured values and block lists."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from ...arguments.guards import make_number_key
from ...caching import Memo
from ...checking.checked import Const
from ...checking.const_defaults import with_defaults
from ...spec.specification import LENGTHS, Lengths, Specification
from ...syntax.nodes import ConstType, Kernel, Name, Program
from ...syntax.walk import names_read
from ...text.diagnostics import CuirError
from ..masks.block_lists import ColumnLists, Lists, column_lists_for, lists_for
from ..masks.distance_tables import by_distance
from ..outputs.output_table import OUTPUT_NAMES
from ..tracing.mod_evaluator import evaluate
from ..tracing.splice_names import BACKWARD_POINTS, BITS, DISTANCES, DROPOUT, GRADIENTS, LISTS, STANDARD, list_reserved, names_of
from ..tracing.trace import trace
from ..tracing.traced_result import Parameter, Traced, Value
from .captured_gradients import gradients_of
from .dropout_splice import arguments_of

_PROBLEMS = 16  # size limit of a cache
_MOST_ROOM = 2**24  # elements of a padded tensor
State = tuple[Any, ...] | None  # of a tensor: version counter, address, shape, strides and dtype


def compute_captured_arguments(
    program: Program,
    kernel: Kernel,
    spec: Specification,
    lengths: Lengths,
    device: torch.device | str = "cpu",
    consts: Mapping[str, Const] | None = None,
    changed: Mapping[str, int] | None = None,
) -> dict[str, Value]:
    """Return values for the non-standard parameters of a transferred kernel.

    The specification is traced again. A parameter of a program from elsewhere is found by its name among the captured
    values of the specification. Tensors of which a kernel reads one element for each head or batch are padded with
    zeros where these lengths have more of them.

    Args:
        consts: of the kernel, for block lists.
        changed: other values for captured numbers.

    Raises CuirError X132 for a parameter that does not exist, X133 if BM or BN is unknown.
    """
    return CapturedArguments(program, kernel, spec).values(lengths, device, consts, changed)


class CapturedArguments:
    """The non-standard parameters of a kernel.

    Their specification is traced once for any number of problems.
    """

    def __init__(self, program: Program, kernel: Kernel, spec: Specification):
        self.kernel, self.spec = kernel, spec
        self.backward = set(BACKWARD_POINTS) <= program.funcs().keys()
        standard_names = (*GRADIENTS, *gradients_of(kernel)) if "dscore" in program.funcs() else (*STANDARD, *OUTPUT_NAMES)
        self.extra = [p for p in kernel.params if not isinstance(p.type, ConstType) and p.name not in standard_names and not p.scratch]
        self.names = {p.name for p in self.extra}
        self.traced: Traced | None = None
        if self.extra:
            # a specification that cannot be traced: the parameters are named as in its `captured`
            with contextlib.suppress(CuirError):
                self.traced = trace(spec, (names_of(program) | list_reserved()) - self.names | {*LISTS, *BITS, *DISTANCES, *DROPOUT})

    def values(
        self,
        lengths: Lengths,
        device: torch.device | str = "cpu",
        consts: Mapping[str, Const] | None = None,
        changed: Mapping[str, int] | None = None,
    ) -> dict[str, Value]:
        """Return values as `compute_captured_arguments` does."""
        if not self.extra:
            return {}
        names, kernel, spec = self.names, self.kernel, self.spec
        parameters = {p.name: p for p in self.traced.parameters} if self.traced is not None else {}
        captured = spec.values(lengths)
        values: dict[str, Value] = {n: p.argument(spec, lengths, device) for n, p in parameters.items() if n in names}
        values |= {n: v.to(device) if isinstance(v, torch.Tensor) else v for n, v in captured.items() if n in names and n not in parameters}
        if spec.dropout is not None:
            values |= {n: x for n, x in arguments_of(spec.dropout.p, spec.dropout.seed_for(lengths).to(device)).items() if n in names}
        values |= changed or {}
        values |= self.with_room(values, lengths)
        if self.traced is not None and any(n.startswith(DISTANCES[0]) for n in names - set(values)):
            score_values = {**values, **{n: p.argument(spec, lengths, device) for n, p in parameters.items()}}
            tables = by_distance(self.traced.score, self.traced.parameters, lambda n: n)[1]
            values |= {t.name: t.value(score_values, lengths, device) for t in tables if t.name in names}
        lists = _lists_of(names - set(values), self.traced, self.backward)
        if lists is not None:
            values |= lists.values(values, lengths, *tile_sizes(kernel, consts), device)
        for p in self.extra:
            if p.name not in values:
                raise CuirError.of(
                    "X132",
                    f"`{kernel.name}` takes `{p.name}`, for which the specification `{spec.name}` has no value",
                    p.span,
                    f"it captures: {', '.join({**parameters, **captured}) or 'nothing'}",
                )
        return values

    def with_room(self, values: Mapping[str, Value], lengths: Lengths) -> dict[str, torch.Tensor]:
        """Return padded copies of captured tensors that are too small for these lengths.

        A kernel reads them by scalars, which must lie inside.
        """
        if self.traced is None or min(lengths.B, lengths.H) == 0:
            return {}
        place = {"b": torch.arange(lengths.B, dtype=torch.int32)[:, None], "h": torch.arange(lengths.H, dtype=torch.int32)[None]}
        names = (
            {n: v.cpu() if isinstance(v, torch.Tensor) else v for n, v in values.items()}
            | {n: getattr(lengths, n) for n in LENGTHS}
            | place
        )
        needed: dict[str, list[int]] = {}
        for read in self.traced.reads:
            assert isinstance(read.value, Name)
            tensor = values.get(read.value.id)
            if isinstance(tensor, torch.Tensor) and names_read(read) - {read.value.id} <= names.keys():
                shape = needed.setdefault(read.value.id, list(tensor.shape))
                for d, index in enumerate(read.indices):
                    shape[d] = max(shape[d], 1 + int(torch.as_tensor(evaluate(index, names)).max()))  # type: ignore[arg-type]
        larger: dict[str, torch.Tensor] = {}
        for name, shape in needed.items():
            tensor = values[name]
            assert isinstance(tensor, torch.Tensor)
            if list(tensor.shape) != shape and math.prod(shape) <= max(_MOST_ROOM, tensor.numel()):
                larger[name] = tensor.new_zeros(shape)
                larger[name][tuple(slice(n) for n in tensor.shape)] = tensor
        return larger


def _lists_of(names: set[str], traced: Traced | None, backward: bool) -> Lists | ColumnLists | None:
    """Return the block lists that a kernel with parameters of these names takes, None if it takes none.

    Args:
        names: these may end in `_`s, where the plain ones were taken.
        backward: the kernel computes gradients.
    """
    parameters = {name.rstrip("_"): name for name in names if name.rstrip("_") in (*LISTS, *BITS)}
    if traced is None or traced.keep is None or not {"block_count", "block_list"} <= set(parameters):
        return None
    if backward:
        return column_lists_for(traced.keep, lambda name: parameters.get(name, name))
    lists = lists_for(traced.keep, lambda name: parameters.get(name, name), bits=set(BITS) <= set(parameters))
    return lists if "tile_order" in parameters else replace(lists, order="")


def tile_sizes(kernel: Kernel, consts: Mapping[str, Const] | None) -> tuple[int, int]:
    """Return BM and BN, the queries of a tile and the keys of a block, of a kernel compiled with `consts`.

    Raises CuirError X133 if they are unknown, and without `consts`: lists for another size would be read as if they
    were right.
    """
    if consts is None:
        raise CuirError.of(
            "X133",
            f"block lists of `{kernel.name}` depend on BM and BN, found no consts",
            kernel.span,
            "consts={...}: the values that the kernel is compiled with, {} for its defaults",
        )
    settings = with_defaults(kernel, consts) | dict(consts)
    BM, BN = settings.get("BM"), settings.get("BN")
    if not isinstance(BM, int) or not isinstance(BN, int) or min(BM, BN) < 1:
        raise CuirError.of(
            "X133",
            f"block lists of `{kernel.name}` depend on BM and BN, found BM = {BM} and BN = {BN}",
            kernel.span,
            "consts={...}: the values that the kernel is compiled with",
        )
    return BM, BN


def sources_of(captured: Iterable[Parameter], spec: Specification, lengths: Lengths) -> dict[str, Value]:
    """Return captured values by parameter, as the specification has them, on any device."""
    values = spec.values(lengths) if any(p.value is None for p in captured) else {}
    return {p.name: p.value if p.value is not None else values[p.key or p.name] for p in captured}


class Cache:
    """Arguments of the last few problems, valid while their sources stay the same."""

    def __init__(self) -> None:
        self.entries: Memo[Hashable, tuple[dict[str, tuple[Value, State, Any]], dict[str, Value]]] = Memo(
            "variants.captured_arguments",
            key="lengths, device and kind of the arguments, numbers in tensors on the CPU",
            invalidation="a source with another value",
            limit=_PROBLEMS,
        )

    @staticmethod
    def make_key(key: Hashable, sources: Mapping[str, Value]) -> Hashable:
        """Return the key of an entry: numbers in tensors on the CPU are a part of it, such as where a shard begins."""
        return key, tuple([x.item() for x in sources.values() if isinstance(x, torch.Tensor) and x.ndim == 0 and x.device.type == "cpu"])

    def get(self, key: Hashable, sources: Mapping[str, Value], make: Callable[[], dict[str, Value]]) -> dict[str, Value]:
        """Return the result of `make` for this key and these sources, from the cache if possible."""
        key = self.make_key(key, sources)
        entry = self.entries.get(key)
        if entry is not None and all(_same(value, *entry[0][name][:2]) for name, value in sources.items()):
            with contextlib.suppress(KeyError):  # another thread has dropped it
                self.entries.move_to_end(key)
            return entry[1]
        source_states = {name: (value, state_of(value), memory_of(value)) for name, value in sources.items()}
        arguments = make()
        self.entries.pop(key, None)
        self.entries[key] = source_states, arguments
        return arguments


def state_of(value: Value) -> State:
    """Return a state that changes when a tensor is written to or gets other memory.

    This holds while its `memory_of` is held; None if writes are not counted.
    """
    if not isinstance(value, torch.Tensor):
        return ()
    return None if value.is_inference() else (value._version, value.data_ptr(), value.shape, value.stride(), value.dtype)


def are_unchanged(tensors: Iterable[tuple[torch.Tensor, State]]) -> bool:
    """Return True if every tensor still has the state recorded with it.

    Warm calls run this, so it calls no function for each tensor.
    """
    try:
        for t, state in tensors:
            if (t._version, t.data_ptr(), t.shape, t.stride(), t.dtype) != state:
                return False
    except RuntimeError:  # it has become a tensor of inference, whose writes are not counted
        return False
    return True


def memory_of(value: Value) -> object:
    """Return the memory of a tensor, to be held with its state.

    Otherwise `tensor.data = other` could get the same address, once it is free.
    """
    return value.untyped_storage() if isinstance(value, torch.Tensor) else None


class Snapshot(NamedTuple):
    """A captured value at some time: its state, and its memory, which is held with it."""

    value: Value
    state: State
    memory: object

    def holds(self) -> bool:
        """Return True if the value was not written to since, and writes to it are counted."""
        return self.state is not None and state_of(self.value) == self.state


def take_snapshot(value: Value) -> Snapshot:
    return Snapshot(value, state_of(value), memory_of(value))


def _same(value: Value, cached: Value, state: State) -> bool:
    if state is None or state_of(cached) != state:
        return False
    if isinstance(value, torch.Tensor) and isinstance(cached, torch.Tensor):
        return value is cached or (
            value.device == cached.device and value.dtype == cached.dtype and torch.equal(_bits(value), _bits(cached))
        )
    return (
        not isinstance(value, torch.Tensor) and not isinstance(cached, torch.Tensor) and make_number_key(value) == make_number_key(cached)
    )


def _bits(x: torch.Tensor) -> torch.Tensor:
    """Return integers that tell -0.0 from 0.0, and in which a NaN equals itself."""
    return x.detach().view(_INTEGERS[x.dtype.itemsize]) if x.dtype.is_floating_point else x


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


__all__ = [
    "Cache",
    "CapturedArguments",
    "Snapshot",
    "are_unchanged",
    "compute_captured_arguments",
    "memory_of",
    "sources_of",
    "state_of",
    "take_snapshot",
    "tile_sizes",
]
