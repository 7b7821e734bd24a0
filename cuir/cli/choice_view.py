"""Setting that a call gets, and the reason: `cuir tune --choice`. Nothing is timed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..performance.timing.problem import Shape
from ..text.diagnostics import CuirError
from .output import print_json
from .tables import print_table

if TYPE_CHECKING:
    from ..attn.kernels.card_kernels import KernelTarget
    from ..performance.selection import Device
    from .tuning_targets import TuningTarget, TuningWords


def show_choices(
    name: str,
    target: TuningTarget,
    shapes: Sequence[Shape],
    words: TuningWords,
    dtype: str,
    gpu: tuple[Device, KernelTarget],
    as_json: bool,
) -> int:
    """Print a row for each shape; `gpu` is a result of `find_gpu`."""
    from ..bridging import attention_consts
    from ..checking.const_defaults import consts_as_json
    from ..performance.search.space import label
    from ..performance.selection import Evidence, choose
    from .command_inputs import agreeing, read_consts
    from .worker_process import transfer_variant

    result = transfer_variant(target.variant, words.param, target.source)
    device, kernels = gpu
    choices = []
    for shape in shapes:
        fixed = agreeing(attention_consts(dtype, shape.D, shape.DV), read_consts(words.const), f"--dtype {dtype} and --shape {shape}")
        near = target.space.restrict(result.program, result.kernel).narrow({"DV": shape.DV, **fixed})
        choices.append(
            choose(
                result.program,
                fixed,
                shape.lengths,
                Evidence(near.starts, near.exact, device=device, card=kernels.card),
                numbers=result.numbers,
                mask=result.mask,
                kernel=result.kernel,
            )
        )
    if as_json:
        data = [{"shape": list(s.as_tuple()), **c.as_json(), "consts": consts_as_json(c.consts)} for s, c in zip(shapes, choices)]
        of = {"target": name, "dtype": dtype, "device": device.name or None}
        print_json({"ok": True, "diagnostics": [], **of, "choices": data})
    else:
        rows = [(str(shape), label(c.consts), c.source, c.why) for shape, c in zip(shapes, choices)]
        print_table(f"{name} on {device.name or 'no GPU'}, {dtype}", ("shape", "consts", "source", "why"), rows)
    return 0


def find_gpu(gpu: str | None) -> tuple[Device, KernelTarget]:
    """Return a GPU and what its kernels are made for: of this machine, of the shipped tables, or of the table of cards.

    Raises CuirError U100 for a GPU that none of them names.
    """
    from ..attn.kernels.card_kernels import KernelTarget, choose_target, find_arch, get_current_device
    from ..performance.selection import Device
    from ..performance.selection.shipped_table import list_shipped_devices
    from ..runtime.cards import CARDS

    present = Device.current()
    if gpu is None or gpu == present.name:
        return present, choose_target(get_current_device())
    measured = list_shipped_devices()
    if gpu in measured:
        return measured[gpu], KernelTarget()
    estimated = {card.name: card for card in CARDS.values() if not card.is_measured}
    card = estimated.get(gpu)
    arch = find_arch(card.capability) if card else None
    if card is None or arch is None:
        known = f"measured ones ({', '.join(measured)}), and others by estimates ({', '.join(estimated)})"
        raise CuirError.of("U100", f"nothing is known of a `{gpu}`", hint=f"a GPU that is here, {known}")
    name = f"{card.name} {card.code} {card.multiprocessors}"  # as `tuning_records.device` writes it
    return Device(name, card.multiprocessors), KernelTarget(arch, card)


__all__ = ["find_gpu", "show_choices"]
