"""The pages are true: links lead somewhere, commands exist, tables are those of what they describe. Their blocks: tests/test_page_blocks.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import cuir
from cuir.cli import run as run_command
from tests.page_blocks import PAGES, ROOT, find_block, read_commands, read_visible

LINK = re.compile(r"\]\(([^)#]+)")


@pytest.mark.sweep
@pytest.mark.usefixtures("few_problems")
@pytest.mark.parametrize("name", ["window", "capped"])
def test_the_variants_of_the_page_are_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (command,) = (c for c in read_commands(find_block("docs/variants.md", "shell").text) if f"mine.py:{name}" in c)
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(find_block("docs/variants.md", "file", "mine.py").text, encoding="utf-8")
    assert run_command([*command.split()[1:], "--no-compile", "--no-run", "--head-dim", "64", "-c", "BM=64,BN=64"]) == 0
    assert (tmp_path / "out" / name / f"{name}.cuir").is_file()


def test_the_table_of_variants_is_what_the_corpus_has() -> None:
    from benchmarks.variants import with_table

    page = (ROOT / "docs/variants.md").read_text(encoding="utf-8")
    assert with_table(page) == page, "make docs"


def test_the_table_of_transcripts_is_what_was_recorded() -> None:
    from benchmarks.transcripts import with_table

    page = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    assert with_table(page) == page, "make docs"


@pytest.mark.parametrize("page", PAGES, ids=[p.name for p in PAGES])
def test_links_lead_to_files(page: Path) -> None:
    missing = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link and not (page.parent / link).exists()]
    assert not missing


def anchors_of(page: Path) -> set[str]:
    """Anchors of a page: its headings as GitHub spells them, and its `<a id=...>`."""
    text = page.read_text(encoding="utf-8")
    headings = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", h) for h in re.findall(r"^#+ (.*)$", text, re.M))
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings} | set(re.findall(r'<a id="([^"]+)"', text))


@pytest.mark.parametrize("page", PAGES, ids=[p.name for p in PAGES])
def test_anchors_of_links_exist(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s#]*)#([^)\s]+)\)", page.read_text(encoding="utf-8"))
    targets = [((page.parent / path).resolve() if path else page, anchor) for path, anchor in links if "://" not in path]
    assert not [f"{path.name}#{anchor}" for path, anchor in targets if path.suffix == ".md" and anchor not in anchors_of(path)]


@pytest.mark.parametrize("page", PAGES, ids=[p.name for p in PAGES])
def test_commands_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    text = page.read_text(encoding="utf-8")
    for command in set(re.findall(r"(?:^|`)cuir ([a-z]+)", text, re.M)):
        assert run_command([command, "--help"]) == 0, command
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.M)) <= set(targets)


def test_names_of_the_glossary_are_in_their_files() -> None:
    page = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]+ \| [^|]+ \|([^|]*)\| ([^|]+) \|$", page, re.M)
    rows = [(names, files) for names, files in rows if files != "file"]
    assert len(rows) > 40
    for names, files in rows:
        paths = [ROOT / path for path in re.findall(r"`([^`]+)`", files)]
        assert paths and all(path.exists() for path in paths), files
        sources = [f for path in paths for f in (path.rglob("*.py") if path.is_dir() else [path])]
        text = "\n".join(f.read_text(encoding="utf-8") for f in sources)
        for name in re.findall(r"`([A-Za-z_]\w*)`", names):
            assert re.search(rf"\b{name}\b", text), f"{name} is not in {files}"


COMMANDS = (
    "check",
    "show",
    "ops",
    "explain",
    "corpus",
    "verify",
    "lower",
    "run",
    "bridge",
    "transfer",
    "port",
    "lift",
    "mutate",
    "tune",
    "bench",
    "eval",
)


def test_what_is_sampled_is_called_tested(capsys: pytest.CaptureFixture[str]) -> None:
    """Verification tries some schedules and problems: neither a page nor the help of a command calls that a proof."""
    word = re.compile(r"\bprov(?:e[nsd]?|ing)\b|\bproofs?\b|\bfree of races\b", re.I)
    texts = {page.name: page.read_text(encoding="utf-8") for page in PAGES} | {
        "pyproject": (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    }
    texts |= {page.name: page.read_text(encoding="utf-8") for page in (ROOT / "llm/prompts").glob("*.md")}
    for command in ("", *COMMANDS):
        assert run_command([*command.split(), "--help"]) == 0
        texts[f"cuir {command} --help"] = capsys.readouterr().out
    results = {name: word.findall(text) for name, text in texts.items() if word.search(text)}
    assert not results


def test_reports_say_in_how_many_runs_schedules_were_tested() -> None:
    report = cuir.verify(ROOT / "corpus/programs/gemm.cuir", ROOT / "corpus/functions/gelu_gemm.py", consts={"BM": 64, "BN": 64}, seeded=0)
    (schedules,) = (s for s in report.stages if s.name == "schedules")
    assert report.ok and report.runs >= 20 and schedules.reason.startswith(f"{report.runs} runs under different schedules")
    assert report.as_json()["runs"] == report.runs and f"{report.runs} runs" in repr(report)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(r"\*\*tested on a CPU\*\*.*?more than a hundred runs under different schedules", readme, re.S)
    assert "Exit code 130: interrupted" in readme
    assert len(read_visible(ROOT / "README.md").split()) <= 700, "the README is what a user reads first"
