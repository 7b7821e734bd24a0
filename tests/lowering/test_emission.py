"""The CUDA text: always the same, marked line by line, with names that C++ takes; what cannot be lowered is refused with its place."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuir.calls.binding import assumed_consts
from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.lowering import lower
from cuir.lowering.flat import statements
from cuir.lowering.writer import RESERVED, identifier
from cuir.syntax.parser import parse
from cuir.text.diagnostics import CuirError
from tests.lowering.conftest import HEAD, kernel, text
from tests.strategies.effort import examples
from tests.strategies.typed import kernels

ROOT = Path(__file__).parents[2]
FILES = sorted([*ROOT.glob("corpus/programs/*.cuir"), *ROOT.glob("corpus/kernels/*.cuir")])
EXTRA = {"decode": {"G": 8}, "global_sliding_window": {"L": 64, "R": 64, "g": 16}}


def corpus_kernels() -> list[tuple[str, Checked]]:
    found = []
    for path in FILES:
        program = parse(path.read_text(encoding="utf-8"), path.name)
        for name, k in program.kernels().items():
            consts = assumed_consts(k, {**EXTRA.get(name, {}), **EXTRA.get(path.stem, {})})
            found.append((f"{path.stem}.{name}", check(program, name, consts)))
    return found


KERNELS = corpus_kernels()


@pytest.mark.parametrize("checked", [k for _, k in KERNELS], ids=[n for n, _ in KERNELS])
def test_the_same_kernel_gives_the_same_text(checked: Checked) -> None:
    again = check(checked.program, checked.name, dict(checked.consts))
    first, second = lower(checked), lower(again)
    assert first.source == second.source and first.digest == second.digest and first.maps == second.maps


def test_the_text_does_not_depend_on_the_process() -> None:
    path = ROOT / "corpus/kernels/flash_fwd_sm90.cuir"
    code = (
        "import pathlib; from cuir.syntax.parser import parse; from cuir.checking.checker import check; from cuir.lowering import lower; from cuir.syntax.types import F16;"
        f"print(lower(check(parse(pathlib.Path({str(path)!r}).read_text()), consts={{'T': F16, 'D': 128}})).digest)"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1 and len(digests.pop().strip()) == 16


@pytest.mark.parametrize("checked", [k for _, k in KERNELS], ids=[n for n, _ in KERNELS])
def test_every_statement_is_marked_by_its_line(checked: Checked) -> None:
    cuda = lower(checked)
    lines = cuda.source.split("\n")
    marks = {(int(m[1]), m[2]) for line in lines if (m := re.match(r"\s*// (\d+): (.*)", line)) and "is line N" not in line}
    source = checked.origin.span.source
    for role in checked.roles:
        for stmt in statements(role.body):
            wanted = stmt.span.source.line(stmt.span.line).strip()
            assert (stmt.span.line, wanted) in marks, wanted
    for number, span in cuda.line_map.items():
        assert 1 <= number <= len(lines) and span.source is source
    assert len(cuda.spans) == len(lines) - 1  # the text ends in a newline


def test_the_line_map_leads_to_the_statement() -> None:
    cuda = lower(kernel("a = n + 1\nstore(I[0], a)\nstore(Y[rows(64)], exp2(full(f32, [64, 1], scale)))"))
    lines = cuda.source.split("\n")
    for word, line in (("a = cuir::add(n, 1);", 8), ("I[0] = a;", 9), ("cuir::ex2(", 10)):
        found = [i for i, text in enumerate(lines, 1) if word in text and "DEV" not in text]
        assert found and all(cuda.line_map[i].line == line for i in found), word


def test_threads_may_lower_at_once() -> None:
    """The first ones to need the emitters find all of them."""
    code = (
        "import sys; from concurrent.futures import ThreadPoolExecutor; from tests.lowering.conftest import kernel; from cuir.lowering import lower;"
        "sys.setswitchinterval(1e-6); k = kernel('store(I[0], n % 3 + n // 2)');"
        "print(len({c.digest for c in ThreadPoolExecutor(8).map(lower, [k] * 8)}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.stdout.strip() == "1", done.stderr[-2000:]


# ---- names
@given(st.lists(st.one_of(st.sampled_from(sorted(RESERVED)), st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,6}", fullmatch=True)), unique=True))
def test_identifiers_are_different_and_no_words_of_the_language(names: list[str]) -> None:
    found = [identifier(n) for n in names]
    assert len(set(found)) == len(found) and not set(found) & RESERVED
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", f) for f in found)


HARD = ["new", "int", "row", "col", "lane", "warp", "this", "union", "x_u", "x__1", "smem", "double", "min_", "i_", "r_", "NULL", "unix", "counter",
        "slots", "tile_count", "uint32_t", "Z_stride0", "I_stride0", "queue", "t__1", "map_X", "descriptor_s", "INFINITY", "at", "__x", "half", "struct"]  # fmt: skip


def with_names(names: list[str]) -> str:
    """A kernel whose locals have these names: scalars, tiles and loop variables in turn."""
    lines, total = [], []
    for i, name in enumerate(names):
        if i % 3 == 0:
            lines.append(f"{name} = n + {i}")
        elif i % 3 == 1:
            lines.append(f"{name} = cast(full(f32, [64, 1], scale) + {i}.0, f32)")
        else:
            lines += [f"for {name} in range(2):", f"    store(I[{name}], {name})"]
        total += [name] if i % 3 == 1 else []
    return "\n".join(
        [*lines, *(f"store(I[{i}], {n})" for i, n in enumerate(names) if i % 3 == 0), f"store(Y[rows(64)], {' + '.join(total)})"]
    )


# ---- what is refused
def refused(body: str, head: str = HEAD) -> tuple[str, int]:
    with pytest.raises(CuirError) as caught:
        lower(kernel(body, head))
    (found,) = caught.value.diagnostics
    assert found.span is not None and found.render()
    return found.code, found.span.line


def test_a_bulk_copy_of_a_tensor_of_six_dims() -> None:
    head = HEAD.replace("X: Global[f16, M, 64]", "X: Global[f16, A, B, 2, 2, M, 64]")
    assert refused("full[0].expect(nbytes(s[0]))\ncopy_async(X[0, 0, 0, 0, 0 : 64, :], s[0], full[0])", head) == ("L003", 9)


def test_more_named_barriers_than_the_hardware_has() -> None:
    head = HEAD.replace("named_barrier(1)", "named_barrier(1, stages=15)")
    body = "turn[n % 15].sync()\nstore(s[0], zeros(f16, [64, 64]))\nfence_async()\nstore_wait()"  # the joins of a warpgroup take one
    assert refused(body, head) == ("L004", 7)


def test_what_the_lowering_cannot_do() -> None:
    assert refused("x = zeros(f32, [64, 64])\nx = exp2(mma_async(s[0], s[1]))") == ("L002", 9)


# ---- indices
def test_an_index_that_is_a_choice_keeps_its_parentheses() -> None:
    found = text("x = Z[rows(64), where(cols(64) > n, cols(64), 0)]\nstore(Z[rows(64), cols(64)], x)")
    read = re.search(r"\? Z\[(.*?)\] : 0\.f", found)
    assert read and re.search(r"Z_stride0 \+ \(", read[1]) and not re.search(r"Z_stride0 \+ [^(]*\?", read[1])


def test_a_scalar_index_beside_tiles_needs_no_sign() -> None:
    found = text("store(Z[n, cols(64)], full(f32, [1, 64], scale))")
    assert "uint32_t(n) * Z_stride0 + " in found and "unsigned(n) < unsigned(M)" in found


def test_a_division_is_one_of_the_full_range_unless_the_divisor_is_near() -> None:
    found = text(
        "store(Y[rows(64)], 1.0 / (scale + cast(rows(64), f32)))\nstore(Y[rows(64)], scale / (1.0 + exp2(min(cast(rows(64), f32), 9.0))))"
    )
    assert found.count("cuir::one_over(t__") == 1 and found.count("= scale * cuir::reciprocal(") == 1


def test_one_row_and_one_column_have_number_0() -> None:
    found = text("x = full(i32, [64, 8], 5) + rows(1) + cols(1)\nstore(Z[rows(64), cols(8)], cast(x, f32))")
    body = found.split("// 8:")[1].split("// 9:")[0].split("\n", 1)[1]
    assert "5" in body and "row" not in body and "col" not in body


# ---- random kernels
@examples(1.5)
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
    both = lower(kernel(body, head, C=8))
    assert both.cluster == 2 and "MULTICAST" in both.source and "arrive_cluster(full + 0, lane, 2)" in both.source
    assert "cluster_sync" in both.source and "block_rank_in_cluster" in both.source


def test_a_value_that_nobody_needs_is_left_out() -> None:
    found = text("_, a = cdiv(n, 3), n\ncdiv(n, 5)\nstore(I[0], a)")
    assert "/ 3" not in found.split("// 8:")[-1] and "I[" in found


# ---- reductions of rows
def test_the_sum_of_a_row_is_not_read_outside_of_its_block() -> None:
    """Its array ends with the branch; and what a loop binds anew has another sum."""
    branch = "P = Z[rows(64), cols(64)]\nif n > 0:\n    P = P * 2.0\n    r = row_sum(P)\n    store(Y[rows(64)], exp2(r))\nq = exp2(row_sum(P))\nstore(Y[rows(64)], q)"
    found = text(branch)
    (inside,) = re.findall(r"float (rows__\d+)\[2\]", found)
    outside = found[found.rindex("// ", 0, found.rindex("row_sum(P)")) :]
    assert inside in found and inside not in outside and "cuir::row_part(P" in outside
    loop = "P = Z[rows(64), cols(64)]\nr = row_sum(P)\nstore(Y[rows(64)], exp2(r))\nfor i in range(n):\n    store(Y[rows(64)], exp2(row_sum(P)))\n    P = P * 2.0"
    found = text(loop)
    assert "cuir::row_part(P" in found[found.index("for (int i = 0") :]


@pytest.mark.parametrize("tile", ["Y[rows(64)]", "cast(cols(64), f32)"])
@pytest.mark.parametrize("reduction", ["row_max", "row_sum"])
def test_a_tile_of_one_row_or_column_is_not_reduced(reduction: str, tile: str) -> None:
    with pytest.raises(CuirError) as raised:
        text(f"x = {tile}\ny = {reduction}(x)\nstore(Z[rows(64), cols(64)], zeros(f32, [64, 64]) + y)")
    assert (
        raised.value.diagnostics[0].code == "L002"
        and f"`{reduction}` of a tile with one row or one column" in raised.value.diagnostics[0].message
    )
