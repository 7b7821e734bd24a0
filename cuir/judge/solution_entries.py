"""Entry of a solution: the function or module of its file that is judged."""

from __future__ import annotations

from types import ModuleType

ENTRIES = ("ModelNew", "Model", "solution", "forward", "custom_kernel", "solve")


def find_entry(module: ModuleType, is_source: bool) -> str:
    """Return the name of what is judged. Raises LookupError.

    is_source: The module is that of a CUDA source, of which the last function will do.
    """
    public = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
    offered = [n for n in public if not isinstance(vars(module)[n], type) or n in ENTRIES]
    name = next((n for n in ENTRIES if n in public), offered[-1] if is_source and offered else None)
    if name is None:
        raise LookupError(f"it has none of {', '.join(ENTRIES)}")
    return name
