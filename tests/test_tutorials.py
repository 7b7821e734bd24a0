"""Claims of docs/tutorials beside their blocks (tests/test_page_blocks.py)."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch

import cuir
from cuir.runtime.launch_description import describe_launch
from tests.page_blocks import FOLDER, all_blocks, find_block, read_blocks, reader_folder


def test_the_launch_from_cpp_is_what_the_description_says(tmp_path: Path) -> None:
    block = find_block("docs/tutorials/launch_your_kernel.md", "file", "launch.cpp")
    with reader_folder(block.page, tmp_path):
        launch = describe_launch(cuir.lower(cuir.check("rms_norm.cuir")))
    assert f"BLOCK = {launch.block}, SHARED = {launch.shared_bytes};" in block.text and f'"{launch.symbol}"' in block.text
    arguments = re.search(r"arguments\[\] = \{(.*?)\}", block.text)
    assert arguments
    assert [a.lower() for a in re.findall(r"&(\w+)", arguments[1])] == [
        re.sub(r"\.stride\(0\)", "_stride", p.name).lower() for p in launch.parameters
    ]
    (encoded,) = launch.maps
    assert encoded.dims == ("128", "M") and f"box[] = {{{encoded.box[0]}, {encoded.box[1]}}}" in block.text and encoded.swizzle == "128B"


# ---- from FlexAttention
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_the_changed_layer_computes_what_pytorch_computes(tmp_path: Path) -> None:
    (change,) = {b.change for b in all_blocks("console") if b.change is not None and b.change[0] == "attention.py"}
    results = []
    for number, diff in enumerate((None, change)):
        folder = tmp_path / str(number)
        folder.mkdir()
        with reader_folder(FOLDER / "from_flexattention.md", folder, diff), torch.no_grad():
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
    "query in float64": torch.float64,
    "a head dim above 576": 584,
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


# ---- names of files
@pytest.mark.parametrize("page", sorted(FOLDER.glob("*.md")), ids=lambda page: page.name)
def test_a_reader_sees_the_name_of_each_file(page: Path) -> None:
    text, ends = page.read_text(encoding="utf-8"), [0]
    for block in read_blocks(page):
        visible = re.sub(r"^<!--.*?-->$", "", text[ends[-1] : block.span[0]], flags=re.S | re.M)
        assert block.kind not in ("file", "gpu") or f"`{block.name}`" in visible
        ends.append(block.span[1])
