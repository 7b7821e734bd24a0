"""The CUDA text: always the same, marked line by line, with names that C++ takes; what cannot be lowered is refused with its place."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuir.checking.checker import check
from cuir.lowering import Lowering, compiler, lower, lower_ir
from cuir.lowering.compiler import print_kernel
from cuir.lowering.cuda.writer import RESERVED, identifier
from cuir.lowering.ir import ops
from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ir_text import State, show, show_file
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.passes.pipeline import optimise
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from cuir.text.diagnostics import CuirError
from tests.lowering.conftest import HEAD, kernel, text
from tests.lowering.kernels import FILES, NAMES, ROOT, corpus_kernel
from tests.strategies.selection import examples
from tests.strategies.typed import kernels


def test_every_kernel_of_the_corpus_has_a_name() -> None:
    assert len(NAMES) == len(set(NAMES)) == sum(path.read_text(encoding="utf-8").count("@kernel(") for path in FILES)


@pytest.mark.sweep(32)
@pytest.mark.parametrize("name", NAMES)
def test_the_same_kernel_gives_the_same_text(name: str) -> None:
    checked = corpus_kernel(name)
    repeated = check(checked.program, checked.name, dict(checked.consts))
    first, second = lower(checked), lower(repeated)
    assert first.source == second.source and first.digest == second.digest and first.maps == second.maps


@pytest.mark.sweep(32)
@pytest.mark.parametrize("name", NAMES)
def test_the_ir_between_any_two_passes_gives_the_same_text(name: str, tmp_path: Path) -> None:
    """Read back from its file without the program, also every line's place; a fifth of the passes for a kernel."""
    checked = corpus_kernel(name)
    cuda, file = lower(checked), tmp_path / "stage.ir"
    stages = [s for s in Lowering(checked).stages() if s.text is not None]
    for stage in (*stages[NAMES.index(name) % 5 :: 5], stages[-1]):
        file.write_text(str(stage.text), encoding="utf-8")
        text = lower_ir(file)
        assert text.source == cuda.source, stage.name
        assert [str(s) for s in text.spans] == [str(s) for s in cuda.spans]
        same = ("maps", "tensors", "scalars", "dims", "shared_bytes", "choices", "aligned", "counter")
        assert all(getattr(text, name) == getattr(cuda, name) for name in same)


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["flash_fwd_varlen_sm90.flash_fwd_varlen", "flash_fwd_varlen_f32.flash_fwd_varlen"])
def test_lowering_the_longest_kernels_takes_few_calls(name: str) -> None:
    """Two million calls of Python take 0.4 s on a quiet machine; seconds would depend on what else runs on it."""
    checked, calls = corpus_kernel(name), Counter[str]()
    lower(checked)  # fills what the process keeps
    checked.results.by_name.clear()

    def count(frame: object, event: str, arg: object) -> None:
        calls[event] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        lower(checked)
    finally:
        sys.setprofile(before)
    assert calls["call"] < 2_000_000 and 500_000 < calls["call"] + calls["c_call"] < 3_500_000, calls


def test_errors_of_an_ir_file_are_at_the_lines_of_the_program(tmp_path: Path) -> None:
    head = HEAD.replace("named_barrier(1)", "named_barrier(1, stages=15)")
    checked = kernel("turn[n % 15].sync()\nstore(s[0], zeros(f16, [64, 64]))\nfence_async()\nstore_wait()", head)
    with pytest.raises(CuirError) as of_program:
        lower(checked)
    texts = list[str]()
    with pytest.raises(CuirError):  # of the selection, the last pass
        texts.extend(s.text for s in Lowering(checked).stages() if s.text is not None)
    (tmp_path / "stage.ir").write_text(texts[-1], encoding="utf-8")
    with pytest.raises(CuirError) as of_file:
        lower_ir(tmp_path / "stage.ir")
    assert str(of_program.value) == str(of_file.value) and "L004" in str(of_file.value) and "^" in str(of_file.value)


def test_a_file_of_another_pipeline_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old.ir").write_text(show_file(build(kernel("store(I[0], n)")), State(2, "fold_everything")), encoding="utf-8")
    with pytest.raises(
        CuirError, match=r"old.ir:1:1: error\[L014\]: expected one of the \d+ passes after build, found 2, `fold_everything`"
    ):
        lower_ir(tmp_path / "old.ir")


def test_ir_without_a_state_before_the_passes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "first.ir").write_text(show(build(kernel("store(I[0], n)"))), encoding="utf-8")
    with pytest.raises(CuirError, match=r"first.ir:1:1: error\[L014\]: expected IR that has been through all passes: no way is selected"):
        lower_ir(tmp_path / "first.ir")


def test_ir_without_a_state_has_been_through_all_passes(tmp_path: Path) -> None:
    ir = build(kernel("store(I[0], n)"))
    optimise(ir)
    (tmp_path / "last.ir").write_text(show(ir), encoding="utf-8")
    printed = lower_ir(tmp_path / "last.ir")
    marked = lower(kernel("store(I[0], n)")).source.split("\n")
    assert printed.source.split("\n") == [marked[0], *(line for line in marked[1:] if not re.match(r"\s*// \d+: ", line))]


def test_the_text_does_not_depend_on_the_process() -> None:
    path = ROOT / "corpus/kernels/flash_fwd_sm90.cuir"
    code = (
        "import pathlib; from cuir.syntax.parser import parse; from cuir.checking.checker import check; from cuir.lowering import lower; from cuir.syntax.types import F16;"
        f"print(lower(check(parse(pathlib.Path({str(path)!r}).read_text()), consts={{'T': F16, 'D': 128}})).digest)"
    )
    seed = "1" if os.environ.get("PYTHONHASHSEED") == "2" else "2"
    other = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    ).stdout.strip()
    assert len(other) == 16 and other == lower(check(parse(path.read_text(encoding="utf-8")), consts={"T": F16, "D": 128})).digest


@pytest.mark.sweep(32)
@pytest.mark.parametrize("name", NAMES)
def test_every_effect_is_marked_by_its_line(name: str) -> None:
    checked = corpus_kernel(name)
    kernel = build(checked)
    optimise(kernel)
    cuda = print_kernel(kernel)
    lines = cuda.source.split("\n")
    source = checked.origin.span.source
    marks = {int(m[1]): m[2] for line in lines if (m := re.match(r"\s*// (\d+): (.*)", line)) and "is line N" not in line}
    assert all(text == source.line(number).strip() for number, text in marks.items())
    performed = [
        op for role in kernel.roles for op in every(role) if isinstance(op, ops.Perform) and not op.results and op.op != "mma_wait"
    ]
    assert performed and {op.location.line.data for op in performed} <= marks.keys()  # type: ignore[union-attr]
    for number, span in cuda.line_map.items():
        assert 1 <= number <= len(lines) and span.source is source
    assert len(cuda.spans) == len(lines) - 1  # the text ends in a newline


def test_the_line_map_leads_to_the_statement() -> None:
    cuda = lower(kernel("a = n % 3\nstore(I[0], a)\nstore(I[1], a * a)\nstore(Y[rows(64)], exp2(full(f32, [64, 1], scale)))"))
    for word, line in ((r"\b(const int )?a = ", 8), (r"I\[0\] = ", 9), (r"cuir::ex2\(", 11)):
        results = [i for i, text in enumerate(cuda.source.split("\n"), 1) if re.search(word, text) and not re.search("DEV|//", text)]
        assert results and all(cuda.line_map[i].line == line for i in results), word


def test_threads_may_lower_at_once() -> None:
    """The first ones to need the printers find all of them."""
    code = (
        "import sys; from concurrent.futures import ThreadPoolExecutor; from tests.lowering.conftest import kernel; from cuir.lowering import lower;"
        "sys.setswitchinterval(1e-6); k = kernel('store(I[0], n % 3 + n // 2)');"
        "print(len({c.digest for c in ThreadPoolExecutor(8).map(lower, [k] * 8)}))"
    )
    finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert finished.stdout.strip() == "1", finished.stderr[-2000:]


# ---- names
@given(st.lists(st.one_of(st.sampled_from(sorted(RESERVED)), st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,6}", fullmatch=True)), unique=True))
def test_identifiers_are_different_and_no_words_of_the_language(names: list[str]) -> None:
    results = [identifier(n) for n in names]
    assert len(set(results)) == len(results) and not set(results) & RESERVED
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", f) for f in results)


# ---- what is refused
def read_refusal(body: str, head: str = HEAD) -> tuple[str, int]:
    with pytest.raises(CuirError) as caught:
        lower(kernel(body, head))
    (result,) = caught.value.diagnostics
    assert result.span is not None and result.render()
    return result.code, result.span.line


def test_a_bulk_copy_of_a_tensor_of_six_dims() -> None:
    head = HEAD.replace("X: Global[f16, M, 64]", "X: Global[f16, A, B, 2, 2, M, 64]")
    assert read_refusal("full[0].expect(nbytes(s[0]))\ncopy_async(X[0, 0, 0, 0, 0 : 64, :], s[0], full[0])", head) == ("L003", 9)


def test_more_named_barriers_than_the_hardware_has() -> None:
    head = HEAD.replace("named_barrier(1)", "named_barrier(1, stages=15)")
    body = "turn[n % 15].sync()\nstore(s[0], zeros(f16, [64, 64]))\nfence_async()\nstore_wait()"  # the joins of a warpgroup take one
    assert read_refusal(body, head) == ("L004", 7)


# ---- random kernels
@examples(0.5)
@given(kernels())
def test_random_kernels_lower_or_are_refused(case) -> None:
    checked = check(parse(case.text))
    try:
        cuda = lower(checked)
    except CuirError as error:
        assert all(d.code.startswith("L00") and d.span for d in error.diagnostics)
    else:
        assert cuda.source == lower(checked).source and cuda.source.count("{") == cuda.source.count("}")


def test_the_words_for_clusters_cost_nothing_in_a_cluster_of_one() -> None:
    body = """
if w == 0:
    copy_async(X[0 : 64, :], s[0], full[0], cluster=True)
full[0].arrive(cluster=True)
if cta_rank() == 0:
    full[1].arrive(cluster=True)
"""
    without = body.replace(", cluster=True", "").replace("cluster=True", "").replace("if cta_rank() == 0:\n    ", "")
    head = HEAD.replace('arch="sm_90a"', 'arch="sm_90a", cluster=C // 4')

    def lines(source: str) -> list[str]:
        return [line for line in source.split("\n") if not re.match(r"\s*// ", line)]

    assert lines(text(body, head=head)) == lines(text(without))
    cluster = lower(kernel(body, head, C=8))
    assert cluster.cluster == 2 and "MULTICAST" in cluster.source and "arrive_cluster(full + 0, lane, 2, lane)" in cluster.source
    assert "cluster_wait" in cluster.source and "block_rank_in_cluster" in cluster.source


@pytest.mark.parametrize("is_enabled", [True, False])
def test_garbage_is_collected_again_behind_a_lowering_that_fails(is_enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    during = list[bool]()

    def fail(kernel: ops.Kernel, without: object) -> None:
        during.append(gc.isenabled())
        raise RuntimeError

    monkeypatch.setattr(compiler, "optimise", fail)
    try:
        if not is_enabled:
            gc.disable()
        with pytest.raises(RuntimeError):
            lower(kernel("store(Y[0], scale)"))
        assert during == [False] and gc.isenabled() == is_enabled
    finally:
        gc.enable()
