"""Setting that a call gets, and the reason: `cuir tune --choice`. Nothing is timed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..performance.timing.problem import Shape
from ..text.diagnostics import CuirError
from .output import print_json
from .tables import print_table

if TYPE_CHECKING:
    from ..performance.selection import Device
    from .tuning_targets import TuningTarget, TuningWords


def show_choices(
    name: str, target: TuningTarget, shapes: Sequence[Shape], words: TuningWords, dtype: str, gpu: str | None, as_json: bool
) -> int:
    """Print a row for each shape.

    Raises CuirError U100 for a GPU that is not present and for which no measurements are shipped.
    """
    from ..bridging import attention_consts
    from ..checking.const_defaults import consts_as_json
    from ..performance.search.space import label
    from ..performance.selection import Evidence, choose
    from .command_inputs import agreeing, read_consts
    from .worker_process import transfer_variant

    result = transfer_variant(target.variant, words.param, target.source)
    device = _device(gpu)
    choices = []
    for shape in shapes:
        fixed = agreeing(attention_consts(dtype, shape.D, shape.DV), read_consts(words.const), f"--dtype {dtype} and --shape {shape}")
        near = target.space.restrict(result.program, result.kernel).narrow({"DV": shape.DV, **fixed})
        choices.append(
            choose(
                result.program,
                fixed,
                shape.lengths,
                Evidence(near.starts, near.exact, device=device),
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


def _device(gpu: str | None) -> Device:
    """Return the GPU of this name from the shipped tables, or this machine's GPU if no other is named."""
    from ..performance.selection import Device
    from ..performance.selection.shipped_table import list_shipped_devices

    present = Device.current()
    if gpu is None or gpu == present.name:
        return present
    devices = list_shipped_devices()
    if gpu not in devices:
        raise CuirError.of(
            "U100", f"nothing is known of a `{gpu}`", hint=f"a GPU that is here, or one that was measured: {', '.join(devices)}"
        )
    return devices[gpu]


__all__ = ["show_choices"]
