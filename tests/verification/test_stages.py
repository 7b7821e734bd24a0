"""verify(): right kernels pass all questions; wrong ones fail at the right question, with the pair, the place or the schedule named."""

from __future__ import annotations

import functools
import json
from importlib.resources import files

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import corpus
from cuir.attn.splicing.splice import transfer
from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.spec.function_specification import FunctionSpecification
from cuir.spec.loading import as_specification
from cuir.spec.specification import Lengths, Specification
from cuir.syntax.nodes import Program
from cuir.syntax.parser import parse
from cuir.syntax.types import BF16, F16
from cuir.text.diagnostics import CuirError, Diagnostic
from cuir.verification import Case, VerifyReport, check_mask, check_numbers, check_schedules, verify
from cuir.verification.schedules import ScheduleOptions, make_schedules

CONSTS = {"T": F16, "D": 64, "BM": 64, "BN": 64}
EXPERT, AMPERE, PLAIN = (
    files("corpus").joinpath(p).read_text(encoding="utf-8")
    for p in ("kernels/flash_fwd_sm90.cuir", "kernels/flash_fwd_sm80.cuir", "programs/flash_fwd.cuir")
)
SMALL = Case("small", Lengths(1, 4, 2, 133, 201))


def variant(name: str, **parameters: int) -> Specification:
    return as_specification(corpus.variant(name), name, parameters)


@functools.cache
def transfer_named(name: str, origin: str, *parameters: tuple[str, int]) -> tuple[Specification, str]:
    spec = variant(name, **dict(parameters))
    return spec, transfer(parse(origin), spec).text


def kernel(
    name: str = "causal", *changes: tuple[str, str], origin: str = PLAIN, **parameters: int
) -> tuple[Program, Checked, Specification]:
    """The transferred kernel of a variant with texts replaced."""
    spec, text = transfer_named(name, origin, *parameters.items())
    for old, new in changes:
        assert text.count(old) >= 1, old
        text = text.replace(old, new)
    program = parse(text, f"{name}.cuir")
    return program, check(program, None, CONSTS), spec


def first(error: pytest.ExceptionInfo[CuirError]) -> Diagnostic:
    return error.value.diagnostics[0]


# ---- the whole
@pytest.mark.sweep
@pytest.mark.usefixtures("few_problems")
@pytest.mark.parametrize(
    ("name", "origin"),
    [
        ("prefix_lm", EXPERT),
        ("causal_document", PLAIN),
        ("global_sliding_window", "flash_fwd_warps"),
        ("causal_document", AMPERE),
        ("alibi", "flash_fwd_over_v"),
    ],
)
def test_transferred_kernels_are_verified(name: str, origin: str) -> None:
    """Splice points serve any kernel that has them: persistent, over one another, of the architecture before."""
    text = origin if "\n" in origin else files("corpus").joinpath(f"programs/{origin}.cuir").read_text(encoding="utf-8")
    program, _, spec = kernel(name, origin=text)
    description: list[str] = []
    report = verify(program, spec, consts=CONSTS, progress=description.append, seeded=0)
    assert report.ok, report.as_markdown()
    assert [s.verdict for s in report.stages] == ["passed"] * 5 and len(description) >= 5
    assert json.loads(json.dumps(report.as_json(), default=str))["ok"] is True
    assert "Verified." in report.as_markdown() and "PyTorch" in report.summary()


IN_CLUSTERS = {**CONSTS, "CLUSTER": 2, "BM": 128, "BN": 64}


@pytest.mark.usefixtures("few_problems")
@pytest.mark.thorough("a whole verification; clusters have their tests in tests/interp")
def test_a_variant_in_clusters_is_verified() -> None:
    """Listed blocks are those of all queries of a cluster."""
    program, _, spec = kernel("document", origin=EXPERT)
    report = verify(program, spec, consts=IN_CLUSTERS, seeded=0)
    assert report.ok, report.as_markdown()
    starved = {s.seed for s in make_schedules(check(program, None, IN_CLUSTERS), "quick") if s.policy == "starve"}
    assert starved == set(range(2 * 3))  # each worker of both CTAs


def test_blocks_in_closed_form_are_those_of_all_queries_of_a_cluster() -> None:
    program, _, spec = kernel("sliding_window", origin=EXPERT)
    checked = check(program, None, IN_CLUSTERS)
    assert check_mask(program, checked, spec, Lengths(1, 2, 1, 300, 400)).read > 300 * 400
    check_numbers(program, checked, spec, Case("in clusters", Lengths(1, 2, 1, 517, 389), "strided"))


@pytest.mark.sweep
@pytest.mark.parametrize("name", sorted(corpus.variants()))
def test_every_variant_computes_its_specification(name: str) -> None:
    program, checked, spec = kernel(name, origin=EXPERT)
    for case in (SMALL, Case("more keys", Lengths(2, 2, 2, 40, 300), "strided")):
        check_numbers(program, checked, spec, case)


def find_failed(report: VerifyReport) -> tuple[str, str]:
    """The stage that failed and its code; later ones were not asked."""
    names = [s.name for s in report.stages if s.verdict == "failed"]
    assert len(names) == 1 and not report.ok
    after = report.stages[[s.name for s in report.stages].index(names[0]) + 1 :]
    assert all(s.verdict == "skipped" and "not asked" in s.reason for s in after)
    return names[0], report.diagnostics[0].code


def test_each_question_can_be_answered_with_no() -> None:
    spec = variant("causal")
    origin = transfer(parse(PLAIN), spec).text

    def report(old: str, new: str, **consts: object) -> VerifyReport:
        assert old in origin
        return verify(parse(origin.replace(old, new)), spec, consts={**CONSTS, **consts}, shrink=False)  # type: ignore[dict-item]

    assert find_failed(report("fence_async()", "fence_asink()")) == ("well-formed", "N105")
    assert find_failed(report("k <= q + (N - M)", "k < q + (N - M)")) == ("contracts", "V107")
    assert find_failed(report("            fence_async()\n", ""))[0] == "schedules"
    assert find_failed(report("(top + log2(total)) * LN2", "top + log2(total)")) == ("numbers", "V304")


@pytest.mark.thorough
def test_programs_without_splice_points_are_read_out() -> None:
    program, _, spec = kernel("causal", ("keep(", "seen("))
    report = verify(program, spec, consts=CONSTS, seeded=0)
    assert report.ok and report.stages[1].verdict == "skipped" and "no splice points" in report.stages[1].reason
    program, _, spec = kernel("causal", ("keep(", "seen("), ("k <= q + (N - M)", "k < q + (N - M)"))
    assert find_failed(verify(program, spec, consts=CONSTS, seeded=0)) == ("mask", "V305")


def test_kernels_that_are_no_attention_are_refused() -> None:
    program, _, spec = kernel("causal", ("LSE", "LOGSUM"))
    assert find_failed(verify(program, spec, consts=CONSTS)) == ("well-formed", "V300")


# ---- the mask
def test_mask_is_read_out_for_every_kind_of_variant() -> None:
    for name in ("full", "prefix_lm", "local", "qk_sparse", "document", "softcap", "relative_position"):
        program, checked, spec = kernel(name, **({"prefix": 40} if name == "prefix_lm" else {}))
        result = check_mask(program, checked, spec, Lengths(1, 2, 1, 150, 170))
        assert result.read + result.hidden == 2 * 150 * 170 and result.read > 0.7 * 2 * 150 * 170


def test_faint_weights_are_counted_not_judged() -> None:
    program, checked, spec = kernel("alibi")
    result = check_mask(program, checked, spec, Lengths(1, 2, 1, 40, 300))
    assert 0 < result.hidden < result.read


@pytest.mark.parametrize(
    ("name", "old", "new", "message", "hint"),
    [
        (
            "prefix_lm",
            "(k < prefix)",
            "(k <= prefix)",
            "query 0 also attends to key 40 (head 0); 40 of 19500 pairs",
            "one key too many at the upper end",
        ),
        ("causal", "k <= q + (N - M)", "k < q + (N - M)", "query 0 does not attend to key 20", "one key too few at the upper end"),
        ("causal", "k <= q + (N - M)", "k <= q", "query 0 does not attend to key 1", ""),
        ("local", "q + (N - M) - left", "q + (N - M) - left + 1", "query 0 does not attend to key", "one key too few at the lower end"),
        ("full", "(k < N)", "(k <= N)", "", ""),
    ],
)
def test_masks_off_by_one_are_named(name: str, old: str, new: str, message: str, hint: str) -> None:
    parameters = {"prefix": 40} if name == "prefix_lm" else {"left": 9, "right": 3} if name == "local" else {}
    program, checked, spec = kernel(name, (old, new), **parameters)
    if name == "full":  # the key behind the last one weighs exp(0): seen by the numbers, as there is no V for it
        with pytest.raises(CuirError) as caught:
            check_numbers(program, checked, spec, SMALL)
        assert first(caught).code == "V301"
        return
    with pytest.raises(CuirError) as caught:
        check_mask(program, checked, spec, Lengths(1, 1, 1, 130, 150))
    result = first(caught)
    assert result.code == "V305" and result.message.startswith(message) and hint in (result.hint or "")


# ---- the numbers
WRONG = [
    ("scale * LOG2E", "scale * LOG2E * 1.01", "V301"),
    ("acc = acc * alpha", "acc = acc * 1.0", "V301"),
    ("(new, total * alpha + row_sum(P)), alpha", "(new, total + row_sum(P)), alpha", "V301"),
    ("* where(total == 0.0, 0.0, 1.0 / total)", "* (1.0 / total)", "V302"),
    ("where(total == 0.0, -inf, (top", "where(total == 0.0, 0.0, (top", "V303"),
    ("(top + log2(total)) * LN2", "(top + log2(total)) * 0.6932", "V304"),
    ("store(LSE[b, h, q], lse)", "store(LSE[b, h, q], lse, mask=q < M - 1)", "V302"),
    ("V[b, hk, j * BN", "V[b, 0, j * BN", "V301"),
]


@pytest.mark.parametrize(("old", "new", "code"), WRONG)
def test_wrong_numbers_are_found(old: str, new: str, code: str) -> None:
    changes = [(old, new)]
    if code in ("V302", "V303") and "total" in old:
        case = Case("rows without keys", Lengths(1, 2, 1, 150, 40))
    elif "alpha" in old:
        case = Case("rising", Lengths(1, 4, 2, 133, 401), "large")
    else:
        case = SMALL
    program, checked, spec = kernel("causal", *changes)
    with pytest.raises(CuirError) as caught:
        check_numbers(program, checked, spec, case)
    assert first(caught).code == code, first(caught).render()
    assert any(case.name in n.message for n in first(caught).notes)


def test_one_wrong_row_in_many_is_found() -> None:
    """A bound on the norm alone would miss it."""
    program, checked, spec = kernel(
        "causal",
        ("store(sO[wg * 64 : wg * 64 + 64], cast(acc, T))", "store(sO[wg * 64 : wg * 64 + 64], cast(where(q == 77, acc * 1.01, acc), T))"),
    )
    with pytest.raises(CuirError) as caught:
        check_numbers(program, checked, spec, Case("many", Lengths(2, 8, 1, 300, 310)))
    assert first(caught).code == "V301" and "query 77" in first(caught).message + (first(caught).hint or "")


@pytest.mark.parametrize("kind", ["normal", "strided", "large", "tiny", "equal", "spikes", "zero"])
@pytest.mark.parametrize("dtype", [F16, BF16])
def test_extreme_inputs_pass_in_both_dtypes(kind: str, dtype: object) -> None:
    program, _, spec = kernel("causal")
    checked = check(program, None, {"T": dtype, "D": 64})  # type: ignore[dict-item]
    result = check_numbers(program, checked, spec, Case("extreme", Lengths(1, 2, 1, 70, 150), kind))  # type: ignore[arg-type]
    assert result.error <= 1.2 * result.yardstick + 1e-2


BOUNDS = ["k <= q", "k < 70", "q - k < 33", "k >= q - 90", "(k + q) % 3 > 0", "abs(q - k) <= w", "q < 40", "k >= w"]
SCORES = ["s", "s * 0.5 + 0.1 * (k - q)", "w * tanh(s / w)", "where(k == q, s + 1.0, s)", "s - (h + 1) * 0.01 * abs(q - k)"]


@pytest.mark.thorough
@given(
    st.lists(st.sampled_from(BOUNDS), min_size=1, max_size=3),
    st.sampled_from(["&", "|"]),
    st.sampled_from(SCORES),
    st.integers(1, 130),
    st.integers(1, 170),
)
def test_random_variants_compute_what_they_say(bounds: list[str], joint: str, score: str, M: int, N: int) -> None:
    """From the user's function to the running kernel: mask and score drawn, queries without keys among them."""
    mask, rule, w = compile(f" {joint} ".join(f"({b})" for b in bounds), "mask", "eval"), compile(score, "score", "eval"), 20
    expected_values = {"abs": abs, "tanh": torch.tanh, "where": torch.where}
    spec = Specification(
        "drawn",
        lambda b, h, q, k, *, w: eval(mask, {**expected_values, "q": q, "k": k, "w": w}),
        lambda s, b, h, q, k, *, w: eval(rule, {**expected_values, "s": s, "h": h, "q": q, "k": k, "w": w}),
        {"w": w},
    )
    program = transfer(parse(PLAIN), spec).program
    check_numbers(program, check(program, None, CONSTS), spec, Case("drawn", Lengths(1, 2, 1, M, N)))


# ---- schedules
def test_a_missing_wait_fails_under_some_schedule() -> None:
    program, checked, spec = kernel("causal", ("                        v_empty[s].wait(phase ^ 1)\n", ""))
    with pytest.raises(CuirError) as caught:
        check_schedules(program, checked, spec, Case("race", Lengths(1, 1, 1, 128, 900)), "quick")
    result = first(caught)
    assert result.code[0] in "RSMD" and any("found under the schedule" in n.message for n in result.notes)


def test_parts_of_a_split_batch_are_independent() -> None:
    """CTAs with unequal shares of dynamic tiles: the uniform zeros that both accumulate into are each one's own."""
    program, checked, spec = kernel("causal", origin=EXPERT)
    check_schedules(program, checked, spec, Case("unequal shares", Lengths(1, 4, 2, 128, 64)), "quick")


@pytest.mark.thorough
def test_a_buffer_released_before_its_last_use_is_found() -> None:
    """Q of a tile is released before the loop that reads it: two tiles of one block must follow, else the rings of K hide it."""
    release, inner = "                if AHEAD:\n                    q_empty[y].arrive()\n", "                    q_empty[y].arrive()\n"
    before, behind = (
        "                    acc, state = zeros(f32, [64, units(DV)]), first\n",
        "                    for i in range(n):\n                        s, phase = ring(ki, STAGES)\n                        k_full",
    )
    program, _, spec = kernel("causal", (release, ""), (before, inner + before), (behind, inner + behind), origin=EXPERT)
    assert find_failed(verify(program, spec, consts=CONSTS)) == ("schedules", "R401")


@pytest.mark.thorough("verifies a whole kernel")
def test_a_checked_program_has_its_consts() -> None:
    checked = check(parse(PLAIN), None, CONSTS | {"BN": 80})
    report = verify(checked, corpus.variant("causal")(), seeded=0)
    assert report.ok and report.consts["BN"] == 80


def test_seeded_schedules_can_be_asked_for() -> None:
    program, checked, spec = kernel("causal")
    by_level, requests = make_schedules(checked, "quick"), make_schedules(checked, "quick", 9)
    assert len(requests) - len(by_level) == 9 - 5 and len({str(s) for s in requests}) == len(requests)
    assert check_schedules(program, checked, spec, Case("small", Lengths(1, 1, 1, 64, 64)), "quick", ScheduleOptions(seeded=9)) == len(
        requests
    )


def test_results_are_compared_bit_for_bit() -> None:
    from cuir.verification.schedules import _is_same

    a = torch.tensor([1.0, float("nan"), -0.0])
    assert _is_same(a, a.clone()) and not _is_same(a, torch.tensor([1.0, float("nan"), 0.0]))


@pytest.mark.thorough
def test_a_wait_that_deadlocks_only_where_a_warpgroup_skips_blocks() -> None:
    """V of a block awaited under Q K, before K of that block is given back. It hung on an H200, at BM=192 and as many keys as queries: a warpgroup that skips
    two blocks awaits the K behind them before it gives back the V that this one waits for. (`test_a_checked_program_has_its_consts` has the right one.)"""
    before, loop, inside = EXPERT.partition("for i in range(skip + 1, n):\n")
    indent = " " * 24
    first = f"{indent}v_full[u].wait(uphase)\n"
    awaited = f"{indent}mma_wait(S) "
    assert loop and first in inside and awaited in inside
    inside = inside.replace(first, f"{indent}if i == skip + 1:\n    {first}", 1)
    inside = inside.replace(awaited, f"{indent}v_full[(vi + 1) % STAGES].wait((vi + 1) // STAGES % 2)\n{awaited}", 1)
    consts = {"T": F16, "D": 64, "BM": 192, "BN": 80}
    report = verify(parse(before + loop + inside), corpus.variant("causal")(), consts=consts, shrink=False)
    assert not report.ok and report.diagnostics[0].code == "D401" and "as many keys as queries" in str(report.diagnostics[0])


@pytest.mark.thorough
def test_a_setting_that_makes_no_kernel_is_told_and_no_fault() -> None:
    """Level full tries the other head dim, at which a kernel of one head dim is none."""
    text = """\
@kernel(arch="sm_90a")
def twice(X: Global[T, M, D], Y: Global[T, M, D], *, T: const, D: const):
    half = shared(T, [64, 64])
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1):
        for t in work:
            r = t * 64 + rows(64)
            sync()
            store(half[:, 0 : D], X[r, cols(D)])
            sync()
            store(Y[r, cols(D)], load(half[:, 0 : D]) * 2.0)
"""
    report = verify(parse(text), FunctionSpecification("twice", lambda x: x * 2.0), consts={"T": F16, "D": 64}, level="full")
    assert report.ok and "D=128 makes no kernel (" in report.stages[0].reason


COPY = """
@kernel(arch="sm_80")
def copy(X: Global[f32, M, 64], Y: Global[f32, M, 64]):
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1):
        for t in work:
            i = t * 64 + rows(64)
            store(Y[i, cols(64)], X[i, cols(64)])
"""


def verify_copy(text: str, sooner: bool) -> VerifyReport:
    return verify(parse(text), FunctionSpecification("copy", lambda X: X), shrink=False, sooner=sooner)


def list_answers(report: VerifyReport) -> list[object]:
    stages = [{**stage.as_json(), "seconds": 0} for stage in report.stages]
    return [stages, report.runs, report.coverage, report.unreached, report.short, report.warnings]


@pytest.mark.thorough("two verifications of a right kernel")
def test_a_look_leaves_the_report_of_a_right_kernel_as_it_is() -> None:
    """What its runs recorded would spare later ones: sides of conditions, blocks entered, turns of loops."""
    plain, sooner = (verify_copy(COPY, s) for s in (False, True))
    assert plain.ok and list_answers(plain) == list_answers(sooner)


@pytest.mark.thorough("of an attention, whose mask is read out too; the test before takes a copy")
@pytest.mark.usefixtures("few_problems")
def test_a_look_leaves_the_report_of_a_right_attention_as_it_is() -> None:
    program, _, spec = kernel("causal")
    plain, sooner = (verify(program, spec, None, CONSTS, sooner=s) for s in (False, True))
    assert plain.ok and list_answers(plain) == list_answers(sooner)


@pytest.mark.parametrize(
    ("old", "new", "stage", "code"),
    [("X[i", "2.0 * X[i", "numbers", "V301"), ("warpgroups=1", "warps=2", "schedules", "R402")],
)
def test_a_look_decides_over_numbers_alone(old: str, new: str, stage: str, code: str) -> None:
    report = verify_copy(COPY.replace(old, new), sooner=True)
    failed = next(s for s in report.stages if s.verdict == "failed")
    assert (failed.name, failed.diagnostics[0].code) == (stage, code)
    assert {s.verdict for s in report.stages if s is not failed} == {"passed", "skipped"}
