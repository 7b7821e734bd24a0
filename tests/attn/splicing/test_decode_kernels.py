"""Variants on the decode kernels: every variant of the corpus goes into their splice points; parts of other weights than a softmax's; lengths of a cache."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import corpus
from cuir.attn.splicing.splice import transfer
from cuir.checking.checker import check
from cuir.spec.specification import Specification
from cuir.syntax.parser import parse
from cuir.syntax.printer import show
from cuir.syntax.types import F16
from cuir.syntax.walk import names_read

DECODE, CACHE, EIGHT_BIT = (
    parse(corpus.kernels()[name].read_text(encoding="utf-8")) for name in ("decode_sm90", "decode_cache_sm90", "decode_cache_f8_sm90")
)
SETTINGS: list[dict[str, Any]] = [{"GROUP": 4, "BM": 16}, {"CLUSTER": 1, "WG": 1}]


@pytest.mark.sweep
@pytest.mark.parametrize("name", sorted(corpus.variants()))
def test_every_variant_makes_kernels(name: str) -> None:
    spec = corpus.variant(name)()
    packed, alone = ({"T": F16, "D": 64, **consts} for consts in SETTINGS)
    for consts in (packed, alone):
        check(transfer(DECODE, spec).program, None, consts)
    check(transfer(DECODE, replace(spec, max_scores=True)).program, None, packed)
    check(transfer(CACHE, spec).program, None, packed)


def test_the_origin_is_causal_already() -> None:
    for origin in (DECODE, CACHE, EIGHT_BIT):
        assert transfer(origin, corpus.variant("causal")()).diff == ""


@pytest.mark.parametrize("name", ["combo", "sigmoid", "sink_causal"])
def test_variants_over_8_bits(name: str) -> None:
    spec = corpus.variant(name)()
    for most in (False, True):
        check(transfer(EIGHT_BIT, replace(spec, max_scores=most)).program, None, {"T": F16, "D": 64, "GROUP": 4, "BM": 4, "TOKENS": 1})


def test_parts_of_weights_without_a_state_are_added_up() -> None:
    program = transfer(DECODE, corpus.variant("sigmoid")()).program
    assert "return 1.0" in show(program.funcs()["softmax_share"]) and "STATES" not in names_read(program.funcs()["softmax_joined"])


def test_a_cache_has_lengths_in_the_place_of_n() -> None:
    def window(b: Any, h: Any, q: Any, k: Any, *, N: Any) -> Any:
        return k >= N - 5

    for spec in (Specification("window", window), corpus.variant("relu")(), corpus.variant("document")()):
        funcs = transfer(CACHE, spec).program.funcs()
        assert not any("N" in names_read(f) for f in funcs.values())
        assert any("LENGTHS" in names_read(funcs[name]) for name in ("kv_count", "spans") if name in funcs)
    assert "LENGTHS[b]" in show(transfer(CACHE, corpus.variant("relu")()).program.funcs()["softmax_end"])


def test_a_cache_visits_all_blocks_of_a_mask_by_table_or_head() -> None:
    def of_head(b: Any, h: Any, q: Any, k: Any) -> Any:
        return k < h * 40

    for spec in (corpus.variant("document")(), Specification("of_head", of_head)):
        variant = transfer(CACHE, spec)
        assert variant.lists is None and "return n, n" in show(variant.program.funcs()["kv_count"])
    assert transfer(DECODE, corpus.variant("document")()).lists is not None
