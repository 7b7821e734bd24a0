"""`cuir lower`: what each pass does to a program, whether results stay as they are, and which pass is to blame. What passes do has tests of its own."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from cuir.cli import passes_page as page
from cuir.lowering.ir import ops
from cuir.lowering.ir.ir_text import parse
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.passes import pipeline
from cuir.syntax.types import F32
from tests.cli.programs import needs_nvcc
from tests.strategies.faulty import faulty_file

ROOT = Path(__file__).parents[3]
ARGV = ("lower", "flash_fwd", "-c", "T=f16,D=64,BN=64")
SMALL = ("-d", "B=1,H=1,HK=1,M=40,N=70")


def lines(folder: Path) -> dict[str, str]:
    return {p.name: p.read_text(encoding="utf-8") for p in sorted(folder.iterdir())}


def make_broken_pass(name: str, run: Callable[[ops.Kernel], None]) -> pipeline.Pass:
    module = ModuleType(f"cuir.lowering.passes.{name}")
    module.run = run  # type: ignore[attr-defined]
    return pipeline.Pass(module, "a fault for a test")


def larger(kernel: ops.Kernel) -> None:
    """A pass that computes something else: the first number that a tile is multiplied by is 3."""
    op = next(op for op in every(kernel) if isinstance(op, ops.Apply) and op.op == "exp2")
    wrong = ops.constant(3.0, F32)
    op.parent.insert_op_before(wrong, op)  # type: ignore[union-attr]
    result = ops.apply("*", [op.arguments[0], wrong.result], op.result.type)
    op.parent.insert_op_before(result, op)  # type: ignore[union-attr]
    op.operands[0] = result.result


def break_type(kernel: ops.Kernel) -> None:
    """A pass that makes a name that the table does not have."""
    op = next(op for op in every(kernel) if isinstance(op, ops.Apply))
    op.properties["primitive"] = type(op.primitive)("nothing_of_this_name")


def test_lower_prints_or_writes(cuir: Callable, tmp_path: Path) -> None:
    argv = ("lower", "flash_fwd_sm90", "-c", "T=f16,D=64")
    source = cuir(*argv).out
    assert "__global__" in source and cuir(*argv, "--json").json["source"] == source
    assert cuir(*argv, "-o", tmp_path / "k.cu").code == 0 and (tmp_path / "k.cu").read_text() == source
    assert cuir(*argv, "-o", tmp_path / "k.cu" / "no").code == 2
    nowhere = cuir(*argv, "-o", tmp_path / "nowhere" / "k.cu")
    assert nowhere.code == 2 and "U108" in nowhere.err and not (tmp_path / "nowhere").exists(), "no folder is made for a file"


def test_lower_describes_the_launch(cuir: Callable, tmp_path: Path) -> None:
    argv = ("lower", "gemm", "-c", "T=f16,BM=64,BN=64")
    output = cuir(*argv, "--launch")
    assert output.code == 0 and "units = cdiv(M, 64) * cdiv(N, 64)" in output.out and "__global__" not in output.out
    launch = cuir(*argv, "--json").json["launch"]
    assert [p["name"] for p in launch["parameters"]] == re.findall(r"^(\w+) +\S+ +\d+ ", output.out, re.M)
    assert cuir(*argv, "--launch", "--out", tmp_path / "gemm.cu").code == 0 and (tmp_path / "gemm.cu").stat().st_size
    assert cuir(*argv, "--launch", "--validate").code == 2


@needs_nvcc
def test_lower_explains_its_choices(cuir: Callable) -> None:
    """Each choice stands below its line of the program, with the property that decides."""
    argv = ("lower", "flash_fwd_sm90", "-c", "T=f16,D=64", "--explain")
    data, blocks = cuir(*argv, "--json").json, re.split(r"^(?=\S)", cuir(*argv).out, flags=re.M)[1:]
    source = (ROOT / "corpus/kernels/flash_fwd_sm90.cuir").read_text(encoding="utf-8").split("\n")
    for block, (number, choices) in zip(blocks, itertools.groupby(data["choices"], lambda c: c["line"]), strict=True):
        head, *lines = block.rstrip("\n").split("\n")
        assert head.split(": ", 1) == [f"flash_fwd_sm90.cuir:{number}", source[number - 1].strip()]
        shown = [re.sub(r"  +", " ", line.strip()) for line in lines]
        for choice in choices:
            assert any(line.startswith(f"{choice['operation']} {choice['way']} {choice['because']}") for line in shown) or not choice["way"]
            assert all(f"not {text}" in shown for text in choice["rejected"])
    stores = [c for c in data["choices"] if c["operation"] == "store"]
    assert {"stmatrix", "elements"} <= {c["way"] for c in stores} and all(c["because"] for c in data["choices"])
    assert any("a spare warp" in c["because"] for c in data["choices"] if c["way"] is None)
    assert cuir(*argv, "--cubin", "x.cubin").code == 2


def test_lower_compiles(cuir: Callable, tmp_path: Path) -> None:
    output = cuir("lower", "flash_fwd_sm90", "-c", "T=f16,D=64", "--cubin", tmp_path / "k.cubin")
    assert output.code == 0 and "registers" in output.out and (tmp_path / "k.cubin").stat().st_size > 1000


@pytest.fixture
def with_pass(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, pipeline.Pass], None]:
    """Puts a pass into the pipeline, with this number."""

    def put(number: int, p: pipeline.Pass) -> None:
        monkeypatch.setattr(pipeline, "PASSES", (*pipeline.PASSES[: number - 1], p, *pipeline.PASSES[number - 1 :]))

    return put


# ---- stages
@pytest.mark.thorough
def test_stages_are_written_and_listed(cuir: Callable, tmp_path: Path) -> None:
    output = cuir(*ARGV, "--stages", tmp_path / "ir")
    written = lines(tmp_path / "ir")
    assert output.code == 0 and "__global__" not in output.out and f"{len(written)} stages" in output.err
    rows = {row.split()[1]: row for row in output.out.splitlines() if row[:2].isdigit()}
    assert rows.keys() == {"build", *(p.name for p in pipeline.PASSES)}, "those that changed nothing are named, too"
    assert list(written)[:2] == ["00-build.ir", "01-simplify.ir"] and len(written) < len(pipeline.PASSES)
    assert all(parse(text).symbol.data == "flash_fwd" for text in written.values())
    texts = list(written.values())
    assert all(a != b for a, b in itertools.pairwise(texts)), "what changed nothing writes nothing"
    assert "attributes {inlined}" in texts[-1] and "attributes" not in texts[0]


def test_an_ir_file_gives_the_cuda_of_its_program(cuir: Callable, tmp_path: Path) -> None:
    cuir(*ARGV, "--stages", tmp_path)
    expected, last = cuir(*ARGV).out, sorted(tmp_path.glob("*.ir"))[-1]
    for file in (tmp_path / "00-build.ir", last):
        assert cuir("lower", file).out == expected
    assert cuir("lower", last, "--json").json["source"] == expected
    assert cuir("lower", last, "-o", tmp_path / "k.cu").code == 0 and (tmp_path / "k.cu").read_text(encoding="utf-8") == expected
    for option in (("-c", "D=64"), ("--validate",), ("--launch",), ("--explain",), ("--stages", tmp_path / "more"), ("-k", "flash_fwd")):
        refused = cuir("lower", last, *option)
        assert refused.code == 2 and "needs the program" in refused.err


def test_an_ir_file_continues_without_a_pass(cuir: Callable, tmp_path: Path) -> None:
    cuir(*ARGV, "--stages", tmp_path, "--without", "pin_waits")
    file = tmp_path / "00-build.ir"
    assert file.read_text(encoding="utf-8").startswith('after 0 "build" without "pin_waits"\n')
    assert (
        cuir("lower", file, "--without", "defer_row_sums").out == cuir(*ARGV, "--without", "pin_waits", "--without", "defer_row_sums").out
    )


def test_stages_as_json(cuir: Callable, tmp_path: Path) -> None:
    (tmp_path / "77-simplify.ir").write_text("of another program")
    (tmp_path / "mine.txt").write_text("kept")
    result = cuir(*ARGV, "--stages", tmp_path, "--json").json
    stages = result["stages"]
    assert result["ok"] and result["source"] == cuir(*ARGV).out
    assert [s["number"] for s in stages] == list(range(len(pipeline.PASSES) + 1))
    assert {Path(s["file"]).name for s in stages if s["changed"]} | {"mine.txt"} == lines(tmp_path).keys(), (
        "files of an earlier call are gone"
    )
    assert all(s["file"] is None for s in stages if not s["changed"])
    assert all(a["after"] == b["before"] for a, b in itertools.pairwise(stages)) and "results" not in stages[0]


def test_stages_beside_the_source(cuir: Callable, tmp_path: Path) -> None:
    output = cuir(*ARGV, "--stages", tmp_path / "ir", "-o", tmp_path / "k.cu")
    assert output.code == 0 and (tmp_path / "k.cu").read_text() == cuir(*ARGV).out


def test_a_folder_that_cannot_be_written(cuir: Callable, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "in"):
        output = cuir(*ARGV, "--stages", folder)
        assert output.code == 2 and "U108" in output.err and "--stages" in output.err


# ---- results
@pytest.mark.thorough
def test_results_stay_as_they_are(cuir: Callable) -> None:
    output = cuir(*ARGV, "--validate", *SMALL)
    assert output.code == 0 and "same" in output.out and "differs" not in output.out
    first, second, alternative = (cuir(*ARGV, "--validate", *SMALL, "--seed", s, "--json").json for s in ("1", "1", "2"))
    text = [[s["results"] for s in result["stages"][1:]] for result in (first, second, alternative)]
    assert text[0] == text[1] and text[0] != text[2], "by the seed"
    assert {r["verdict"] for r in text[0]} == {"same", "within roundings"} and "results" not in first["stages"][0]


@pytest.mark.thorough
def test_the_first_pass_to_blame_is_named(cuir: Callable, with_pass: Callable, tmp_path: Path) -> None:
    with_pass(3, make_broken_pass("too_large", larger))
    with_pass(9, make_broken_pass("larger_still", larger))
    display = cuir(*ARGV, "--validate", *SMALL, "-o", tmp_path / "k.cu")
    assert display.code == 1 and display.out.count("differs") == 2 and not (tmp_path / "k.cu").exists()
    assert "error[L012]: pass 03 changes what the kernel computes: too_large: O: " in display.err and "--without too_large" in display.err
    output = cuir(*ARGV, "--validate", *SMALL, "--json")
    stage = output.json["stages"][3]
    assert (
        output.code == 1
        and output.json["ok"] is False
        and output.json["source"] is None
        and output.json["diagnostics"][0]["code"] == "L012"
    )
    assert stage["pass"] == "too_large" and stage["results"]["verdict"] == "differs" and stage["results"]["differs"]["O"]["share"] > 0.05
    assert cuir(*ARGV, "--validate", *SMALL, "--without", "too_large", "--without", "larger_still").code == 0


def test_a_pass_that_breaks_the_ir_is_named(cuir: Callable, with_pass: Callable) -> None:
    with_pass(4, make_broken_pass("untyped", break_type))
    output = cuir(*ARGV, "--validate", *SMALL)
    assert output.code == 1 and "fails" in output.out and "\n05 " not in output.out
    assert "error[L012]: pass 04 cannot be run: untyped: VerifyException: there is no primitive `nothing_of_this_name`" in output.err


def test_a_program_that_cannot_be_run_is_no_fault_of_a_pass(cuir: Callable) -> None:
    output = cuir("lower", faulty_file("D401_swapped_parity"), "--validate")
    assert output.code == 1 and "error[L013]" in output.err and "deadlock" in output.err
    assert cuir("lower", faulty_file("D401_swapped_parity"), "--validate", "--json").json["diagnostics"][0]["code"] == "L013"


# ---- passes
def test_a_pass_left_out(cuir: Callable) -> None:
    plain, less = cuir(*ARGV).out, cuir(*ARGV, "--without", "carry_ring_indices").out
    assert "__global__" in less and less != plain
    stages = cuir(*ARGV, "--without", "carry_ring_indices", "--without", "eliminate_dead_code", "--validate", *SMALL, "--json").json
    names = {s["pass"]: s["number"] for s in stages["stages"]}
    assert not {"carry_ring_indices", "eliminate_dead_code"} & names.keys() and names[pipeline.PASSES[-1].name] == len(pipeline.PASSES), (
        "numbers stay"
    )


@pytest.mark.thorough("lowers the expert kernel once a pass")
def test_every_pass_that_may_be_left_out_may(cuir: Callable) -> None:
    for name in pipeline.optional_passes():
        assert cuir(*ARGV, "--without", name).code == 0, name
    optimisations = [name for name in pipeline.optional_passes() if name != "insert_synchronisation"]
    all_items = [word for name in optimisations for word in ("--without", name)]
    assert cuir(*ARGV, *all_items, "--validate", *SMALL).code == 0
    faulty = cuir(*ARGV, *all_items, "--without", "insert_synchronisation", "--validate", *SMALL)
    assert faulty.code == 1 and "L012" in faulty.err, "lanes that never meet are a fault, not a slower kernel"


def test_the_list_of_passes(cuir: Callable) -> None:
    output = cuir("lower", "--passes")
    assert output.code == 0 and all(p.name in output.out for p in pipeline.PASSES)
    result = cuir("lower", "--passes", "--json").json["passes"]
    assert [p["name"] for p in result] == [p.name for p in pipeline.PASSES]
    assert {p["name"] for p in result if not p["needed"]} == set(pipeline.optional_passes())
    assert cuir("lower", "--passes", "--markdown").out == page.markdown()


def test_page_of_passes_is_up_to_date() -> None:
    assert (ROOT / "docs/passes.md").read_text(encoding="utf-8") == page.markdown(), "run `make docs`"


@pytest.mark.parametrize("p", pipeline.PASSES, ids=lambda p: p.name)
def test_every_pass_says_what_it_is_for(p: pipeline.Pass) -> None:
    message = p.module.__doc__ or ""
    assert p.purpose and not p.purpose.endswith(".") and message.strip().endswith((".", ":", "`"))
    assert replace(p, needed=True).name == p.name == Path(p.module.__file__ or "").stem


# ---- bad input
@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (("gemm", "-c", "T=f16", "--without", "ring_index"), "U100", "did you mean `carry_ring_indices`?"),
        (("gemm", "-c", "T=f16", "--without", "qqqq"), "U100", "passes that can be left out: eliminate_common_subexpressions"),
        (("gemm", "-c", "T=f16", "--without", "inline_elementwise"), "U100", "cannot print anything"),
        (("gemm", "-c", "T=f16", "--seed", "3"), "U100", "--seed is for --validate"),
        (("gemm", "-c", "T=f16", "-d", "M=3"), "U100", "--dim is for --validate"),
        (("gemm", "-c", "T=f16", "--validate", "--seed", "-1"), "U100", "--seed"),
        (("gemm", "-c", "T=f16", "--validate", "-d", "L=3"), "U113", "no dim `L`"),
        (("gemm", "-c", "T=f16", "--validate", "-d", "M=0"), "U113", "positive integer"),
        (("gemm", "-c", "T=f16", "--validate", "-d", "M=1.5"), "U113", "positive integer"),
        (("gemm", "-c", "T=f16", "--validate", "-d", "M"), "U103", "NAME=VALUE"),
        (("gemm", "-c", "T=f16", "--markdown"), "U100", "--markdown is for --passes"),
        (("gemm", "--passes"), "U100", "FILE says nothing beside --passes"),
        (("--passes", "--stages", "x"), "U100", "--stages says nothing beside --passes"),
        (("--passes", "--markdown", "--json"), "U100", "--json says nothing beside --markdown"),
        (("--validate",), "U100", "missing argument FILE"),
        ((), "U100", "missing argument FILE"),
    ],
)
def test_wrong_calls(cuir: Callable, argv: tuple[str, ...], code: str, message: str) -> None:
    output = cuir("lower", *argv)
    text = output.err if "--json" not in argv else output.out
    assert output.code == 2 and code in text and message in text
