"""Setting that a call gets, and the reason: `cuir tune --choice`. Nothing is timed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..performance.timing.problem import Shape
from ..text.diagnostics import CuirError
from .output import print_json
from .tables import print_table


def show_choices(
    target: str,
    variant: str,
    source: str,
    shapes: Sequence[Shape],
    param: Sequence[str],
    dtype: str,
    const: Sequence[str],
    gpu: str | None,
    starts: Any,
    as_json: bool,
) -> int:
    """Print a row for each shape.

    Raises CuirError U100 for a GPU that is not present and for which no measurements are shipped.
    """
    from ..bridging import attention_consts
    from ..checking.const_defaults import consts_as_json
    from ..performance.search.space import label
    from ..performance.selection import choose
    from .command_inputs import agreeing, read_consts
    from .worker_process import transferred

    result = transferred(variant, tuple(param), source)
    device = _device(gpu)
    choices = []
    for shape in shapes:
        fixed = agreeing(attention_consts(dtype, shape.D, shape.DV), read_consts(list(const)), f"--dtype {dtype} and --shape {shape}")
        near = starts.restrict(result.program, result.kernel).narrow({"DV": shape.DV, **fixed}) if starts is not None else None
        start_settings, exact = (near.starts, near.exact) if near is not None else ((), False)
        choices.append(
            choose(
                result.program,
                fixed,
                shape.lengths,
                numbers=result.numbers,
                mask=result.mask,
                starts=start_settings,
                exact=exact,
                kernel=result.kernel,
                device=device,
            )
        )
    if as_json:
        data = [{"shape": list(s.as_tuple()), **c.as_json(), "consts": consts_as_json(c.consts)} for s, c in zip(shapes, choices)]
        of = {"target": target, "dtype": dtype, "device": device.name or None}
        print_json({"ok": True, "diagnostics": [], **of, "choices": data})
    else:
        rows = [(str(shape), label(c.consts), c.source, c.why) for shape, c in zip(shapes, choices)]
        print_table(f"{target} on {device.name or 'no GPU'}, {dtype}", ("shape", "consts", "source", "why"), rows)
    return 0


def _device(gpu: str | None) -> Any:
    """Return the device of a name, or the present one."""
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
