"""The settings of a program for a form of calls: by its task, and by the architecture."""

from __future__ import annotations

from collections.abc import Mapping

from ...checking.checked import Const
from ...text.diagnostics import CuirError
from ..splicing.splice import TransferResult
from ..tracing.traced_result import Traced
from . import decoding
from .card_kernels import DEFAULT, WIDEST
from .experts import Form, list_starts, starts_of
from .latent_settings import LatentSettings, NarrowLatentSettings, SelectedTokensSettings, SplitCacheSettings
from .selected_settings import SelectedSettings
from .serving_settings import CacheSettings, DecodeSettings, FixedSettings, VarlenSettings
from .settings import Settings
from .warp_settings import WarpCacheSettings, WarpLatentSettings, WarpVarlenSettings


def make_settings(form: Form, fixed: Mapping[str, Const], transferred: TransferResult, traced: Traced, of_user: bool) -> Settings:
    """Make the settings of a variant's program.

    Raises CuirError U501 for head dims of which the card holds no tile.

    Args:
        fixed: T, D, DV, PARTS and the const parameters that are not to be chosen.
        of_user: the program was not adapted from one of ours.
    """
    program, spec, (arch, card) = transferred.program, transferred.spec, form.target
    if form.kind == "varlen":
        varlen = VarlenSettings if arch == DEFAULT else WarpVarlenSettings
        packed_settings = varlen(program, fixed, starts_of(program, fixed, arch), card=card)
        packed_settings.invariant = form.invariant
        return packed_settings
    if form.kind == "selected":
        return SelectedSettings(program, fixed, (), card=card)
    if form.kind != "forward":
        of_kind = {
            "decode": DecodeSettings,
            "latent cache": LatentSettings,
            "latent cache of 8 bits": NarrowLatentSettings,
            "latent cache, selected tokens": SelectedTokensSettings,
        }
        if form.kind == "cache" and max(form.head_dim, form.value_dim) > WIDEST:
            of_kind["cache"] = SplitCacheSettings
        if arch != DEFAULT:
            of_kind |= {"cache": WarpCacheSettings, "latent cache": WarpLatentSettings}
        decode = of_kind.get(form.kind, CacheSettings)
        joins = spec.normalize == "softmax" and spec.sink is None and not spec.output_names
        packed = decoding.can_pack_heads(traced, program, fixed)
        if form.invariant:
            fixed = {**fixed, "SHARE": decode.fix_share(fixed)}
        return decode(program, fixed, packed, joins, spec.score_mod is not None, card)
    if form.invariant and not of_user:
        return FixedSettings(program, fixed, starts_of(program, fixed, arch), mask=transferred.mask, card=card)
    starts, exact = ((), False) if of_user else list_starts(program, fixed, form.target)
    settings = Settings(program, fixed, starts, exact, transferred.mask, card)
    if arch != DEFAULT and not of_user and not form.consts and not settings.fits(settings.start):
        raise CuirError.of(
            "U501",
            f"{arch} has no kernel for attention of head dims {form.head_dim} and {form.value_dim}: shared memory holds no tile",
            hint="use smaller head dims, or PyTorch's flex_attention",
        )
    return settings


__all__ = ["make_settings"]
