"""The CuIR twins of faults in other tools' languages: a change that does not apply is said, and the answer names the code and the question."""

import shutil
import sys
from pathlib import Path

import pytest

import corpus
from benchmarks.other_tools.twins import answer, with_changes


def test_a_change_that_does_not_apply_is_said() -> None:
    assert with_changes("a b a", (("a", "c"), ("c b", "d"))) == "d c"
    with pytest.raises(SystemExit, match="does not hold"):
        with_changes("a b", (("a", "x"), ("a", "y")))


@pytest.mark.thorough
def test_the_answer_names_code_and_question() -> None:
    cuir = shutil.which("cuir", path=str(Path(sys.executable).parent))
    if cuir is None:
        pytest.skip("the command is not installed beside this Python")
    text = corpus.faulty()["clean_pipeline"]
    wrong = with_changes(text, (("                full[s].wait(phase)\n", ""),))
    assert answer(cuir, wrong, "def reference(x):\n    return x + x") == "refused: R401 (schedules)"
