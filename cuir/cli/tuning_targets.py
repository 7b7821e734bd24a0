"""Targets of tuning: variant, kernel to start from, and the space of its settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..text.diagnostics import CuirError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from ..attn.splicing.splice import TransferResult
    from ..performance.search import Space


@dataclass(frozen=True)
class TuningWords:
    """Arguments of the command line for tuning: parameters of the variant, and values of consts."""

    param: tuple[str, ...]
    const: tuple[str, ...]


class TuningTarget(NamedTuple):
    """Target of tuning: the variant, the kernel to start from, and the space of its settings.

    source: the kernel's name or path.
    """

    variant: str
    source: str
    space: Space


def read_target(name: str, origin: str, space_file: Path | None, adapts: bool = False) -> TuningTarget:
    """Return the tuning target that a name stands for: a variant, or an unchanged kernel.

    `adapts`: the name is a variant's for sure. Raises CuirError.
    """
    import corpus

    from ..attn.verification.problems import is_attention
    from ..performance.search import Space
    from .command_inputs import read_program

    is_kernel = not adapts and (name in corpus.kernels() or name.endswith(".cuir"))
    source = name if is_kernel else origin
    if space_file is not None:
        place: Traversable = space_file
    elif source in corpus.spaces():
        place = corpus.spaces()[source]
    else:
        place = Path(source).with_suffix(".tune.json")
    try:
        text = place.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        program = read_program(source)  # a missing file is reported rather than its missing space
        if is_kernel and space_file is None and not any(is_attention(k) for k in program.kernels().values()):
            raise CuirError.of(
                "U115",
                f"the search is for attention kernels, and {source} has none",
                hint="compile it with other consts and time them: docs/tutorials/first_kernel.md shows a loop",
            ) from None
        raise CuirError.of(
            "U115",
            f"nothing says which values are worth trying for {source}: {place.name} cannot be read",
            hint="--space names a file; docs/tuning.md shows one",
        ) from None
    space = Space.parse(text, place.name)
    if is_kernel and not space.computes:
        raise CuirError.of(
            "U115",
            f"{place.name} does not say which variant {name} computes",
            hint='"computes": "causal", or give the variant and --origin',
        )
    return TuningTarget(space.computes if is_kernel else name, source, space)


def transfer_origin(variant: str, param: Sequence[str], origin: str) -> TransferResult:
    """Transfer a kernel to a variant."""
    from ..attn.splicing.splice import transfer
    from .command_inputs import read_program, read_variant

    return transfer(read_program(origin), read_variant(variant, param))
