"""The annotator of CUDA: text taken apart, calls with the threads that reach them, and the orchestration that they show.

A round trip that shares no code: a program is lowered to CUDA, and what the annotator reads off that CUDA is what the program says.
"""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import corpus
from cuir import check, parse
from cuir.lowering import lower
from cuir.syntax.types import DTYPES
from cuir.text.diagnostics import CuirError
from llm.cuda_source import Annotated, annotate
from llm.cuda_text import arguments, blank, constants, read
from llm.expert_source import read_expert_source
from llm.orchestration import Orchestration
from llm.orchestration_of_program import of_program
from llm.orchestration_of_source import explain, of_source
from llm.whole_numbers import evaluate
from tests.strategies.selection import examples

SOURCES = ("flash_fwd_sm80", "flash_fwd_sm90")


def source(name: str, **replaced: str) -> Annotated:
    text = corpus.cuda()[name].read_text(encoding="utf-8")
    return annotate(text, f"{name}.cu", {"HEAD_DIM": 128})


def kernel(body: str, before: str = "", threads: int = 128) -> Annotated:
    return annotate(f"{before}\n__global__ void __launch_bounds__({threads}) f(float* x, int n) {{\n{body}\n}}\n", "f.cu")


def annotate_body(body: str, before: str = "", threads: int = 128) -> Orchestration:
    return of_source(kernel(body, before, threads))


# ---- text
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("64 * (W + 1)", 192),
        ("W == 3 ? 32 : W >= 2 ? 24 : 40", 24),
        ("-7 / 2", -3),
        ("1 << W | 1", 5),
        ("sizeof(int)", None),
        ("W + ", None),
        ("1.5", None),
        ("cdiv(7, W)", 4),
        ("int(W) * 2u", 4),
        ("0x10", 16),
        ("!W", 0),
        ("W / 0", None),
        ("(" * 10_000, None),
        ("-" * 10_000 + "1", None),
        ("min(W)", None),
    ],
)
def test_whole_numbers(text: str, value: int | None) -> None:
    assert evaluate(text, {"W": 2}) == value


@given(st.text(alphabet="09aW+-*/%()<>?:&|! ,", max_size=40))
def test_no_text_makes_the_evaluator_fail(text: str) -> None:
    assert evaluate(text, {"W": 2, "a": 3}) is None or isinstance(evaluate(text, {"W": 2, "a": 3}), int)


@given(st.text(alphabet="a/*\"'\\\n(){};#", max_size=60))
def test_blanking_keeps_places_and_no_text_makes_the_reader_fail(text: str) -> None:
    assert len(blank(text)) == len(text) and [i for i, c in enumerate(blank(text)) if c == "\n"] == [
        i for i, c in enumerate(text) if c == "\n"
    ]
    read(text)


def test_comments_and_strings_hide_what_they_hold() -> None:
    result = kernel('// __syncthreads();\n/* __syncthreads(); */ printf("__syncthreads();");\n__syncthreads();')
    assert [result.cuda.line(c.at) for c in result.calls if c.kind == "sync"] == [5]  # the string is printf's argument


def test_conditionals_and_constants_follow_what_is_defined() -> None:
    text = "#ifndef D\n#define D 128\n#endif\n#if D == 64\nconstexpr int BN = 32;\n#elif D > 64\nconstexpr int BN = D / 2, S = BN * 2;\n#else\nconstexpr int BN = 1;\n#endif"
    assert constants(text) == {"D": 128, "BN": 64, "S": 128}
    assert constants(text, {"D": 64})["BN"] == 32


def test_arguments_know_brackets() -> None:
    assert arguments("f(a, b), c[d, e], {g, h}, i") == ["f(a, b)", "c[d, e]", "{g, h}", "i"]


# ---- calls and threads
def test_threads_of_a_condition_are_counted() -> None:
    result = kernel(
        "const int w = threadIdx.x / 32, lane = threadIdx.x % 32;\n"
        "if (w == 1 && lane < n) __syncwarp();\n"
        'if (w == 0) { asm volatile("bar.sync 1, 64;"); return; } else if (lane == 0) __syncthreads();\n'
        "__syncthreads();"
    )
    counted = {(c.kind, result.cuda.line(c.at)): c.threads.bit_count() for c in result.calls}
    assert counted == {("warp_sync", 4): 32, ("named_sync", 5): 32, ("sync", 5): 3, ("sync", 6): 96}


def test_calls_are_found_through_macros_functions_and_templates() -> None:
    before = (
        'template <int N> __device__ void wait_copies() { asm volatile("cp.async.wait_group %0;\\n" :: "n"(N)); }\n'
        "__device__ uint32_t address(void* p) { return 0; }\n"
        '__device__ void wait_for(uint64_t* bar, int parity) { uint32_t a = address(bar); asm volatile("mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;" :: "r"(a), "r"(parity)); }\n'
        "#define BOTH(b) do { wait_for(&(b), 0); __syncwarp(); } while (0)\n"
        "struct S { uint64_t full[4]; };"
    )
    result = kernel("S& s = *(S*)0;\nwait_copies<3>();\nBOTH(s.full[n]);", before)
    calls = [(c.kind, c.number, c.objects, c.via) for c in result.calls]
    assert calls == [
        ("cp_wait", 3, (), ("wait_copies",)),
        ("wait", None, ("full",), ("BOTH", "wait_for")),
        ("warp_sync", None, (), ("BOTH",)),
    ]


def test_ptx_copies_name_their_array_and_barrier() -> None:
    before = "struct S { alignas(128) __half k[2][4096]; uint64_t k_full[2]; };"
    body = (
        'S& s = *(S*)0;\nif (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(u32(&s.k_full[0])), "r"(1));\n__syncthreads();\n'
        'if (threadIdx.x == 0) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(u32(&s.k_full[n])), "r"(8192));\n'
        'asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" '
        ':: "r"(u32(s.k[n])), "l"(map), "r"(u32(&s.k_full[n])), "r"(0), "r"(0), "r"(0), "r"(0)); }'
    )
    facts = annotate_body(body, before)
    assert [str(r) for r in facts.roles] == ["role load: warps=1; bulk load"]
    assert [(b.name, b.count, b.stages, b.carries_bytes) for b in facts.barriers] == [("k_full", 1, 2, True)]
    assert [(m.name, m.nbytes, m.stages) for m in facts.memory] == [("k", 16384, 2)]


# ---- orchestration
def test_the_warp_specialised_source_shows_its_orchestration() -> None:
    facts = of_source(source("flash_fwd_sm90"))
    assert [str(r) for r in facts.roles] == [
        "role load: warps=1, registers=24; bulk load",
        "role compute: warpgroups=2, registers=240; bulk store, wgmma",
    ]
    assert {b.name: (b.kind, b.count, b.stages, b.carries_bytes, set(b.arrives), set(b.waits)) for b in facts.barriers} == {
        "q_full": ("mbarrier", 1, 1, True, {"load"}, {"compute"}),
        "q_empty": ("mbarrier", 2, 1, False, {"compute"}, {"load"}),
        "k_full": ("mbarrier", 1, 2, True, {"load"}, {"compute"}),
        "k_empty": ("mbarrier", 2, 2, False, {"compute"}, {"load"}),
        "v_full": ("mbarrier", 1, 2, True, {"load"}, {"compute"}),
        "v_empty": ("mbarrier", 2, 2, False, {"compute"}, {"load"}),
        "turn": ("named_barrier", 2, 2, False, {"compute"}, {"compute"}),
    }
    assert {m.name: (m.nbytes, m.stages) for m in facts.memory} == {"q": (32768, 1), "o": (32768, 1), "k": (65536, 2), "v": (65536, 2)}
    assert {n for n, _ in facts.groups["wgmma"].remaining} == {0, 1} and facts.joins is None


def test_the_ampere_source_shows_its_orchestration() -> None:
    facts = of_source(source("flash_fwd_sm80"))
    assert [str(r) for r in facts.roles] == ["role all: warps=4; cp.async, mma"] and not facts.barriers
    assert {m.name: (m.nbytes, m.stages) for m in facts.memory} == {"q": (16384, 1), "k": (32768, 2), "v": (32768, 2)}
    assert {n for n, _ in facts.groups["cp.async"].remaining} == {0, 1} and facts.joins is not None


@pytest.mark.parametrize(
    ("guard", "count", "workers"),
    [
        ("lane == 0", 8, 2),
        ("threadIdx.x % 128 == 0", 2, 2),
        ("true", 256, 2),
        ("lane == 0", 4, 1),
        ("lane == 0", 6, None),
        ("lane < 2", 16, 2),
    ],
)
def test_counts_of_threads_become_counts_of_workers(guard: str, count: int, workers: int | None) -> None:
    text = corpus.cuda()["flash_fwd_sm90"].read_text(encoding="utf-8")
    changed = text.replace("if (lane == 0) Barrier::arrive(&(bar))", f"if ({guard}) Barrier::arrive(&(bar))").replace(
        "4 * CONSUMERS", str(count)
    )
    facts = of_source(annotate(changed, "changed.cu"))
    assert {b.count for b in facts.barriers if b.name.endswith("_empty")} == {workers}


@pytest.mark.parametrize("name", SOURCES)
def test_the_annotated_source_is_the_source_with_comments(name: str) -> None:
    result = source(name)
    text = explain(result)
    assert [line for line in text.split("\n") if "// CuIR: " not in line and not line.startswith("//   role")][
        -50:
    ] == result.cuda.text.split("\n")[-50:]
    assert text.count("// CuIR: ") >= 20 and "Orchestration of flash_fwd" in text
    called = {c.kind for c in result.calls}
    for word, kind in (
        ("cp_async_wait", "cp_wait"),
        ("Barrier::init", "init"),
        ("TMA_LOAD", "bulk_load"),
        ("warpgroup_wait", "wgmma_wait"),
        ("LDSM", "ldmatrix"),
    ):
        assert (word in re.sub(r"//.*", "", result.cuda.text)) == (kind in called)


def test_every_source_of_the_corpus_is_annotated_as_it_is_launched() -> None:
    for name in corpus.cuda():
        launch = read_expert_source(corpus.launch_of(name))
        for dim in (64, 128):
            result = annotate(launch.text, name, launch.compute_macros(dim), launch.kernel)
            assert result.threads == evaluate(launch.threads, launch.constants(dim))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("int f() { return 1; }", "found none"),
        ("__global__ void f() { }", "how many threads"),
        ("__global__ void __launch_bounds__(n) f() { }", "how many threads"),
        ("", "found none"),
    ],
)
def test_what_is_no_kernel_is_said(text: str, words: str) -> None:
    with pytest.raises(CuirError, match="O122") as caught:
        annotate(text, "x.cu")
    assert words in str(caught.value)


KERNEL = "__global__ void __launch_bounds__(256) f() {"


@pytest.mark.parametrize(
    "text",
    [
        KERNEL + "a(" * 20_000,
        KERNEL + "if (threadIdx.x < 3) {" * 5_000,
        KERNEL + "else " * 3_000 + "}",
        "(" * 100_000,
        '"' * 100_001,
        "/*" * 50_000,
        "#define A(x) B(x) B(x)\n#define B(x) A(x) A(x) __syncthreads();\n" + KERNEL + "A(1) }",
        "struct S { " + "a " * 20_000 + "};" + KERNEL + "}",
    ],
)
def test_hostile_sources_end_soon(text: str) -> None:
    start = time.process_time()
    try:
        explain(annotate(text, "x.cu"))
    except CuirError as error:
        assert error.diagnostics[0].code == "O122"
    assert time.process_time() - start < 5


@examples(0.25)
@given(
    st.lists(
        st.tuples(st.integers(0, 20_000), st.integers(0, 300), st.sampled_from(["", "{", "}", "(", ")", '"', "/*", "#if 0\n", ";", "<"])),
        min_size=1,
        max_size=5,
    )
)
def test_no_change_of_a_source_makes_the_annotator_fail(changes: list[tuple[int, int, str]]) -> None:
    text = corpus.cuda()["flash_fwd_sm90"].read_text(encoding="utf-8")
    for place, deletion, put in changes:
        text = text[: place % len(text)] + put + text[place % len(text) + deletion :]
    try:
        explain(annotate(text, "x.cu"))
    except CuirError as error:
        assert error.diagnostics[0].code == "O122"


PROGRAMS = ("flash_fwd", "flash_fwd_cluster", "flash_fwd_over_v", "flash_fwd_warps", "flash_fwd_sm90", "flash_bwd", "gemm")


def facts(name: str) -> tuple[Orchestration, Orchestration]:
    """Collect the facts of the CUDA and of the program."""
    place = {**corpus.programs(), **corpus.kernels()}[name]
    program = parse(place.read_text(encoding="utf-8"), f"{name}.cuir")
    kernel = list(program.kernels().values())[-1]
    expected_values = {"T": DTYPES["f16"], "D": 128}
    checked = check(program, kernel.name, {n: v for n, v in expected_values.items() if n in {p.name for p in kernel.params}})
    return of_source(annotate(lower(checked).source, f"{name}.cu")), of_program(checked)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_annotator_reads_a_program_off_its_cuda(name: str) -> None:
    """The lowering adds a role and barriers of its own, which hand out units of work: they have no counterpart."""
    cuda, program = facts(name)
    barriers = {b.name: (b.count, b.stages, b.carries_bytes, len(b.arrives), len(b.waits)) for b in cuda.barriers if b.kind == "mbarrier"}
    for b in program.barriers:
        if b.kind == "mbarrier" and b.waits:
            assert barriers[b.name] == (b.count, b.stages, b.carries_bytes, len(b.arrives), len(b.waits)), b.name
    used = [(b.count, b.stages) for b in program.barriers if b.kind == "named_barrier" and b.waits]
    assert sorted(used) == sorted((b.count, b.stages) for b in cuda.barriers if b.kind == "named_barrier")
    roles = [(r.workers, r.threads, r.registers, r.does) for r in cuda.roles]
    assert all((r.workers, r.threads, r.registers, r.does) in roles for r in program.roles)
    assert {agent: g.most[0] for agent, g in cuda.groups.items()} == {agent: g.most[0] for agent, g in program.groups.items()}
    assert (cuda.joins is None) == (program.joins is None)
