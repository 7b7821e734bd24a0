"""Caches of 8-bit floats (e4m3): checks of their scales, and quantisation of new keys and values.

A number of the cache times its scale is a key or a value.
"""

from __future__ import annotations

import torch

from ..capture.call_inputs import check_gradient, wrong
from ..capture.device_tensors import constant

DTYPE = torch.float8_e4m3fn
LARGEST = 448.0  # finite number of the dtype


def check_scales(k_scale: torch.Tensor | None, v_scale: torch.Tensor | None, keys: torch.Tensor, latent: bool = False) -> None:
    """Check that scales fit a cache [NP, HK, page size, D].

    Both are None, f32 [HK], or f32 [NP, HK, page size]. A latent cache has `k_scale` alone.

    Raises CuirError U402, U403, U404, U406, U407, U408, U410.
    """
    if not latent and (k_scale is None) != (v_scale is None):
        wrong("U402", f"scales come together: `{'k_scale' if k_scale is None else 'v_scale'}` is missing")
    if k_scale is None:
        return
    for name, x in (("k_scale", k_scale), *(() if latent else (("v_scale", v_scale),))):
        if not isinstance(x, torch.Tensor):
            wrong(
                "U403",
                f"`{name}` must be a tensor of float32, found {type(x).__name__}",
                f"torch.full(({keys.shape[1]},), {x}) on the device of `q`" if isinstance(x, (int, float)) else None,
            )
        if keys.dtype != DTYPE:
            wrong(
                "U404", f"`{name}` is for caches of float8_e4m3fn, found {str(keys.dtype).removeprefix('torch.')}", "leave the scales out"
            )
        if x.dtype != torch.float32:
            wrong("U404", f"`{name}` must be float32, found {str(x.dtype).removeprefix('torch.')}", f"{name}.float(), once")
        if x.device != keys.device:
            wrong("U407", f"`{name}` must be on the device of `q`, {keys.device}, found {x.device}")
        if x.shape not in ((keys.shape[1],), keys.shape[:3]) or x.shape != k_scale.shape:
            wrong(
                "U408",
                f"`{name}` has a number a key head, [{keys.shape[1]}], or a token, {list(keys.shape[:3])} (pages or sequences, heads, tokens, in either layout), as the other one has; "
                f"found {list(x.shape)}",
            )
        if x.dim() == 3 and x.stride(2) != 1 and x.shape[2] > 1:
            wrong(
                "U406",
                f"`{name}` of tokens must have the tokens of a page one behind the other, found strides {x.stride()}",
                "a tensor made as [.., heads, tokens]: it is read and written where it lies",
            )
        check_gradient(name, x)


def for_kernel(scale: torch.Tensor | None, heads: int, device: torch.device) -> torch.Tensor:
    """Return a scale as the kernel reads it, its last dim contiguous.

    It is [1, HK, 1] of heads or [NP, HK, page size] of tokens.
    """
    if scale is None:
        return constant(torch.ones, 1, heads, 1, dtype=torch.float32, device=device)
    return scale[None, :, None] if scale.dim() == 1 else scale


def quantise(x: torch.Tensor, scale: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Quantise new tokens [B, N, HK, D] to numbers of the cache.

    Returns these numbers, and their scales [B, N, HK] where each token has one, else None.

    Each number is the nearest one to x / scale, saturated at the largest. The scale of a token maps its largest number
    to the largest one of the dtype.

    Args:
        scale: that of the cache.
    """
    x = x.float()
    if scale is None or scale.dim() == 1:
        return _round_to_fp8(x if scale is None else x / scale[:, None]), None
    token_scales = x.abs().amax(-1) / LARGEST
    token_scales = torch.where(token_scales > 0, token_scales, 1.0)
    return _round_to_fp8(x / token_scales[..., None]), token_scales


def _round_to_fp8(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(-LARGEST, LARGEST).to(DTYPE)


__all__ = ["DTYPE", "LARGEST", "check_scales", "for_kernel", "quantise"]
