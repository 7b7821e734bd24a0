"""Command `corpus`: the kernels, programs, variants and CUDA sources that are shipped."""

from __future__ import annotations

from typing import Any

from ..options import Json
from ..output import print_json


def corpus(as_json: Json = False) -> None:
    """List what is shipped: expert kernels, programs, variants, functions, and expert CUDA to lift.

    The functions are what programs compute.

    Examples:
        cuir corpus
        cuir corpus | grep window
    """
    import corpus as shipped

    from ..tables import print_table

    shelves: dict[str, Any] = {
        "variants": shipped.variants(),
        "kernels": shipped.kernels(),
        "programs": shipped.programs(),
        "functions": shipped.functions(),
        "cuda": shipped.cuda(),
    }
    listing = {shelf: {name: shipped.about(place) for name, place in places.items()} for shelf, places in shelves.items()}
    if as_json:
        print_json({"ok": True, "diagnostics": [], **listing})
        return
    uses = {
        "kernels": "expert kernels, of which `cuir bridge VARIANT --origin NAME` adapts one",
        "programs": "examples to read and to try: cuir show NAME, cuir verify NAME",
        "variants": "what `cuir bridge NAME` adapts an expert kernel to",
        "functions": "what other programs compute: cuir verify PROGRAM --against NAME",
        "cuda": "expert CUDA: cuir lift NAME",
    }
    for shelf, items in listing.items():
        print_table(f"{shelf}: {uses[shelf]}", ("name", "what it is"), list(items.items()))
