"""Splice points of the expert kernel replaced: what changes, what stays, and what is refused.

Variants on the decode kernels: every variant of the corpus goes into their splice points; parts of other weights than a softmax's; lengths of a cache.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest
import torch

import corpus
from cuir.attn.splicing.captured_arguments import compute_captured_arguments
from cuir.attn.splicing.normalisers import POINTS
from cuir.attn.splicing.splice import transfer
from cuir.attn.tracing.splice_names import OPTIONAL, SPLICE_POINTS
from cuir.checking.checker import check
from cuir.spec.loading import as_specification
from cuir.spec.specification import Lengths, Specification
from cuir.syntax.nodes import Program
from cuir.syntax.parser import parse
from cuir.syntax.printer import show
from cuir.syntax.types import BF16, F16
from cuir.syntax.walk import names_read, walk
from cuir.text.diagnostics import CuirError

VARIANTS = sorted(corpus.variants())


def expert() -> Program:
    return parse(files("corpus").joinpath("kernels/flash_fwd_sm90.cuir").read_text(encoding="utf-8"), "flash_fwd_sm90.cuir")


def variant(name: str) -> Specification:
    return as_specification(corpus.variant(name), name)


@pytest.mark.sweep
@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_checks_and_leaves_the_rest_alone(name: str) -> None:
    origin, spec = expert(), variant(name)
    result = transfer(origin, spec)
    for dtype, head_dim in ((F16, 128), (BF16, 64)):
        check(result.program, None, {"T": dtype, "D": head_dim})
    assert parse(result.text) == result.program and show(result.program) == result.text
    weighed = (
        set() if spec.normalize == "softmax" and spec.sink is None else {"softmax_end"} if spec.normalize == "softmax" else set(POINTS)
    )
    assert weighed <= set(result.replaced)
    untouched = set(origin.funcs()) - set(SPLICE_POINTS) - set(OPTIONAL) - weighed
    assert all(result.program.funcs()[f] == origin.funcs()[f] for f in untouched)
    assert result.program.kernels()["flash_fwd"].body == origin.kernels()["flash_fwd"].body
    changed = [line for line in result.diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert bool(changed) == bool(result.replaced)


def test_causal_is_the_origin_itself() -> None:
    result = transfer(expert(), variant("causal"))
    assert result.diff == "" and result.replaced == () and result.program == expert()


def test_prefix_lm_as_a_person_would_write_it() -> None:
    result = transfer(expert(), variant("prefix_lm"))
    assert result.replaced == ("keep", "kv_count", "kv_rows") and result.parameters == {"prefix": 256}
    added = [line[1:].strip() for line in result.diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert added == [
        "return (k < prefix) | (k <= q)",
        "n = min(cdiv(N, BN), cdiv(max(prefix, (m + 1) * BM), BN))",
        "full = min(N // BN, max(prefix, m * BM + 1) // BN)",
        "needed = max(0, min(n, cdiv(max(prefix, r + 64), BN)))",
        "full = min(N // BN, max(prefix, r + 1) // BN)",
        "O: Global[T, B, H, M, DV], LSE: Global[f32, B, H, M], scale: f32, prefix: i32, *,",
    ]


def test_comments_of_the_origin_stay() -> None:
    text = transfer(expert(), variant("softcap")).text
    before, _, rest = show(expert()).partition("@func\ndef tile(")  # which is another one
    lines = [*before.splitlines(), *rest[rest.index("@func") :].splitlines()]
    retained = {line.split("#", 1)[1] for line in lines if "#" in line}
    assert "# ---- splice points" in text and all(f"#{comment}" in text for comment in retained)


def test_a_second_transfer_gives_what_the_first_would() -> None:
    """Helpers and parameters of the variant before are gone."""
    window = transfer(expert(), variant("global_sliding_window")).program
    repeated = transfer(window, variant("causal"))
    assert repeated.program == expert()
    assert transfer(window, variant("softcap")).program == transfer(expert(), variant("softcap")).program


def test_captured_tensors_follow_the_lengths() -> None:
    spec = variant("causal_document")
    result = transfer(expert(), spec)
    assert result.parameters == {}
    at = Lengths(2, 4, 2, 100, 300)
    doc = result.arguments(at, consts={})["doc"]
    assert isinstance(doc, torch.Tensor) and doc.shape == (2, 300) and doc.dtype == torch.int32
    repeated = compute_captured_arguments(result.program, result.program.kernels()["flash_fwd"], spec, at, consts={})["doc"]
    assert isinstance(repeated, torch.Tensor) and torch.equal(repeated, doc)


def test_a_captured_name_that_the_kernel_uses_gets_another() -> None:
    W = 9
    spec = Specification("w", lambda b, h, q, k: q - k <= W)
    result = transfer(expert(), spec)
    assert result.parameters == {"W_": 9}
    check(result.program, None, {"T": F16, "D": 64})
    assert compute_captured_arguments(result.program, result.program.kernels()["flash_fwd"], spec, Lengths(1, 1, 1, 1, 1)) == {"W_": 9}


def test_constants_are_added_where_they_lack() -> None:
    text = show(expert()).replace("LOG2E", "L2E")
    result = transfer(parse(text), variant("softcap"))
    assert result.text.count("LOG2E = 1.4426950408889634") == 1
    check(result.program, None, {"T": F16, "D": 64})


def test_sigmoid_as_a_person_would_write_it() -> None:
    result = transfer(expert(), Specification("sigmoid", normalize="sigmoid"))
    added = [line[1:].strip() for line in result.diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert "return E / (1.0 + E), state, 1.0" in added and "return acc, state" in added
    assert "THRESHOLD" not in result.text and "row_max" not in result.text, "a const that only the softmax used is gone"


def test_relu_takes_the_score_itself() -> None:
    """Its logits have no base."""
    assert "return S, scale\n" in transfer(expert(), Specification("relu", normalize="relu")).text
    doubled = transfer(expert(), Specification("relu", None, lambda s, b, h, q, k: s * 2.0, normalize="relu")).text
    assert "return S * (scale * 2.0), 1.0\n" in doubled


def test_a_sink_is_captured() -> None:
    def end(**options: Any) -> tuple[str, dict[str, Any]]:
        result = transfer(expert(), Specification("sink", **options))
        check(result.program, None, {"T": F16, "D": 64})
        text = result.text[result.text.index("def softmax_end") :]
        return text[: text.index("@func")], dict(result.arguments(Lengths(1, 4, 2, 8, 8), consts={}))

    learned = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.bfloat16)
    text, arguments = end(sink=learned)
    assert "last = sink[h] * LOG2E" in text and arguments["sink"].dtype == torch.float32 and torch.equal(arguments["sink"], learned.float())
    text, arguments = end(sink=-1)
    assert "last = sink * LOG2E" in text and arguments == {"sink": -1.0}
    text, arguments = end(sink=lambda at: torch.full((at.H,), 0.5))
    assert "sink[h]" in text and arguments["sink"].tolist() == [0.5] * 4


def test_kernels_with_the_softmax_of_the_prelude() -> None:
    """Their own functions take the place of the prelude's."""
    text = show(expert())
    start, end = text.index("@func\ndef softmax_begin"), text.index("# ---- the kernel")
    bare = parse(
        text[:start] + text[end:].replace("softmax_end(acc, state, b, h)", "softmax_end(acc, state)").replace(", THRESHOLD: const = 8", "")
    )
    check(bare, None, {"T": F16, "D": 64})
    program = transfer(bare, Specification("relu", normalize="relu")).program
    check(program, None, {"T": F16, "D": 64})
    assert set(POINTS) <= set(program.funcs()) and transfer(program, Specification("s", normalize="sigmoid")).replaced
    assert error(bare, Specification("sink", sink=1.0))[0] == "X130"


def test_a_replaced_softmax_does_not_come_back() -> None:
    for first in (Specification("s", normalize="sigmoid"), Specification("r", normalize="relu"), Specification("k", sink=2.0)):
        result = transfer(expert(), first).program
        code, message = error(result, variant("causal"))
        assert code == "X134" and (first.normalize in message or "a sink" in message)
        second = Specification("other", normalize="relu")
        assert transfer(result, second).program == transfer(expert(), second).program
    two = transfer(transfer(expert(), Specification("k", sink=2.0)).program, Specification("k", sink=torch.zeros(4)))
    assert "sink[h]" in two.text and "sink: Global[f32, sink_d0]" in two.text


def error(origin: Program, spec: Specification, kernel: str | None = None) -> tuple[str, str]:
    with pytest.raises(CuirError) as caught:
        transfer(origin, spec, kernel)
    result = caught.value.diagnostics[0]
    return result.code, result.message


def test_refusals() -> None:
    gemm = parse(files("corpus").joinpath("programs/gemm.cuir").read_text(encoding="utf-8"))
    code, message = error(gemm, variant("full"), next(iter(gemm.kernels())))
    assert code == "X130" and "`score`" in message
    assert error(expert(), variant("full"), "nothing")[0] == "N110"
    without_lengths = parse(show(expert()).replace("BM", "BQ"))
    assert error(without_lengths, variant("full"))[0] == "X131"
    alone = transfer(expert(), variant("prefix_lm")).program
    with pytest.raises(CuirError) as caught:
        compute_captured_arguments(alone, alone.kernels()["flash_fwd"], variant("full"), Lengths(1, 1, 1, 1, 1))
    assert caught.value.diagnostics[0].code == "X132"


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


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda b, h, q, k: (q >= k) & (q - k < 4), lambda b, h, q, k: (q >= k) & (q - k < h * 3 + 7)),
        (lambda b, h, q, k: q % 3 == k % 5, lambda b, h, q, k: (q + 2) % 4 == k % 7),
        (lambda s, b, h, q, k: s * 2.0, lambda s, b, h, q, k: torch.where(q >= k, torch.tanh(s) - 0.5, -float("inf"))),
    ],
    ids=["closed form", "lists", "score"],
)
def test_mods_go_into_the_kernel_as_trees(first: Any, second: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The splice parses templates alone, which other mods of this kind share, and spans are places in the text all the same."""
    origin = expert()
    transfer(origin, Specification("first", *((None, first) if first.__code__.co_argcount == 5 else (first, None))))
    transfer(origin, Specification("causal", lambda b, h, q, k: q >= k, None))
    with monkeypatch.context() as patched:
        patched.setattr("cuir.syntax.parser.parse_source", lambda *_: pytest.fail("a text is parsed"))
        result = transfer(origin, Specification("second", *((None, second) if second.__code__.co_argcount == 5 else (second, None))))
    parsed = parse(result.text, "second.cuir")
    assert result.program == parsed
    assert [n.span for n in walk(result.program)] == [n.span for n in walk(parsed)]
