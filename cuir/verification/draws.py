"""One problem of a kernel that a function specifies: lengths of its dims, the kind of its inputs, and whether it fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..calls.requirements import admitted_length
from ..checking.checked import Checked, TensorParam
from ..spec.functions import FunctionSpecification

MOST_ELEMENTS = 6_000_000  # of one tensor


@dataclass(frozen=True)
class Draw:
    """One problem: lengths of the kernel's run-time dims, and how inputs are drawn (`Case` says what the kinds are)."""

    name: str
    sizes: Mapping[str, int]
    kind: str = "normal"
    seed: int = 0
    corners: bool = False  # scores lie exactly where a mod decides
    scalars: tuple[tuple[str, int | float | bool], ...] = ()  # values of some, instead of drawn ones

    def __str__(self) -> str:
        seed = f", seed {self.seed}" if self.seed else ""
        return f"{self.name}: {', '.join(f'{n}={v}' for n, v in (*self.sizes.items(), *self.scalars))}, {self.kind} inputs{seed}"


def known_sizes(checked: Checked) -> dict[str, int]:
    """Integer consts."""
    return {n: v for n, v in checked.consts.items() if isinstance(v, int) and not isinstance(v, bool)}


def fitting(checked: Checked, spec: FunctionSpecification, draws: Sequence[Draw]) -> tuple[list[Draw], list[tuple[int, str, Draw]]]:
    """Those that the specification admits, with the lengths that it gives them; and those whose largest tensor has too many elements, with how many and its name."""
    kept: list[Draw] = []
    large: list[tuple[int, str, Draw]] = []
    for d in draws:
        needed = {n: admitted_length(checked, n) for n in d.sizes}
        sizes = spec.admitted({**known_sizes(checked), **{n: -(-size // needed[n]) * needed[n] for n, size in d.sizes.items()}})
        if sizes is None:
            continue
        elements, name = max(((elements_of(t, sizes), t.name) for t in checked.tensors), default=(0, ""))
        if elements > MOST_ELEMENTS:
            large.append((elements, name, replace(d, sizes={n: sizes[n] for n in checked.dims})))
            continue
        same = replace(d, sizes={n: sizes[n] for n in checked.dims})
        if not any(
            (k.sizes, k.kind, k.seed, k.scalars) == (same.sizes, d.kind, d.seed, d.scalars) for k in kept
        ):  # lengths that the specification made alike
            kept.append(same)
    return kept, large


def elements_of(t: TensorParam, sizes: Mapping[str, int]) -> int:
    total = 1
    for n in shape_of_tensor(t, sizes):
        total *= n
    return total


def shape_of_tensor(t: TensorParam, sizes: Mapping[str, int]) -> list[int]:
    return [sizes[d] if isinstance(d, str) else d for d in t.dims]
