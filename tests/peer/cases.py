"""Cases, and how scenarios become cases: `@scenario` enters one for each combination of the original's parameters."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

ATTENTION, DECODING, GYM = "test_flex_attention.py", "test_flex_decoding.py", "attention-gym"
FILES = (ATTENTION, DECODING, GYM)
REPORTS = "public reports"

# What the originals ask of gradients: none; tensors that require one, and no backward pass; a backward pass.
NO_GRADIENTS, INPUTS, BACKWARD = "", "inputs", "backward"


@dataclass(frozen=True)
class Case:
    """One combination of parameters of one test of PyTorch's or attention-gym's. run: takes a Trial."""

    file: str
    test: str
    label: str
    theme: str
    gradients: str
    native_only: bool
    run: Callable[[Any], None] = field(compare=False)

    @property
    def name(self) -> str:
        return f"{self.file}::{self.test}" + (f"[{self.label}]" if self.label else "")


@dataclass(frozen=True)
class Aside:
    """Tests that are not counted, as they ask for what only PyTorch's implementation has."""

    file: str
    tests: tuple[str, ...]
    count: int
    reason: str


CASES: dict[str, Case] = {}
ASIDE: list[Aside] = []


def scenario(
    file: str,
    theme: str,
    *,
    name: str = "",
    gradients: str = NO_GRADIENTS,
    native_only: bool = False,
    **parameters: Iterable[Any] | Mapping[str, Any],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Enters a case for each combination of `parameters`: sequences of values, or mappings from a label to its value.

    The function is named as the original without `test_`, if `name` does not say another one, and is called with a Trial and one value of each parameter.
    """
    axes = {name: label(values) for name, values in parameters.items()}

    def enter(function: Callable[..., None]) -> Callable[..., None]:
        for combination in itertools.product(*axes.values()):
            values = dict(zip(axes, (value for _, value in combination)))
            case = Case(
                file,
                name or f"test_{function.__name__.rstrip('_')}",
                "-".join(label for label, _ in combination),
                theme,
                gradients,
                native_only,
                lambda trial, values=values: function(trial, **values),
            )
            assert case.name not in CASES, case.name
            CASES[case.name] = case
        return function

    return enter


def aside(file: str, reason: str, *tests: str, count: int | None = None) -> None:
    """Enters tests that are not counted. count: how many cases they are, where that is not one each."""
    ASIDE.append(Aside(file, tests, len(tests) if count is None else count, reason))


def label(values: Iterable[Any] | Mapping[str, Any]) -> list[tuple[str, Any]]:
    if isinstance(values, Mapping):
        return list(values.items())
    return [(label_of(value), value) for value in values]


def label_of(value: Any) -> str:
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, tuple):
        return "x".join(label_of(v) for v in value)
    return getattr(value, "__name__", None) or str(value)


def load() -> dict[str, Case]:
    """Load the cases of PyTorch's tests and of attention-gym, by name."""
    from tests.peer import (  # noqa: F401
        attention_gym,
        biases,
        blocks,
        captured,
        compiled,
        decoding,
        errors,
        gradchecks,
        gym_masks,
        paging,
        scores,
        strides,
    )

    return {name: case for name, case in CASES.items() if case.file != REPORTS}


def load_reports() -> dict[str, Case]:
    """Load the cases of public reports, by name."""
    from tests.peer.reports import calls, idioms, masks, models, scores  # noqa: F401

    return {name: case for name, case in CASES.items() if case.file == REPORTS}
