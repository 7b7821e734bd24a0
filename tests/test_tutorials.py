"""Every block of docs/tutorials runs, every fault is reported as the pages show, and sentences are short."""

from __future__ import annotations

import re
import runpy
import subprocess
from pathlib import Path

import pytest
import torch

import cuir
from cuir.runtime.launch_description import describe_launch
from cuir.runtime.nvcc import compile_cuda, find_nvcc
from tests.tutorial_pages import (
    FOLDER,
    Block,
    all_blocks,
    matches,
    output_of,
    read_blocks,
    reader_folder,
    report_of,
    run_on_cpu,
    run_tests,
    split_commands,
)

PAGES = sorted(FOLDER.glob("*.md"))
KINDS = ("file", "diff", "report", "console", "nvcc", "gpu", "picture")


def of_kind(*kinds: str) -> pytest.MarkDecorator:
    blocks = all_blocks(*kinds)
    return pytest.mark.parametrize("block", blocks, ids=[b.title for b in blocks])


@pytest.mark.parametrize("page", PAGES, ids=[p.name for p in PAGES])
def test_each_block_says_what_it_is(page: Path) -> None:
    assert {b.kind for b in read_blocks(page)} <= set(KINDS)
    assert page.read_text(encoding="utf-8").count("```") == 2 * len(read_blocks(page))


def test_names_of_files_are_unique() -> None:
    names = [b.name for b in all_blocks("file")]
    assert len(names) == len(set(names)) > 5


@of_kind("file")
def test_files_hold(block: Block, tmp_path: Path) -> None:
    with reader_folder(tmp_path):
        if block.name.endswith(".cuir"):
            assert cuir.check(block.name).roles
        elif block.name.startswith("test_"):
            assert run_tests(block.name)
        elif block.name.endswith(".py"):
            compile(block.text, block.name, "exec")


@of_kind("report")
def test_reports_are_those_of_the_page(block: Block, tmp_path: Path) -> None:
    assert block.change is not None
    with reader_folder(tmp_path, block.change):
        report = report_of(block.name)
        assert matches(block.text, report), report


@pytest.mark.usefixtures("few_problems")
@of_kind("console")
def test_commands_print_what_the_page_shows(block: Block, tmp_path: Path) -> None:
    commands = split_commands(block.text)
    assert commands
    with reader_folder(tmp_path, block.change):
        for written, display in commands:
            command = f"{written} -c BM=64,BN=64" if written.startswith("cuir bridge") else written  # fewer and smaller tiles
            output = output_of(command, 0 if block.change is None else None)
            assert matches(display, output), output


@of_kind("gpu")
def test_code_for_a_gpu_runs_in_the_interpreter(block: Block, tmp_path: Path) -> None:
    with reader_folder(tmp_path):
        run_on_cpu(block)


@pytest.mark.nvcc
@of_kind("nvcc")
def test_what_nvcc_compiles(block: Block, tmp_path: Path) -> None:
    with reader_folder(tmp_path):
        for command, output in split_commands(block.text):
            if command.startswith("nvcc "):
                subprocess.run([find_nvcc(), *command.split()[1:]], check=True)
            else:
                assert matches(output, output_of(command, 0))


@pytest.mark.nvcc
@pytest.mark.parametrize("block", [b for b in all_blocks("file") if b.name.endswith(".cuir")], ids=lambda b: b.name)
def test_kernels_compile_without_spills(block: Block, tmp_path: Path) -> None:
    with reader_folder(tmp_path):
        compiled = compile_cuda(cuir.lower(cuir.check(block.name)))
    assert compiled.cubin and not compiled.resources.spill_stores


def test_the_launch_from_cpp_is_what_the_description_says(tmp_path: Path) -> None:
    (text,) = (b.text for b in all_blocks("file") if b.name == "launch.cpp")
    with reader_folder(tmp_path):
        launch = describe_launch(cuir.lower(cuir.check("rms_norm.cuir")))
    assert f"BLOCK = {launch.block}, SHARED = {launch.shared_bytes};" in text and f'"{launch.symbol}"' in text
    arguments = re.search(r"arguments\[\] = \{(.*?)\}", text)
    assert arguments
    assert [a.lower() for a in re.findall(r"&(\w+)", arguments[1])] == [
        re.sub(r"\.stride\(0\)", "_stride", p.name).lower() for p in launch.parameters
    ]
    (encoded,) = launch.maps
    assert encoded.dims == ("128", "M") and f"box[] = {{{encoded.box[0]}, {encoded.box[1]}}}" in text and encoded.swizzle == "128B"


# ---- from FlexAttention
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_the_changed_layer_computes_what_pytorch_computes(tmp_path: Path) -> None:
    (change,) = {b.change for b in all_blocks("console") if b.change is not None and b.change[0] == "attention.py"}
    results = []
    for number, diff in enumerate((None, change)):
        folder = tmp_path / str(number)
        folder.mkdir()
        with reader_folder(folder, diff), torch.no_grad():
            torch.manual_seed(0)
            model = runpy.run_path("attention.py")["Attention"](64, heads=4).bfloat16()
            x = torch.randn(1, 60, 64, dtype=torch.bfloat16)
            results.append(model(x, documents=torch.arange(60) // 20).float())
    torch.testing.assert_close(*results, rtol=2e-2, atol=1e-2)


LINE = torch.zeros(64)
TIMES = torch.arange(64, dtype=torch.float64) + 1.7e9
BIG = torch.zeros(64, 64, 300)


def choose(score, b, h, q_idx, kv_idx):
    if q_idx > kv_idx:
        return score
    return score - 1.0


REFUSED = {
    "if q_idx > kv_idx:": choose,
    "torch.rand(...)": lambda score, b, h, q_idx, kv_idx: score + torch.rand(()),
    "big[q_idx, kv_idx].sum()": lambda score, b, h, q_idx, kv_idx: score + BIG[q_idx, kv_idx].sum(),
    "score.half()": lambda score, b, h, q_idx, kv_idx: score.half() * 2,
    "table[q_idx - kv_idx]": lambda score, b, h, q_idx, kv_idx: score + LINE[q_idx - kv_idx],
    "a captured float64": lambda score, b, h, q_idx, kv_idx: score - TIMES[q_idx] + TIMES[kv_idx],
    "float64 query": torch.float64,
    "a head dim above 256": 264,
}


def refusals() -> list[tuple[str, str]]:
    """Rows of the page's table: what is written, and the code."""
    return re.findall(r"^\| (.+?) \| ([XU]\d{3}) \|", (FOLDER / "from_flexattention.md").read_text(encoding="utf-8"), re.M)


def test_all_rows_of_the_refusals_are_tried() -> None:
    assert len(refusals()) == len(REFUSED)


@pytest.mark.parametrize(("written", "code"), refusals())
def test_what_the_page_says_is_refused_is_refused(written: str, code: str) -> None:
    (tried,) = (t for text, t in REFUSED.items() if text in written.replace("`", ""))
    dtype, head_dim = tried if isinstance(tried, torch.dtype) else torch.float16, tried if isinstance(tried, int) else 64
    q = torch.zeros(1, 1, 64, head_dim, dtype=dtype)
    with pytest.raises(cuir.CuirError) as caught:
        cuir.flex_attention(
            q, q, q, score_mod=tried if callable(tried) and not isinstance(tried, torch.dtype) else None, backend="interpret"
        )
    assert caught.value.diagnostics[0].code == code


# ---- words
def sentences(page: Path) -> list[str]:
    """Sentences of a page's prose, without code, tables and headings."""
    text = re.sub(r"^(?:```.*?^```|\|.*?|#.*?|<!--.*?-->)$", "\n\n", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    parts = [p for block in re.split(r"\n(?:\s*\n|\s*[*\d]+\.? )", text) for p in re.split(r"(?<=[.?!])\s+(?=\S)", block)]
    return [p for p in parts if p.strip()]


@pytest.mark.parametrize("page", PAGES, ids=[p.name for p in PAGES])
def test_sentences_are_short(page: Path) -> None:
    lengths = [len(s.split()) for s in sentences(page)]
    assert sum(lengths) < 18 * len(lengths)
    assert [s for s in sentences(page) if len(s.split()) > 25] == []


def test_the_pages_have_at_most_6000_words() -> None:
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in PAGES) <= 6000
