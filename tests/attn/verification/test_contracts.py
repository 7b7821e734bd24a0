"""Each contract finds its violation, names the block and the pair, and points at the splice point; right programs pass."""

from __future__ import annotations

from contextlib import nullcontext
from importlib.resources import files

import pytest

import corpus
from cuir.attn.splicing.splice import transfer
from cuir.attn.verification.contracts import check_contracts, describe_difference, has_splice_points
from cuir.attn.verification.sizes import collect_mask_integers, make_few_problems, make_problems
from cuir.spec.loading import as_specification
from cuir.spec.specification import Lengths, Specification
from cuir.syntax.parser import parse
from cuir.text.diagnostics import CuirError, Diagnostic
from cuir.verification import Problem

CAUSAL = files("corpus").joinpath("kernels/flash_fwd_sm90.cuir").read_text(encoding="utf-8")
SMALL = Problem(Lengths(1, 1, 1, 40, 56), 16, 8)
TALL = Problem(Lengths(1, 1, 1, 200, 190), 192, 16)  # tiles of three warpgroups


def variant(name: str) -> Specification:
    return as_specification(corpus.variant(name), name)


def find_reports(old: str, new: str, problem: Problem = SMALL, name: str = "causal") -> Diagnostic:
    """Return the reports of the contracts about the causal kernel with one text replaced."""
    assert CAUSAL.count(old) >= 1
    program = parse(CAUSAL.replace(old, new), "kernel.cuir")
    with pytest.raises(CuirError) as caught:
        check_contracts(program, program.kernels()["flash_fwd"], variant(name), [problem])
    return caught.value.diagnostics[0]


@pytest.mark.sweep(32)
@pytest.mark.parametrize("name", sorted(corpus.variants()))
def test_every_variant_of_the_corpus_keeps_its_contracts(name: str) -> None:
    """At the full level one of three, whose problems hold those of the quick level."""
    spec = variant(name)
    result = transfer(parse(CAUSAL), spec)
    problems = make_problems(spec, 64, 64, "quick", result.program)
    if name in sorted(corpus.variants())[::3]:
        quick, problems = problems, make_problems(spec, 64, 64, "full", result.program)
        assert {*quick} < {*problems}
    assert check_contracts(result.program, result.program.kernels()["flash_fwd"], spec, problems) > 10_000


@pytest.mark.sweep(4)
@pytest.mark.parametrize(("window", "prefix"), [(0, 0), (1, 1), (5, 300), (-1, -4)])
def test_any_value_of_a_captured_number_keeps_them(window: int, prefix: int) -> None:
    """Captured numbers are run-time parameters: the text was derived for one value and holds for all."""
    for name, values in (
        ("sliding_window", {"window": window}),
        ("prefix_lm", {"prefix": prefix}),
        ("local", {"left": window, "right": prefix}),
        ("global_sliding_window", {"left": window, "right": prefix, "tokens": window + 3}),
    ):
        default, second = variant(name), as_specification(corpus.variant(name), name, values)
        assert transfer(parse(CAUSAL), default).text == transfer(parse(CAUSAL), second).text
        result = transfer(parse(CAUSAL), second)
        check_contracts(
            result.program, result.program.kernels()["flash_fwd"], second, [SMALL, TALL, Problem(Lengths(1, 1, 1, 70, 33), 8, 16)]
        )


def test_cover() -> None:
    d = find_reports("cdiv((m + 1) * BM + N - M, BN)", "cdiv((m + 1) * BM + N - M, BN) - 1")
    assert d.code == "V101" and d.message == "query 8 attends to key 24, but block 3 (keys 24 to 31) of tile m=0 is not visited"
    assert d.span is not None and d.span.text() == "n - min(n, full), n"


def test_more_blocks_than_there_are() -> None:
    d = find_reports(
        "n = max(0, min(cdiv(N, BN), cdiv((m + 1)", "n = max(1, min(cdiv(N, BN), cdiv((m + 1)", Problem(Lengths(1, 1, 1, 200, 0), 192, 16)
    )
    assert d.code == "V108" and "expected 0 <= masked <= all <= 0" in d.message


def test_full() -> None:
    d = find_reports("max(0, m * BM + N - M + 1) // BN", "max(0, m * BM + N - M + BM) // BN")
    assert d.code == "V102" and d.message == "block 2 of tile m=0 is visited without the mask, but query 0 must not attend to key 17"
    ragged = find_reports(
        "min(N // BN, max(0, m * BM + N - M + 1) // BN)",
        "min(cdiv(N, BN), max(0, m * BM + N - M + BN) // BN)",
        Problem(Lengths(1, 1, 1, 1, 50), 1, 8),
        "full",
    )
    assert ragged.code == "V107" or "key 50 does not exist (N = 50)" in ragged.message


def test_once() -> None:
    d = find_reports("kv_count(b, h, m)[1] - 1 - i", "max(1, kv_count(b, h, m)[1] - 1 - i)")
    assert d.code in ("V101", "V103")
    assert find_reports("kv_count(b, h, m)[1] - 1 - i", "kv_count(b, h, m)[1] - 1 - i // 2 * 2").code == "V103"
    outside = find_reports("kv_count(b, h, m)[1] - 1 - i", "kv_count(b, h, m)[1] - i")
    assert outside.code == "V103" and outside.message == "step 0 of tile m=2 visits block 7; the blocks are 0 to 6"
    assert outside.span is not None and outside.span.text() == "kv_count(b, h, m)[1] - i"


def test_count() -> None:
    d = find_reports("return n - min(n, full), n", "return n + 1, n")
    assert d.code == "V108" and "expected 0 <= masked <= all <= 7" in d.message


def test_rows() -> None:
    d = find_reports("min(n - needed, max(0, n - 1))", "min(n - needed + 1, max(0, n - 1))", TALL)
    assert d.code == "V109" and d.message == "query 58 attends to key 48, but kv_rows of tile m=0, r=0 skips step 8, block 3"
    d = find_reports("max(0, r + N - M + 1) // BN", "max(0, r + N - M + 65) // BN", TALL)
    assert d.code == "V109" and d.message == "query 0 must not attend to key 32, but kv_rows of tile m=0, r=0 does not mask step 9, block 2"
    d = find_reports("min(n - needed, max(0, n - 1))", "n - needed", Problem(Lengths(1, 1, 1, 300, 100), 128, 16))
    assert d.code == "V109" and "skips" in d.message and d.span is not None and d.span.text() == "n - needed, n - min(n, full)"
    d = find_reports("n - min(n, full)\n\n@func\ndef tile", "0\n\n@func\ndef tile", TALL)
    assert d.code == "V109" and "expected 0 <= skipped <= masked <= all" in d.message


def test_rows_are_asked_about_only_where_the_kernel_asks() -> None:
    """A bound that only tiles of less than a warpgroup's 64 queries need: the kernel asks where BM - 64 >= BN, and one that always asks must keep it."""
    spec, guard = variant("prefix_lm"), "if BM - 64 >= BN and not PINGPONG:"
    text = transfer(parse(CAUSAL), spec).text
    clamped = "max(0, min(n, cdiv(max(prefix, r + 64), BN)))"
    assert text.count(guard) == text.count(clamped) == 1
    text = text.replace(clamped, "min(cdiv(N, BN), cdiv(max(prefix, r + 64), BN))")

    def judge(text: str) -> None:
        program = parse(text)
        check_contracts(program, program.kernels()["flash_fwd"], spec, make_problems(spec, 128, 128, program=program))

    judge(text)
    with pytest.raises(CuirError) as caught:
        judge(text.replace(guard, "if m >= 0:"))
    (d,) = caught.value.diagnostics
    assert d.code == "V109" and "skips -" in d.message and d.hint is not None and "at most what their tile visits" in d.hint
    with pytest.raises(CuirError) as caught:  # and where the kernel does ask, the contract holds for the rows of its warpgroups
        judge(text.replace("max(prefix, r + 64), BN))", "max(prefix, r + 48), BN))"))
    assert [d.code for d in caught.value.diagnostics] == ["V109"]


def test_dims_of_captured_tensors_have_values() -> None:
    """A dim is a scalar of the kernel, so a splice point may be written with it."""
    spec = variant("share_question")
    text = (
        CAUSAL.replace("LSE: Global[f32, B, H, M], scale: f32, *", "LSE: Global[f32, B, H, M], scale: f32, ends: Global[i32, ends_d0], *")
        .replace("return k <= q + (N - M)", "return (k <= q) & (q < ends[k])")
        .replace("cdiv((m + 1) * BM + N - M, BN)", "cdiv((m + 1) * BM, BN)")
        .replace("max(0, m * BM + N - M + 1) // BN)", "0 if ends[min(m * BM, ends_d0 - 1)] >= 0 else 1)")
        .replace("kv_rows(b, h, m, r)\n", "0, kv_count(b, h, m)[0]\n")
    )
    program = parse(text)
    assert check_contracts(program, program.kernels()["flash_fwd"], spec, [SMALL, TALL])
    late = parse(text.replace("ends_d0 - 1)] >= 0", "ends_d0 - 1)] < 0"))
    with pytest.raises(CuirError) as caught:
        check_contracts(late, late.kernels()["flash_fwd"], spec, [SMALL])
    assert caught.value.diagnostics[0].code == "V102"


def test_tile() -> None:
    at = Problem(Lengths(2, 4, 2, 40, 56), 16, 8)
    twice = find_reports("head // H, head % H", "head // H, head // H", at)
    assert twice.code == "V104" and "times for t in 0..23; expected once each" in twice.message
    assert find_reports("head // H, head % H", "head % H, head // H", at).message.startswith("tile(")


def test_an_order_is_asked_with_more_heads_than_it_counts_and_longer_keys_than_the_cache_holds() -> None:
    grouped = find_reports("i = max(x // (few + 1), max(0, x - more) // few)", "i = x // (few + 1)", SMALL)
    assert grouped.code == "V104" and "N=40000" in str(grouped.notes[0])
    full = transfer(parse(CAUSAL), Specification("full"))
    late = parse(full.text.replace("i - late * (n - 1)", "i - min(late, 47) * (n - 1)"))
    with pytest.raises(CuirError) as caught:
        check_contracts(late, late.kernels()["flash_fwd"], full.spec, [SMALL])
    assert caught.value.diagnostics[0].code == "V104"


def test_the_ctas_of_a_cluster_share_their_tile() -> None:
    text = files("corpus").joinpath("programs/flash_fwd_cluster.cuir").read_text(encoding="utf-8")
    old = "t // H % B, t % H, cdiv(M, BM) - 1 - t // (H * B)"
    assert text.count(old) == 1
    program = parse(text.replace(old, f"{old} - cta_rank() * (t % 2)"))
    with pytest.raises(CuirError) as caught:
        check_contracts(program, program.kernels()["flash_fwd"], variant("causal"), [Problem(Lengths(1, 2, 1, 256, 56), 64, 8)])
    assert caught.value.diagnostics[0].code == "V104" and "tile(1) depends on cta_rank()" in caught.value.diagnostics[0].message


def test_keep_against_the_specification() -> None:
    d = find_reports("return k <= q + (N - M)", "return k < q + (N - M)")
    assert d.code == "V107" and d.message.startswith(
        "query 0 does not attend to key 16, which the specification `causal` keeps; 40 pairs differ"
    )
    assert d.hint == "off by one: 40 queries have one key too few at the upper end; compare `<` with `<=`"
    wide = find_reports("return k <= q + (N - M)", "return k <= q + (N - M) + 1")
    assert wide.hint is not None and "one key too many at the upper end" in wide.hint


def test_score() -> None:
    assert find_reports("return S, scale * LOG2E", "return S, -scale * LOG2E").code == "V105"
    d = find_reports("return S, scale * LOG2E", "return S / (cast(q - q, f32)), scale * LOG2E")
    assert d.code == "V106" and "score of query 0 and key 0" in d.message


def test_prefix_off_by_one_is_named() -> None:
    spec = variant("prefix_lm")
    text = transfer(parse(CAUSAL), spec).text.replace("k < prefix)", "k <= prefix)")
    program = parse(text)
    with pytest.raises(CuirError) as caught:
        check_contracts(program, program.kernels()["flash_fwd"], spec, [Problem(Lengths(1, 1, 1, 300, 300), 32, 32)])
    d = caught.value.diagnostics[0]
    assert d.message.startswith("query 0 also attends to key 256") and d.hint is not None and "off by one" in d.hint


def test_differences_that_are_not_off_by_one() -> None:
    import numpy as np

    a, b = np.tril(np.ones((9, 9), bool)), np.ones((9, 9), bool)
    assert describe_difference(b, a) is None and describe_difference(a, a) is None


def test_splice_points_are_recognised() -> None:
    assert has_splice_points(parse(CAUSAL)) and not has_splice_points(parse(CAUSAL.replace("kv_block", "kv_blok")))


def test_text_made_for_one_value_of_a_captured_number_is_found() -> None:
    """The number of the specification passes; the kernel says that it takes any."""
    spec = variant("prefix_lm")
    text = transfer(parse(CAUSAL), spec).text.replace("max(prefix, m * BM + 1) // BN", "max(256, m * BM + 1) // BN")
    program = parse(text)
    kernel = program.kernels()["flash_fwd"]
    check_contracts(program, kernel, spec, [SMALL])
    with pytest.raises(CuirError) as caught:
        check_contracts(program, kernel, spec, [SMALL], changed={"prefix": 6})
    d = caught.value.diagnostics[0]
    assert d.code == "V102" and "prefix = 6" in d.notes[0].message
    rows = parse(transfer(parse(CAUSAL), spec).text.replace("max(prefix, r + 1) // BN", "max(256, r + 1) // BN"))
    with pytest.raises(CuirError) as caught:
        check_contracts(rows, rows.kernels()["flash_fwd"], spec, make_few_problems(rows), changed={"prefix": 6})
    assert [d.code for d in caught.value.diagnostics] == ["V109"]


@pytest.mark.sweep(4)
@pytest.mark.parametrize(("prefix", "last"), [(600, "600"), (2048, "2048"), (50_000, "50000")])
def test_far_edges_of_a_mask_are_looked_at(prefix: int, last: str) -> None:
    spec = as_specification(corpus.variant("prefix_lm"), "prefix_lm", {"prefix": prefix})
    program = parse(transfer(parse(CAUSAL), spec).text.replace("k < prefix)", "k <= prefix)"))
    with pytest.raises(CuirError) as caught:
        check_contracts(program, program.kernels()["flash_fwd"], spec, make_problems(spec, 128, 128))
    assert caught.value.diagnostics[0].message.startswith(f"query 0 also attends to key {last}")


@pytest.mark.sweep(4)
@pytest.mark.parametrize(("wrong", "query"), [("q - k < 3000", 300), ("q - k < 301", 300), ("q - k < 299", 299)])
def test_a_number_that_the_mask_is_written_with_is_decisive(wrong: str, query: int) -> None:
    """Not captured, so no parameter: the lengths that are tried follow the literals of the mask, too."""
    spec = Specification("literal", lambda b, h, q, k: (q >= k) & (q - k < 300))
    program = parse(transfer(parse(CAUSAL, "kernel.cuir"), spec).text.replace("q - k < 300", wrong, 1))
    assert 300 in collect_mask_integers(spec, None)
    with pytest.raises(CuirError) as caught:
        check_contracts(program, program.kernels()["flash_fwd"], spec, make_problems(spec, 128, 128, program=program))
    assert any(d.code == "V107" and f"query {query} " in d.message for d in caught.value.diagnostics)


def test_a_number_of_the_program_alone_is_decisive() -> None:
    spec = Specification("causal", lambda b, h, q, k: q >= k)
    program = parse(transfer(parse(CAUSAL, "kernel.cuir"), spec).text.replace("return q >= k", "return (q >= k) & (q - k < 900)", 1))
    assert 900 in collect_mask_integers(spec, program)
    with pytest.raises(CuirError, match="query 900 does not attend to key 0"):
        check_contracts(program, program.kernels()["flash_fwd"], spec, make_problems(spec, 128, 128, program=program))


@pytest.mark.parametrize(("value", "requests"), [(8, True), (4, True), (3, False), (1, False)])
def test_values_for_which_the_specification_divides_by_zero_are_not_asked(value: int, requests: bool) -> None:
    """`across % (side // 4)`: a side under 4 has no tile, and the mod itself would raise there; a program that divides by something else does not get away with it."""
    side = 16
    spec = Specification("tiles", lambda b, h, q, k: q // 4 % (side // 4) >= k // 4 % (side // 4))
    program = transfer(parse(CAUSAL), spec).program
    at = make_few_problems(program)
    assert bool(check_contracts(program, program.kernels()["flash_fwd"], spec, at, changed={"side": value})) == requests
    near = Specification("near", lambda b, h, q, k: q - k <= side)
    wrong = parse(transfer(parse(CAUSAL), near).text.replace("return q - k <= side", "return q - k + 0 * (q // (side // 4)) <= side"))
    with nullcontext() if requests else pytest.raises(CuirError, match="the divisor is 0"):
        check_contracts(wrong, wrong.kernels()["flash_fwd"], near, at, changed={"side": value})


def test_more_masked_blocks_than_all_are_harmless_where_a_step_is_compared_with_them() -> None:
    """A tile that visits no block may say that five are masked, unless the number is counted up to."""
    text = files("corpus").joinpath("programs/flash_fwd.cuir").read_text(encoding="utf-8")
    assert text.count("max(0, m * BM + N - M + 1)") == 1 and text.count("i < partial") == 1
    negative = text.replace("max(0, m * BM + N - M + 1)", "(m * BM + N - M + 1)")
    problem = Problem(Lengths(1, 1, 1, 200, 30), 16, 8)
    for source, accepted in (
        (negative, True),
        (negative.replace("i < partial", "i < min(partial, n)"), False),
        (negative.replace("kv_count(b, h, m)[1] - 1 - i", "kv_count(b, h, m)[1] - 1 - i + 0 * kv_count(b, h, m)[0]"), False),
    ):
        program = parse(source)
        with nullcontext() if accepted else pytest.raises(CuirError, match="V108"):
            check_contracts(program, program.kernels()["flash_fwd"], variant("causal"), [problem])
