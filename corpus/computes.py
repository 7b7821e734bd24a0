"""The specification of each kernel of the corpus; specifications are in variants/ and functions/."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cuir.syntax.types import F8E4M3, F16, F32, DType


@dataclass(frozen=True)
class Computed:
    """The specification of a kernel by its name, and values of consts without a default besides T and D.

    small: other consts that tests take instead of the file's defaults, for cheaper problems.
    """

    specification: str
    consts: Mapping[str, int | DType] = field(default_factory=dict)
    small: Mapping[str, int | DType] = field(default_factory=dict)

    @property
    def tested(self) -> dict[str, int | DType]:
        """Return the consts that tests verify the kernel with."""
        return {**self.consts, **self.small}


COMPUTES: dict[str, dict[str, Computed]] = {  # by program, by kernel
    "flash_fwd_sm90": {"flash_fwd": Computed("causal")},
    "flash_fwd_split_sm90": {"flash_fwd": Computed("causal", small={"D": 64})},
    "flash_fwd_f8_sm90": {"flash_fwd": Computed("causal", small={"T": F8E4M3, "D": 64, "BN": 64})},
    "flash_fwd_sm80": {"flash_fwd": Computed("causal")},
    "flash_fwd_f32": {"flash_fwd": Computed("causal", small={"T": F32})},
    "decode_sm90": {"flash_decode": Computed("causal", small={"BM": 16, "GROUP": 4, "BN": 32, "WG": 1})},
    "decode_cache_sm90": {"flash_decode": Computed("cached_decode", small={"BM": 16, "GROUP": 4, "WG": 1, "CHUNK": 16})},
    "decode_cache_sm80": {"flash_decode": Computed("cached_decode", small={"BM": 4, "GROUP": 4, "BN": 16})},
    "decode_cache_sm75": {"flash_decode": Computed("cached_decode", {"T": F16}, {"BM": 4, "GROUP": 4, "BN": 16})},
    "decode_cache_f8_sm90": {"flash_decode": Computed("cached_decode_f8", small={"BM": 4, "GROUP": 4, "BN": 32, "WG": 2, "CHUNK": 16})},
    "decode_split_sm90": {"flash_decode": Computed("cached_decode", small={"D": 64, "BM": 16, "GROUP": 4, "CHUNK": 16})},
    "mla_decode_sm90": {"mla_decode": Computed("cached_latent_decode", {"D": 192, "DV": 128}, {"BM": 4, "GROUP": 16, "CHUNK": 16})},
    "mla_decode_sm80": {"mla_decode": Computed("cached_latent_decode", {"D": 192, "DV": 128}, {"BM": 4, "GROUP": 8})},
    "mla_decode_sm75": {"mla_decode": Computed("cached_latent_decode", {"T": F16, "D": 192, "DV": 128}, {"BM": 4, "GROUP": 4})},
    "mla_decode_f8_sm90": {
        "mla_decode": Computed("cached_latent_decode_f8", {"D": 192, "DV": 128}, {"D": 448, "BM": 4, "GROUP": 16, "BN": 32, "CHUNK": 16})
    },
    "mla_selected_sm90": {"mla_selected": Computed("causal_selected_tokens", {"D": 192, "DV": 128}, {"BM": 1})},
    "flash_fwd_varlen_sm90": {"flash_fwd_varlen": Computed("causal_packed")},
    "flash_fwd_varlen_sm80": {"flash_fwd_varlen": Computed("causal_packed")},
    "flash_fwd_varlen_sm75": {"flash_fwd_varlen": Computed("causal_packed", {"T": F16})},
    "flash_fwd_varlen_f32": {"flash_fwd_varlen": Computed("causal_packed", small={"T": F32})},
    "flash_bwd_sm90": {
        "flash_bwd": Computed("causal_gradients", small={"D": 64, "BM": 128}),
        "prepare": Computed("attention_rows"),
        "finish": Computed("scaled_gradient"),
    },
    "flash_bwd_f8_sm90": {
        "flash_bwd": Computed("causal_gradients_f8", small={"T": F8E4M3, "D": 64, "BN": 64, "SUMMED": 128}),
        "prepare": Computed("attention_rows_f8", small={"T": F8E4M3, "D": 64}),
    },
    "flash_bwd_wide_sm90": {"flash_bwd": Computed("causal_gradients", {"D": 192})},
    "flash_bwd_dq_sm90": {"flash_bwd_dq": Computed("causal_query_gradients")},
    "flash_bwd_split_sm90": {
        "flash_bwd": Computed("causal_key_gradients", small={"D": 64}),
        "prepare": Computed("attention_rows"),
    },
    "flash_bwd_dq_split_sm90": {"flash_bwd_dq": Computed("causal_query_gradients", small={"D": 64})},
    "flash_bwd_sm80": {
        "flash_bwd": Computed("causal_gradients", small={"D": 64, "BM": 32, "BN": 64}),
        "prepare": Computed("attention_rows"),
        "finish": Computed("scaled_gradient"),
    },
    "flash_bwd_dq_sm80": {"flash_bwd_dq": Computed("causal_query_gradients")},
    "flash_bwd_sm75": {
        "flash_bwd": Computed("causal_key_gradients", {"T": F16}, {"D": 64}),
        "prepare": Computed("attention_rows", {"T": F16}),
    },
    "flash_bwd_dq_sm75": {"flash_bwd_dq": Computed("causal_query_gradients", {"T": F16}, {"D": 64})},
    "flash_bwd_f32": {"flash_bwd": Computed("causal_key_gradients", small={"T": F32})},
    "flash_bwd_dq_f32": {"flash_bwd_dq": Computed("causal_query_gradients", small={"T": F32})},
    "selected_fwd_sm90": {"flash_fwd": Computed("causal_selected", small={"D": 64, "BM": 4, "GROUP": 16, "SPAN": 8})},
    "selected_bwd_sm90": {
        "flash_bwd": Computed("causal_selected_key_gradients", small={"D": 64, "BM": 2, "GROUP": 8}),
        "prepare": Computed("attention_rows"),
        "join_parts": Computed("joined_parts", small={"D": 64}),
    },
    "selected_bwd_dq_sm90": {"flash_bwd_dq": Computed("causal_selected_query_gradients", small={"D": 64, "BM": 4, "GROUP": 16, "SPAN": 8})},
    "flash_fwd": {"flash_fwd": Computed("causal")},
    "flash_fwd_cluster": {"flash_fwd": Computed("causal")},
    "flash_fwd_over_v": {"flash_fwd": Computed("causal")},
    "flash_fwd_sm75": {"flash_fwd": Computed("causal", {"T": F16})},
    "flash_fwd_warps": {"flash_fwd": Computed("causal")},
    "global_sliding_window": {"flash_fwd": Computed("global_sliding_window", {"L": 128, "R": 128, "g": 16})},
    "causal_document": {"flash_fwd": Computed("causal_document_spans")},
    "sigmoid": {"flash_fwd": Computed("causal_sigmoid")},
    "gemm": {"gemm": Computed("gelu_gemm")},
    "gemm_clusters": {"gemm": Computed("gelu_gemm")},
    "gemm_sm75": {"gemm": Computed("gelu_gemm", {"T": F16})},
    "gemm_sm89": {"gemm": Computed("gelu_gemm", {"T": F8E4M3})},
    "flash_bwd": {"flash_bwd": Computed("causal_backward"), "delta": Computed("attention_delta")},
    "decode_paged": {"decode": Computed("paged_decode", {"G": 4, "PAGE": 16}), "combine": Computed("combine_parts")},
}
