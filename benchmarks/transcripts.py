"""The table of recorded transcripts in docs/models.md: `make docs`."""

from __future__ import annotations

import argparse
from pathlib import Path

from llm.transcript import Exchange, Transcript, read_transcript

BEGIN, END = "<!-- transcripts: made by `make docs` -->\n", "<!-- end of transcripts -->\n"
FOLDER = Path(__file__).parent.parent / "llm/transcripts"


def table() -> str:
    """A row for each transcript that came to its end: what was asked for, how each answer was judged then, what it took."""
    lines = ["| transcript | job | answers | tokens asked, answered | model, s |", "|---|---|---|---|---|"]
    for path in sorted(FOLDER.glob("*.jsonl")):
        told = read_transcript(path)
        if told.outcome is None:
            continue
        tokens = [sum(getattr(e.answer, kind) for e in told.exchanges) for kind in ("prompt_tokens", "completion_tokens")]
        lines.append(
            f"| [{path.stem}](../llm/transcripts/{path.name}) | {job(told)} | {', '.join(map(came, told.exchanges))} | {tokens[0]:,}, {tokens[1]:,} "
            f"| {sum(e.answer.seconds for e in told.exchanges):.0f} |"
        )
    return "\n".join(lines) + "\n"


def job(told: Transcript) -> str:
    """What was asked for."""
    task = told.task
    if task["pass"] == "transfer":
        return f"transfer {task['origin']} to {task['to']}"
    return f"lift {Path(task['source']).name}" if task["pass"] == "lift" else f"tune {task['target']}"


def came(e: Exchange) -> str:
    """The verdict on an answer, with the first code if it was refused."""
    codes = [d["code"] for d in e.verdict["diagnostics"]]
    return e.verdict["stage"] + (f" ({codes[0]})" if codes else "")


def with_table(page: str) -> str:
    """The page with the table as it is now."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    path = parser.parse_args().page
    path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
