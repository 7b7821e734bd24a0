"""CuIR side of the tables in this folder: a program with a fault, and the answer of `cuir verify`.

The environments of the other tools need nothing of the project.
"""

import json
import subprocess
import tempfile
from pathlib import Path

CORPUS = Path(__file__).parents[2] / "corpus"
Changes = tuple[tuple[str, str], ...]


def with_changes(text: str, changes: Changes) -> str:
    """Replace each pair's first string, which must be present, by its second."""
    for old, new in changes:
        if old not in text:
            raise SystemExit(f"the twin does not hold {old!r}")
        text = text.replace(old, new)
    return text


def answer(cuir: str, text: str, against: str, *options: str) -> str:
    """Return the verdict of `cuir verify`: the code and the stage of the first fault, or that all passed.

    `against` is a variant's name, or the text of a function `reference`. A program that passes level quick is verified
    again under every schedule.
    """
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "twin.cuir")
        program.write_text(text, encoding="utf-8")
        if "reference" in against:
            Path(folder, "expected.py").write_text(f"import torch\n\n\n{against}\n", encoding="utf-8")
            against = str(Path(folder, "expected.py"))
        for how in ((), ("--exhaustive",)):
            command = [cuir, "verify", str(program), "--against", against, *options, *how, "--json"]
            result = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
            if not result["ok"]:
                failed = [stage["name"] for stage in result.get("verification", {}).get("stages", []) if stage["verdict"] == "failed"]
                place = "every schedule" if how else failed[0] if failed else "well-formed"
                return f"refused: {result['diagnostics'][0]['code']} ({place})"
    return "passed"
