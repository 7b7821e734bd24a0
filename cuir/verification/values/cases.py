"""One problem of a function specification: lengths of its dims, and the kind of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from ...arguments.requirements import compute_length_multiple
from ...checking.checked import Checked, TensorParam
from ...spec.function_specification import FunctionSpecification

MOST_ELEMENTS = 6_000_000  # of one tensor


@dataclass(frozen=True)
class Draw:
    """One problem: lengths of the kernel's run-time dims, and the kind of its inputs (see `Case`)."""

    name: str
    sizes: Mapping[str, int]
    kind: str = "normal"
    seed: int = 0
    corners: bool = False  # scores lie exactly at the decisions of a mod
    scalars: tuple[tuple[str, int | float | bool], ...] = ()  # fixed values of some scalars
    # fixed values of some tensors, which replace drawn ones and those of the specification's `inputs`
    tensors: tuple[tuple[str, torch.Tensor], ...] = field(default=(), compare=False, repr=False)

    def __str__(self) -> str:
        seed = f", seed {self.seed}" if self.seed else ""
        return f"{self.name}: {', '.join(f'{n}={v}' for n, v in (*self.sizes.items(), *self.scalars))}, {self.kind} inputs{seed}"


def get_integer_consts(checked: Checked) -> dict[str, int]:
    """Return the integer consts."""
    return {n: v for n, v in checked.consts.items() if isinstance(v, int) and not isinstance(v, bool)}


def select_fitting(checked: Checked, spec: FunctionSpecification, draws: Sequence[Draw]) -> tuple[list[Draw], list[tuple[int, str, Draw]]]:
    """Split draws into those that fit, and those whose largest tensor has too many elements.

    Only those that the specification admits, with its lengths. The second list has the number of elements and the
    tensor's name.
    """
    fits: list[Draw] = []
    large: list[tuple[int, str, Draw]] = []
    for d in draws:
        needed = {n: compute_length_multiple(checked, n) for n in d.sizes}
        sizes = spec.admit_lengths({**get_integer_consts(checked), **{n: -(-size // needed[n]) * needed[n] for n, size in d.sizes.items()}})
        if sizes is None:
            continue
        elements, name = max(((count_elements(t, sizes), t.name) for t in checked.tensors), default=(0, ""))
        if elements > MOST_ELEMENTS:
            large.append((elements, name, replace(d, sizes={n: sizes[n] for n in checked.dims})))
            continue
        admitted = replace(d, sizes={n: sizes[n] for n in checked.dims})
        if not any(
            (k.sizes, k.kind, k.seed, k.scalars) == (admitted.sizes, d.kind, d.seed, d.scalars) for k in fits
        ):  # the specification may map lengths to the same
            fits.append(admitted)
    return fits, large


def count_elements(t: TensorParam, sizes: Mapping[str, int]) -> int:
    """Count the elements of a tensor for lengths of dims."""
    total = 1
    for n in compute_shape(t, sizes):
        total *= n
    return total


def compute_shape(t: TensorParam, sizes: Mapping[str, int]) -> list[int]:
    """Compute the shape of a tensor for lengths of dims."""
    return [sizes[d] if isinstance(d, str) else d for d in t.dims]
