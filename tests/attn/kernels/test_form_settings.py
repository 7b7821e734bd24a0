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
from cuir.attn.kernels.warp_settings import WarpCacheSettings, WarpVarlenSettings
from cuir.spec.specification import Specification


@pytest.mark.parametrize(
    ("arch", "kind", "expected"),
    [
        (DEFAULT, "forward", Settings),
        (DEFAULT, "decode", DecodeSettings),
        (DEFAULT, "cache", CacheSettings),
        (DEFAULT, "varlen", VarlenSettings),
        ("sm_80", "forward", Settings),
        ("sm_80", "cache", WarpCacheSettings),
        ("sm_80", "varlen", WarpVarlenSettings),
    ],
)
def test_the_class_of_settings(arch: str, kind: Kind, expected: type[Settings]) -> None:
    consts = (("CHUNK", 16),) if kind == "cache" else ()
    form = Form(torch.float16, 64, 64, kind, consts, KernelTarget(arch))
    settings = make_attention(Specification("full"), make_capture_key(None, None), form, "off").settings
    assert type(settings) is expected and settings.fits(settings.start)
