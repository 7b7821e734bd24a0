"""One cell on a CPU: kernels run in the interpreter, the clock is given; what is wrong is not timed, rates are of unmasked pairs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import pytest
import torch

import corpus
from cuir import check, parse, run, transfer
from cuir.cli.command_inputs import read_variant
from cuir.performance.search.candidate_runs import PreparedProblem
from cuir.performance.suites.backward_suite import measure_backward
from cuir.performance.suites.cell_benchmark import BUILD_SECONDS, RUN_SECONDS, Cell, Contenders, Timing, measure_cell
from cuir.performance.suites.peers import check_peers, contenders, not_installed
from cuir.performance.suites.suites import SUITES, VARIANTS, suite
from cuir.performance.timing.problem import Shape, compute_expectation
from cuir.spec.specification import Lengths, lengths_of
from cuir.syntax.types import F16
from cuir.text.diagnostics import CuirError

SHAPE = Shape(1, 2, 1, 100, 100, 64)
ORIGIN = parse(corpus.kernels()["flash_fwd_sm90"].read_text(encoding="utf-8"), "flash_fwd_sm90.cuir")
SETTING = {"T": F16, "D": 64, "BM": 64, "BN": 64}


def on_cpu(transferred: object, shape: Shape, dtype: torch.dtype) -> PreparedProblem:
    return PreparedProblem(transferred, shape, dtype, "cpu")


def make_launch(program: object) -> Callable:
    def launch(consts: Mapping) -> Callable:
        checked = check(program, consts=consts)
        return lambda **arguments: run(checked, arguments)

    return launch


def measure(program: object, transferred: object, **options: object) -> dict:
    cell = Cell("causal", {}, "small", SHAPE)
    return measure_cell(
        cell,
        transferred,
        "f16",
        Contenders([SETTING], []),
        Timing(2, measure=lambda call: (call() and None) or 0.5, **options),
        prepare=on_cpu,
        launch=make_launch(program),
    )


def test_a_right_kernel_is_timed() -> None:
    transferred = transfer(ORIGIN, read_variant("causal", ()))
    row = measure(transferred.program, transferred)
    ((name, result),) = row["contenders"].items()
    assert name == "cuir BM=64,BN=64" and result["milliseconds"] == 0.5 and result["error"] <= row["bound"]
    flops = 4 * 64 * 2 * (100 * 101 // 2)  # two heads
    assert row["flops"] == flops and result["tflops"] == round(flops / 0.5 / 1e9, 2)
    assert Cell.from_json(row) == Cell("causal", {}, "small", SHAPE)


def test_a_wrong_kernel_is_not_timed() -> None:
    transferred = transfer(ORIGIN, read_variant("causal", ()))
    wrong = transfer(ORIGIN, read_variant("full", ()))
    row = measure(wrong.program, transferred)
    (result,) = row["contenders"].values()
    assert "relative error" in result["wrong"] and "tflops" not in result


def test_our_kernel_that_fails_is_an_entry() -> None:
    transferred = transfer(ORIGIN, read_variant("causal", ()))

    def launch(consts: Mapping) -> Callable:
        raise CuirError.of("L010", "nvcc refuses this")

    row = measure_cell(
        Cell("causal", {}, "small", SHAPE), transferred, "f16", Contenders([SETTING], []), Timing(1), prepare=on_cpu, launch=launch
    )
    assert "nvcc refuses this" in row["contenders"]["cuir BM=64,BN=64"]["failed"]


def test_each_contender_is_told_before_it_runs_and_a_lost_one_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    transferred = transfer(ORIGIN, read_variant("causal", ()))
    text: list[object] = []

    def fa2() -> torch.Tensor:
        text.append("a call")
        return torch.zeros(0)

    monkeypatch.setattr("cuir.performance.suites.peers.contenders", lambda *_: {"fa2": fa2, "flex": fa2})
    ours = "cuir BM=64,BN=64"
    rows = measure(transferred.program, transferred, lost={"flex": "hangs: no answer"}, tell=lambda *of: text.append(of))["contenders"]
    assert rows["flex"] == {"failed": "hangs: no answer"} and rows[ours]["milliseconds"] == 0.5
    begun, run = [(ours, BUILD_SECONDS), (ours, RUN_SECONDS), ("", BUILD_SECONDS), ("fa2", BUILD_SECONDS)], (ours, RUN_SECONDS)
    assert text == [*begun, "a call", ("fa2", RUN_SECONDS), run, run], "a shorter limit once nothing compiles any more"
    row = measure(transferred.program, transferred, lost={ours: "hangs: no answer"})["contenders"][ours]
    assert row == {"failed": "hangs: no answer", "consts": {"BM": 64, "BN": 64}}


def test_contenders_that_fail_are_entries_and_a_lost_context_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoCompiler(Exception):
        pass

    def raises(error: Exception) -> Callable:
        def call() -> None:
            raise error

        return call

    results = {
        "flex": raises(NoCompiler("no C++ compiler\nand more")),
        "compiled": raises(torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate")),
        "fa2": lambda: torch.zeros(SHAPE.B, SHAPE.H, SHAPE.M, SHAPE.D, dtype=torch.float16),
    }
    monkeypatch.setattr("cuir.performance.suites.peers.contenders", lambda *_: dict(results))
    transferred = transfer(ORIGIN, read_variant("causal", ()))
    rows = measure(transferred.program, transferred)["contenders"]
    assert rows["flex"] == {"failed": "no C++ compiler"} and rows["compiled"] == {"failed": "out of memory"}
    assert "relative error" in rows["fa2"]["wrong"] and rows["cuir BM=64,BN=64"]["milliseconds"] == 0.5
    results["flex"] = raises(RuntimeError("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(RuntimeError, match="illegal"):
        measure(transferred.program, transferred)


def test_repeated_runs_that_differ_are_wrong() -> None:
    transferred = transfer(ORIGIN, read_variant("causal", ()))
    case = on_cpu(transferred, SHAPE, torch.float16)
    launch = make_launch(transferred.program)(SETTING)
    count = iter(range(10))

    def unsteady(**arguments: torch.Tensor) -> None:
        launch(**arguments)
        if next(count) == 1:
            arguments["O"][0, 1, 3, 5] += 0.01

    assert case.judge(launch) == ""
    assert case.judge(unsteady) == "two runs give different bits"


@pytest.mark.parametrize("name", ["full", "causal", "prefix_lm", "softcap", "causal_document", "sink_causal"])
def test_peers_compute_the_variant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)  # what they compute, not how fast
    monkeypatch.setattr("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True, raising=False)
    spec = read_variant(name, ())
    transferred = transfer(ORIGIN, spec)
    case = on_cpu(transferred, Shape(2, 4, 2, 150, 150, 64), torch.float16)
    result = contenders(("cudnn", "fa2", "dense", "flex", "compiled"), spec, case.problem, case.scale)
    assert ("cudnn" in result) == ("fa2" in result) == (name in ("full", "causal"))
    assert ("dense" in result) == (name in ("causal", "prefix_lm", "causal_document"))
    assert list(contenders(("flex", "otherwise"), spec, case.problem, case.scale)) == ["flex"]
    if "dense" in result:
        assert case.expected.judge(result["dense"]()) == ""
    q, k = case.problem["Q"], case.problem["K"]
    assert lengths_of(q, k).HK == 2
    assert compute_expectation(spec, q, k, case.problem["V"], case.scale).judge(result["compiled"]()) == ""
    assert case.expected.judge(result["flex"]()) == ""


def test_flash_attention_3_is_a_peer_where_it_is_installed(install: Callable[[str, str], None]) -> None:
    """A module with the name and the signature of FlashAttention-3's: [B, M, H, D], fewer key heads as they are."""
    with pytest.raises(CuirError, match="not installed"):
        check_peers(["fa3"])
    install(
        "flash_attn_interface",
        "from torch.nn.functional import scaled_dot_product_attention as sdpa\n"
        "def flash_attn_func(q, k, v, softmax_scale=None, causal=False):\n"
        "    assert q.is_contiguous() and k.shape[2] == 2\n"
        "    return sdpa(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=causal, scale=softmax_scale, enable_gqa=True).transpose(1, 2)\n",
    )
    for name in ("full", "causal", "prefix_lm"):
        spec = read_variant(name, ("prefix=20",) if name == "prefix_lm" else ())
        case = on_cpu(transfer(ORIGIN, spec), Shape(2, 4, 2, 150, 150, 64), torch.float16)
        result = contenders(("fa3",), spec, case.problem, case.scale)
        assert list(result) == ([] if name == "prefix_lm" else ["fa3"])
        assert all(case.expected.judge(call()) == "" for call in result.values())


DENSE = """
import torch

def attention(q, k, v, mask, scale):
    q, k, v = (x.transpose(1, 2).double() for x in (q, k, v))
    s = (q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT * scale).masked_fill(~mask, -torch.inf)
    return (s.softmax(-1) @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)).transpose(1, 2).to(torch.float16)
"""
FA4 = """
def flash_attn_func(q, k, v, softmax_scale=None, causal=False, window_size=(None, None)):
    assert q.is_contiguous() and q.shape[2] == 4 and k.shape[2] == 2
    at, (left, right) = torch.arange(q.shape[1]), window_size
    far = at - at[:, None]
    return attention(q, k, v, (far >= -(len(at) if left is None else left)) & (far <= (len(at) if right is None else right)), softmax_scale)
"""
CUDNN_FLEX = """
plans = []

def create_mask_plan(mask_func, q, k, v):
    assert mask_func.dtype == torch.int32 and mask_func.shape[2] == q.shape[0] * q.shape[1]
    plans.append(q.requires_grad)
    at = torch.arange(k.shape[1])
    f = mask_func.unflatten(2, q.shape[:2]).movedim(2, 0)[..., None]
    mask = at < f[:, :, 0]
    for i in range(1, f.shape[2], 2):
        mask = mask | ((f[:, :, i] <= at) & (at < f[:, :, i + 1]))
    return mask

def flex_attn_func(q, k, v, *, mask_plan, softmax_scale=None):
    return attention(q, k, v, mask_plan, softmax_scale)
"""


@pytest.mark.parametrize(
    ("peer", "module", "text", "says"),
    [
        ("fa4", "flash_attn.cute", FA4, ("full", "causal", "sliding_window")),
        ("cudnn_flex", "cudnn.flex_attention", CUDNN_FLEX, ("full", "causal", "sliding_window", "prefix_lm", "sliding_window_global")),
    ],
)
def test_the_newest_peers_where_they_are_installed(
    peer: str, module: str, text: str, says: tuple[str, ...], install: Callable[[str, str], None]
) -> None:
    """Packages with the names and the signatures of theirs: [B, M, H, D], fewer key heads as they are."""
    for kind in ("forward", "backward", "varlen"):
        with pytest.raises(CuirError, match=f"not installed .no module {module}."):
            check_peers([peer], kind)
    package = module.partition(".")[0]
    install(f"{package}.other", "")
    with pytest.raises(CuirError, match="not installed"):  # the package without the module, as an older one
        check_peers([peer])
    install(module, DENSE + text)
    assert not_installed(peer, "forward") is None and package not in sys.modules, "asked without an import"
    for variant in ("full", "causal", "sliding_window", "prefix_lm", "sliding_window_global", "softcap", "sink_causal", "relu"):
        spec = read_variant(variant, {"prefix_lm": ["prefix=20"], "sliding_window_global": ["window=30", "tokens=10"]}.get(variant, []))
        case = on_cpu(transfer(ORIGIN, spec), Shape(2, 4, 2, 90, 90, 64), torch.float16)
        result = contenders((peer,), spec, case.problem, case.scale)
        assert list(result) == ([peer] if variant in says else []), variant
        assert all(case.expected.judge(call()) == "" for call in (*result.values(), *result.values()))
    if peer == "cudnn_flex":
        assert len(sys.modules[module].plans) == len(says), "a plan is made once"
    row = measure_backward(
        Cell("causal", {}, "small", Shape(1, 4, 2, 60, 60, 64)),
        read_variant("causal", ()),
        "f16",
        [peer],
        Timing(1, {"cuir": "not asked"}, measure=lambda call: (call() and None) or 0.5),
        device="cpu",
    )
    assert "wrong" not in row["contenders"][peer] and row["contenders"][peer]["milliseconds"] == 0.5


@pytest.mark.parametrize("name", ["sigmoid", "relu", "combo"])
def test_compiled_pytorch_is_the_peer_where_flex_attention_cannot_be(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    spec = read_variant(name, ())
    case = on_cpu(transfer(ORIGIN, spec), Shape(2, 4, 2, 150, 150, 64), torch.float16)
    result = contenders(("cudnn", "fa2", "dense", "flex", "otherwise"), spec, case.problem, case.scale)
    assert list(result) == ["compiled"] and case.expected.judge(result["compiled"]()) == ""


def test_the_masks_suite_is_what_users_have_today() -> None:
    cells = suite("masks").cells()
    assert len(cells) == 9 * 4 * 2 and suite("masks").peers == ("flex", "fa4", "cudnn_flex") and len(suite("paper").cells()) == 96
    for item in (c for c in cells if c.model == "hd64"):
        spec, n = read_variant(item.variant, item.arguments), item.shape.M
        w = max(256, n // 8)
        q, k = torch.randint(n, (4000,)), torch.randint(n, (4000,))
        block = n // 8
        answer = (q - n // 2) // block
        expected = {
            "sliding_window": (k <= q) & (q - k <= w),
            "causal_blockwise": (k <= q) & ((q // block == k // block) | (q // block == 7)),
            "sliding_window_global": (k <= q) & ((q - k <= w) | (k < 128)),
            "prefix_lm": (k < n // 4) | (k <= q),
            "share_question": (k <= q) & ((k < n // 2) | (answer == (k - n // 2) // block)),
            "causal_document": (k <= q) & (q // block == k // block),
            "relative_position": torch.ones(4000, dtype=torch.bool),
            "alibi_causal": k <= q,
            "softcap_causal": k <= q,
        }[item.variant]
        mask_mod, score_mod = spec.mods(Lengths(*item.shape.as_tuple()[:5]))
        b, h = torch.tensor(item.shape.B - 1), torch.tensor(5)
        assert mask_mod is None or torch.equal(mask_mod(b, h, q, k), expected)
        s = torch.randn(4000)
        scores = {
            "relative_position": s + 0.01 * (k - q),
            "alibi_causal": s + 2 ** (-6 / 4) * (k - q),
            "softcap_causal": 20 * torch.tanh(s / 20),
        }
        assert (score_mod is not None) == (item.variant in scores)
        if score_mod is not None:
            torch.testing.assert_close(score_mod(s, b, h, q, k), scores[item.variant])


def test_suites_name_variants_and_peers_that_there_are() -> None:
    for item in SUITES.values():
        check_peers([p for p in item.peers if not not_installed(p, item.kind)], item.kind)
        assert item.cells() and len({c.name for c in item.cells()}) == len(item.cells())
        assert item.kind in ("decode", "varlen") or all(c.shape.B * c.shape.M == 16384 for c in item.cells())
    assert set(VARIANTS) == set(corpus.variants()) == set(suite("variants").variants)
    for name, parameters in VARIANTS.items():
        read_variant(name, [f"{k}={v}" for k, v in parameters(1024).items()])


def test_unknown_suites_and_peers() -> None:
    for call, code in ((lambda: suite("papre"), "U117"), (lambda: check_peers(["cudnnn"]), "U118")):
        with pytest.raises(CuirError) as error:
            call()
        assert error.value.diagnostics[0].code == code
