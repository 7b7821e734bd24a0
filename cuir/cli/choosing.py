"""Which setting a call gets, and why: `cuir tune --choice`. Times nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..measure.problem import Shape
from ..text.diagnostics import CuirError
from .output import print_json
from .tables import print_table


def show_choices(
    target: str, variant: str, source: str, shapes: Sequence[Shape], param: Sequence[str], dtype: str, const: Sequence[str], gpu: str | None,
    starts: Any, as_json: bool,
) -> int:  # fmt: skip
    """Prints a row for each shape. Raises CuirError U100 for a GPU that is not here and of which nothing is shipped."""
    from ..bridging import attention_consts
    from ..choice import choose
    from ..tuning.space import label
    from .inputs import agreeing, read_consts
    from .worker import transferred

    made = transferred(variant, tuple(param), source)
    device = _device(gpu)
    choices = []
    for shape in shapes:
        fixed = agreeing(attention_consts(dtype, shape.D, shape.DV), read_consts(list(const)), f"--dtype {dtype} and --shape {shape}")
        near = starts.restrict(made.program, made.kernel).narrow({"DV": shape.DV, **fixed}) if starts is not None else None
        known, exact = (near.starts, near.exact) if near is not None else ((), False)
        choices.append(
            choose(
                made.program,
                fixed,
                shape.lengths,
                numbers=made.numbers,
                mask=made.mask,
                starts=known,
                exact=exact,
                kernel=made.kernel,
                device=device,
            )
        )
    if as_json:
        told = [{"shape": list(shape.as_tuple()), **c.as_json()} for shape, c in zip(shapes, choices)]
        print_json({"ok": True, "diagnostics": [], "target": target, "device": device.name or None, "choices": told})
    else:
        rows = [(str(shape), label(c.setting), c.source, c.why) for shape, c in zip(shapes, choices)]
        print_table(f"{target} on {device.name or 'no GPU'}, {dtype}", ("shape", "setting", "source", "why"), rows)
    return 0


def _device(gpu: str | None) -> Any:
    from ..choice import Device
    from ..choice.table import list_shipped_devices

    here = Device.current()
    if gpu is None or gpu == here.name:
        return here
    known = list_shipped_devices()
    if gpu not in known:
        raise CuirError.of(
            "U100", f"nothing is known of a `{gpu}`", hint=f"a GPU that is here, or one that was measured: {', '.join(known)}"
        )
    return known[gpu]


__all__ = ["show_choices"]
