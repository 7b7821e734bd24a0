"""Sums of parts, each over a block of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cuir.spec import FunctionSpecification


def joined_parts() -> FunctionSpecification:
    """Y [B, HK, N, D]: rows j * BN to j * BN + BN - 1 of the x-th [N, D] are the sum of parts ENDS[c, 0] to ENDS[c, 1] - 1 of X [PARTS, BN, D].

    c = x * cdiv(N, BN) + j numbers blocks of rows.
    """

    def reference(x: torch.Tensor, ends: torch.Tensor, B: int, HK: int, N: int) -> torch.Tensor:
        sums = torch.stack([x[begin:end].sum(0) for begin, end in ends.tolist()])
        return sums.view(B, HK, -1, x.shape[-1])[:, :, :N]

    def sizes(drawn: Mapping[str, int]) -> dict[str, int] | None:
        N = min(drawn["N"], 300)
        return {"N": N, "CELLS": drawn["B"] * drawn["HK"] * -(-N // drawn["BN"])} if min(N, drawn["B"], drawn["HK"]) else None

    def inputs(sizes: Mapping[str, int], generator: torch.Generator) -> dict[str, Any]:
        cuts = torch.randint(sizes["PARTS"] + 1, (sizes["CELLS"] + 1,), generator=generator).sort().values
        return {"ENDS": torch.stack([cuts[:-1], cuts[1:]], -1)}

    return FunctionSpecification("joined_parts", reference, inputs, sizes, doc=joined_parts.__doc__ or "")
