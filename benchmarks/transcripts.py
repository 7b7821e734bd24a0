"""Table of recorded transcripts in docs/models.md: `make docs`."""

from __future__ import annotations

import argparse
from pathlib import Path

from llm.transcript import Exchange, read_transcript

BEGIN, END = "<!-- transcripts: made by `make docs` -->\n", "<!-- end of transcripts -->\n"
FOLDER = Path(__file__).parent.parent / "llm/transcripts"


def table() -> str:
    """Return a row for each complete transcript: the verdicts of its answers, and all tokens, in thousands."""
    lines = ["| transcript | answers | tokens |", "|---|---|--:|"]
    for path in sorted(FOLDER.glob("*.jsonl")):
        transcript = read_transcript(path)
        if transcript.outcome is None:
            continue
        tokens = sum(e.answer.prompt_tokens + e.answer.completion_tokens for e in transcript.exchanges)
        answers = ", ".join(map(came, transcript.exchanges))
        lines.append(f"| [{path.stem}](../llm/transcripts/{path.name}) | {answers} | {tokens / 1000:.1f}k |")
    return "\n".join(lines) + "\n"


def came(e: Exchange) -> str:
    """Return the verdict on an answer, with the first code if it was refused."""
    codes = [d["code"] for d in e.verdict["diagnostics"]]
    return e.verdict["stage"] + (f" ({codes[0]})" if codes else "")


def with_table(page: str) -> str:
    """Return the page with the current table."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    path = parser.parse_args().page
    path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
