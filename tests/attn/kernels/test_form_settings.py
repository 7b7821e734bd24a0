"""The settings of a program: their class follows the task and the architecture."""

from __future__ import annotations

import pytest
import torch

from cuir.attn.capture.capture_keys import make_capture_key
from cuir.attn.kernels.attention_kernel import make_attention
from cuir.attn.kernels.card_kernels import DEFAULT, KernelTarget, Kind
from cuir.attn.kernels.experts import Form
from cuir.attn.kernels.serving_settings import CacheSettings, DecodeSettings, VarlenSettings
from cuir.attn.kernels.settings import Settings
from cuir.attn.kernels.warp_settings import WarpCacheSettings, WarpLatentSettings, WarpVarlenSettings
from cuir.spec.specification import Lengths, Specification


@pytest.mark.parametrize(
    ("arch", "kind", "expected"),
    [
        (DEFAULT, "forward", Settings),
        (DEFAULT, "decode", DecodeSettings),
        (DEFAULT, "cache", CacheSettings),
        (DEFAULT, "varlen", VarlenSettings),
        ("sm_80", "forward", Settings),
        ("sm_80", "cache", WarpCacheSettings),
        ("sm_80", "latent cache", WarpLatentSettings),
        ("sm_80", "varlen", WarpVarlenSettings),
    ],
)
def test_the_class_of_settings(arch: str, kind: Kind, expected: type[Settings]) -> None:
    consts = (("CHUNK", 16),) if "cache" in kind else ()
    form = Form(torch.float16, *((192, 128) if kind == "latent cache" else (64, 64)), kind, consts, KernelTarget(arch))
    settings = make_attention(Specification("full"), make_capture_key(None, None), form, "off").settings
    assert type(settings) is expected and settings.fits(settings.start)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("kind", ["forward", "varlen", "cache", "cache of 8 bits", "latent cache"])
@pytest.mark.parametrize("dim", [64, *(pytest.param(n, marks=pytest.mark.thorough("other head dims")) for n in (128, 256))])
def test_invariant_settings_divide_keys_alike_for_all_lengths(kind: Kind, dim: int) -> None:
    """Return the settings that decide the order of sums: keys of a block, its workers, starts of shares."""
    consts = {"cache": (("CHUNK", 64),), "cache of 8 bits": (("CHUNK", 64), ("TOKENS", 0)), "latent cache": (("CHUNK", 64),)}
    head_dim, value_dim = (2 * dim + 64, 2 * dim) if kind == "latent cache" else (dim, dim)
    form = Form(torch.bfloat16, head_dim, value_dim, kind, consts.get(kind, ()), invariant=True)
    settings = make_attention(Specification("full"), make_capture_key(None, None), form, "off").settings
    found = set()
    for at in (
        Lengths(1, 8, 2, 1, 100),
        Lengths(1, 8, 2, 1, 131072),
        Lengths(200, 8, 2, 1, 4096),
        Lengths(3, 8, 2, 70, 9000),
        Lengths(1, 8, 8, 5000, 7),
    ):
        choice = settings.choice(at)
        assert choice.source == "given" and settings.fits(choice.consts)
        shares = int(choice.consts.get("SPLITS", 1))  # type: ignore[call-overload]
        held = (shares + 3 * max(0, shares - 32)) * int(choice.consts.get("SHARE", 1 << 20)) * int(choice.consts.get("BN", 64))  # type: ignore[call-overload]
        assert shares == 64 or held >= at.N
        found.add(tuple(choice.consts.get(n) for n in ("BN", "WG", "ROWS", "CLUSTER", "SHARE")))
    assert len(found) == 1
