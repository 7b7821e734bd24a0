"""Which kernel of the corpus computes what. Owns the table; the specifications are in variants/ and functions/."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Computed:
    """The specification of a kernel by its name, and const parameters that have no default but T and D."""

    specification: str
    consts: Mapping[str, int] = field(default_factory=dict)


COMPUTES: dict[str, dict[str, Computed]] = {  # by program, by kernel
    "flash_fwd_sm90": {"flash_fwd": Computed("causal")},
    "flash_fwd": {"flash_fwd": Computed("causal")},
    "flash_fwd_cluster": {"flash_fwd": Computed("causal")},
    "flash_fwd_over_v": {"flash_fwd": Computed("causal")},
    "flash_fwd_sm80": {"flash_fwd": Computed("causal")},
    "global_sliding_window": {"flash_fwd": Computed("global_sliding_window", {"L": 128, "R": 128, "g": 16})},
    "causal_document": {"flash_fwd": Computed("causal_document_spans")},
    "sigmoid": {"flash_fwd": Computed("causal_sigmoid")},
    "gemm": {"gemm": Computed("gelu_gemm")},
    "flash_bwd": {"flash_bwd": Computed("causal_backward"), "delta": Computed("attention_delta")},
    "decode_paged": {"decode": Computed("paged_decode", {"G": 4, "PAGE": 16}), "combine": Computed("combine_parts")},
}
