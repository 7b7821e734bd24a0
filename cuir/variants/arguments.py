"""Values of the parameters that a variant adds to a kernel: what its specification captures, and its block lists. Owns that they are made once."""

from __future__ import annotations

import contextlib
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..calls.guards import number
from ..checking.checked import Const
from ..checking.defaults import with_defaults
from ..spec.specification import LENGTHS, Lengths, Specification
from ..syntax.nodes import ConstType, Kernel, Name, Program
from ..syntax.walk import names_read
from ..text.diagnostics import CuirError
from .distances import by_distance
from .dropout import arguments_of
from .evaluate import evaluate
from .learned import gradients_of
from .lists import ColumnLists, Lists, column_lists_for, lists_for
from .names import BACKWARD_POINTS, BITS, DISTANCES, DROPOUT, GRADIENTS, LISTS, MAX_SCORES, STANDARD, names_of, reserved
from .parameter import Parameter, Value
from .trace import trace
from .traced import Traced

_PROBLEMS = 4  # that a cache holds
_MOST_ROOM = 2**24  # elements of a tensor with zeros behind its own
State = tuple[Any, ...] | None  # of a tensor: how often it was written to, where its memory is, and how it lies there


def captured_arguments(
    program: Program, kernel: Kernel, spec: Specification, lengths: Lengths, device: torch.device | str = "cpu",
    consts: Mapping[str, Const] | None = None, changed: Mapping[str, int] | None = None,
) -> dict[str, Value]:  # fmt: skip
    """Values for the parameters of a transferred kernel beyond the standard ones, by retracing the specification.

    A parameter of a program from elsewhere is found by its name among what the specification captures. consts: of the kernel, for block lists.
    Tensors of which a kernel reads one element for each head or batch have zeros behind their own, where these lengths have more of them. changed: other
    values for captured numbers. Raises CuirError X132 for a parameter that is not there, X133 if BM or BN is not known.
    """
    return CapturedArguments(program, kernel, spec).values(lengths, device, consts, changed)


class CapturedArguments:
    """The parameters of a kernel beyond the standard ones, with the specification that they come from traced once for any number of problems."""

    def __init__(self, program: Program, kernel: Kernel, spec: Specification):
        self.kernel, self.spec = kernel, spec
        self.backward = set(BACKWARD_POINTS) <= program.funcs().keys()
        own = (*GRADIENTS, *gradients_of(kernel)) if "dscore" in program.funcs() else (*STANDARD, MAX_SCORES)
        self.extra = [p for p in kernel.params if not isinstance(p.type, ConstType) and p.name not in own and not p.scratch]
        self.names = {p.name for p in self.extra}
        self.traced: Traced | None = None
        if self.extra:
            with contextlib.suppress(CuirError):  # a specification that cannot be traced: the parameters are named as in its `captured`
                self.traced = trace(spec, (names_of(program) | reserved()) - self.names | {*LISTS, *BITS, *DISTANCES, *DROPOUT})

    def values(
        self, lengths: Lengths, device: torch.device | str = "cpu", consts: Mapping[str, Const] | None = None,
        changed: Mapping[str, int] | None = None,
    ) -> dict[str, Value]:  # fmt: skip
        """As `captured_arguments`."""
        if not self.extra:
            return {}
        names, kernel, spec = self.names, self.kernel, self.spec
        known = {p.name: p for p in self.traced.parameters} if self.traced is not None else {}
        given = spec.values(lengths)
        values: dict[str, Value] = {n: p.argument(spec, lengths, device) for n, p in known.items() if n in names}
        values |= {n: v.to(device) if isinstance(v, torch.Tensor) else v for n, v in given.items() if n in names and n not in known}
        if spec.dropout is not None:
            values |= {n: x for n, x in arguments_of(spec.dropout.p, spec.dropout.seed_for(lengths).to(device)).items() if n in names}
        values |= changed or {}
        values |= self.with_room(values, lengths)
        if self.traced is not None and any(n.startswith(DISTANCES[0]) for n in names - set(values)):
            own = {**values, **{n: p.argument(spec, lengths, device) for n, p in known.items()}}
            tables = by_distance(self.traced.score, self.traced.parameters, lambda n: n)[1]
            values |= {t.name: t.value(own, lengths, device) for t in tables if t.name in names}
        lists = _lists_of(names - set(values), self.traced, self.backward)
        if lists is not None:
            values |= lists.values(values, lengths, *tile_sizes(kernel, consts), device)
        for p in self.extra:
            if p.name not in values:
                raise CuirError.of("X132", f"`{kernel.name}` takes `{p.name}`, for which the specification `{spec.name}` has no value", p.span,
                                   f"it captures: {', '.join({**known, **given}) or 'nothing'}")  # fmt: skip
        return values

    def with_room(self, values: Mapping[str, Value], lengths: Lengths) -> dict[str, torch.Tensor]:
        """The tensors that are too small for the elements that these lengths read by scalars, which must lie inside, with zeros behind their own."""
        if self.traced is None or min(lengths.B, lengths.H) == 0:
            return {}
        place = {"b": torch.arange(lengths.B, dtype=torch.int32)[:, None], "h": torch.arange(lengths.H, dtype=torch.int32)[None]}
        names = (
            {n: v.cpu() if isinstance(v, torch.Tensor) else v for n, v in values.items()}
            | {n: getattr(lengths, n) for n in LENGTHS}
            | place
        )
        wanted: dict[str, list[int]] = {}
        for read in self.traced.reads:
            assert isinstance(read.value, Name)
            tensor = values.get(read.value.id)
            if isinstance(tensor, torch.Tensor) and names_read(read) - {read.value.id} <= names.keys():
                shape = wanted.setdefault(read.value.id, list(tensor.shape))
                for d, index in enumerate(read.indices):
                    shape[d] = max(shape[d], 1 + int(torch.as_tensor(evaluate(index, names)).max()))  # type: ignore[arg-type]
        larger: dict[str, torch.Tensor] = {}
        for name, shape in wanted.items():
            tensor = values[name]
            assert isinstance(tensor, torch.Tensor)
            if list(tensor.shape) != shape and math.prod(shape) <= max(_MOST_ROOM, tensor.numel()):
                larger[name] = tensor.new_zeros(shape)
                larger[name][tuple(slice(n) for n in tensor.shape)] = tensor
        return larger


def _lists_of(names: set[str], traced: Traced | None, backward: bool) -> Lists | ColumnLists | None:
    """The lists that parameters of these names hold, which may end in `_`s, as their own names may be taken. backward: of a backward kernel."""
    parameters = {name.rstrip("_"): name for name in names if name.rstrip("_") in (*LISTS, *BITS)}
    if traced is None or traced.keep is None or not {"block_count", "block_list"} <= set(parameters):
        return None
    if backward:
        return column_lists_for(traced.keep, lambda name: parameters.get(name, name))
    lists = lists_for(traced.keep, lambda name: parameters.get(name, name), bits=set(BITS) <= set(parameters))
    return lists if "tile_order" in parameters else replace(lists, order="")


def tile_sizes(kernel: Kernel, consts: Mapping[str, Const] | None) -> tuple[int, int]:
    """BM and BN, the queries of a tile and the keys of a block, of a kernel compiled with `consts`.

    Raises CuirError X133 if they are not known, and without `consts`: lists for another size would be read as if they were right.
    """
    if consts is None:
        raise CuirError.of("X133", f"block lists of `{kernel.name}` depend on BM and BN, found no consts", kernel.span,
                           "consts={...}: the values that the kernel is compiled with, {} for its defaults")  # fmt: skip
    known = with_defaults(kernel, consts) | dict(consts)
    BM, BN = known.get("BM"), known.get("BN")
    if not isinstance(BM, int) or not isinstance(BN, int) or min(BM, BN) < 1:
        raise CuirError.of("X133", f"block lists of `{kernel.name}` depend on BM and BN, found BM = {BM} and BN = {BN}", kernel.span,
                           "consts={...}: the values that the kernel is compiled with")  # fmt: skip
    return BM, BN


def sources_of(captured: Iterable[Parameter], spec: Specification, lengths: Lengths) -> dict[str, Value]:
    """What the values of captured parameters are made from, by name: as the specification has it, on any device."""
    given = spec.values(lengths) if any(p.value is None for p in captured) else {}
    return {p.name: p.value if p.value is not None else given[p.key or p.name] for p in captured}


@dataclass
class Cache:
    """Arguments of the last few problems, given again while what they were made from is the same."""

    entries: OrderedDict[Hashable, tuple[dict[str, tuple[Value, State, Any]], dict[str, Value]]] = field(default_factory=OrderedDict)

    def get(self, key: Hashable, sources: Mapping[str, Value], make: Callable[[], dict[str, Value]]) -> dict[str, Value]:
        """What `make` gives for this key and these sources."""
        entry = self.entries.get(key)
        if entry is not None and all(_same(value, *entry[0][name][:2]) for name, value in sources.items()):
            with contextlib.suppress(KeyError):  # another thread has dropped it
                self.entries.move_to_end(key)
            return entry[1]
        before = {name: (value, state_of(value), memory_of(value)) for name, value in sources.items()}
        made = make()
        self.entries.pop(key, None)
        self.entries[key] = before, made
        while len(self.entries) > _PROBLEMS:
            self.entries.popitem(last=False)
        return made


def state_of(value: Value) -> State:
    """Changes when a tensor is written to or gets other memory, as long as someone holds its `memory_of`; None if writes are not counted."""
    if not isinstance(value, torch.Tensor):
        return ()
    return None if value.is_inference() else (value._version, value.data_ptr(), value.shape, value.stride(), value.dtype)


def unchanged(tensors: Iterable[tuple[torch.Tensor, State]]) -> bool:
    """Whether each of these has the state that `state_of` gave, without a call for each: warm calls ask."""
    try:
        for t, state in tensors:
            if (t._version, t.data_ptr(), t.shape, t.stride(), t.dtype) != state:
                return False
    except RuntimeError:  # it has become a tensor of inference, whose writes are not counted
        return False
    return True


def memory_of(value: Value) -> object:
    """The memory of a tensor, to be held with its state: else `tensor.data = other` may get the same place, once it is free."""
    return value.untyped_storage() if isinstance(value, torch.Tensor) else None


def _same(value: Value, before: Value, state: State) -> bool:
    if state is None or state_of(before) != state:
        return False
    if isinstance(value, torch.Tensor) and isinstance(before, torch.Tensor):
        return value is before or (
            value.device == before.device and value.dtype == before.dtype and torch.equal(_bits(value), _bits(before))
        )
    return not isinstance(value, torch.Tensor) and not isinstance(before, torch.Tensor) and number(value) == number(before)


def _bits(x: torch.Tensor) -> torch.Tensor:
    """Tells -0.0 from 0.0, and a NaN is itself."""
    return x.detach().view(_INTEGERS[x.dtype.itemsize]) if x.dtype.is_floating_point else x


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


__all__ = ["Cache", "CapturedArguments", "captured_arguments", "memory_of", "sources_of", "state_of", "tile_sizes", "unchanged"]
