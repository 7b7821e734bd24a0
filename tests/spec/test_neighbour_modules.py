"""Modules beside a user's file: found while it is loaded, for its thread, and hidden from every other import."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import corpus
from cuir.spec import neighbour_modules
from cuir.spec.loading import import_file, load_any, load_specification
from cuir.text.diagnostics import CuirError

MASK = "def mask(b, h, q_idx, kv_idx):\n    return q_idx - kv_idx < SIZE\n"


@pytest.fixture(autouse=True)
def unchanged_modules() -> Iterator[None]:
    path, modules = list(sys.path), {n for n in sys.modules if not n.startswith("cuir_user_")}
    yield
    assert sys.path == path and neighbour_modules._folder.path is None
    remaining = {n for n in sys.modules if not n.startswith("cuir_user_")} - modules
    assert not {n for n in remaining if n.partition(".")[0] in {"model", "layers", "rules", "corpus_of_mine", "this"}}


def write(folder: Path, **files: str) -> Path:
    """Write modules by name (`_in_` names a folder) and return `rules.py`."""
    for name, text in files.items():
        file = folder.joinpath(*reversed(name.split("_in_"))).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder / "rules.py"


@pytest.mark.parametrize(
    ("text", "neighbours"),
    [
        ("from model import SIZE\n", {"model": "SIZE = 3\n"}),
        ("from layers.sizes import SIZE\n", {"sizes_in_layers": "SIZE = 3\n"}),
        (
            "import layers\nSIZE = layers.SIZE\n",
            {"__init___in_layers": "from .sizes import SIZE\n", "sizes_in_layers": "from model import SIZE\n", "model": "SIZE = 3\n"},
        ),
    ],
    ids=["module", "folder", "package"],
)
def test_a_file_imports_what_lies_beside_it(tmp_path: Path, text: str, neighbours: dict[str, str]) -> None:
    file = write(tmp_path, **neighbours | {"rules": f"OWN = 3\n{text}{MASK}"})
    assert load_specification(f"{file}:mask").mask_mod(0, 0, 5, 2) == (5 - 2 < 3)  # type: ignore[misc]
    assert import_file(file).SIZE == 3


def test_a_factory_may_import_too(tmp_path: Path) -> None:
    file = write(tmp_path, model="SIZE = 3\n", rules="def make():\n    import model\n    return lambda b, h, q, k: q - k < model.SIZE\n")
    assert load_specification(f"{file}:make").mask_mod(0, 0, 2, 0) is True  # type: ignore[misc]


def test_each_folder_has_modules_of_its_own_also_after_an_edit(tmp_path: Path) -> None:
    text = f"from model import SIZE\n{MASK}"
    files = [write(tmp_path / str(n), model=f"SIZE = {n}\n", rules=text) for n in (3, 44)]
    assert [import_file(f).SIZE for f in (*files, files[0])] == [3, 44, 3]
    (files[0].parent / "model.py").write_text("SIZE = 555\n")
    assert import_file(files[0]).SIZE == 555


def test_a_name_of_a_loaded_module_means_the_neighbour_for_the_file_alone(tmp_path: Path) -> None:
    assert sys.modules["corpus"] is corpus
    file = write(
        tmp_path,
        corpus="SIZE = 7\n",
        json="SIZE = 8\n",
        torch="raise SystemExit\n",
        rules="import corpus, json, torch\nfrom corpus import SIZE\n",
    )
    before = {n: m for n, m in sys.modules.items() if n.partition(".")[0] == "corpus"}
    module = import_file(file)
    assert module.SIZE == 7 and module.json is json and hasattr(module.torch, "Tensor")
    assert {n: m for n, m in sys.modules.items() if n.partition(".")[0] == "corpus"} == before


def test_a_failing_import_leaves_nothing(tmp_path: Path) -> None:
    file = write(tmp_path, model="x = 1\n", layers="import model\n1 / 0\n", rules="import layers\n")
    with pytest.raises(CuirError, match="ZeroDivisionError"):
        import_file(file)


def test_other_threads_do_not_see_them(tmp_path: Path) -> None:
    entered, exited = threading.Event(), threading.Event()
    file = write(tmp_path, this_neighbour="SIZE = 3\n", rules="import threading\nimport hold_on\n")
    (tmp_path / "hold_on.py").write_text(
        "from cuir_test_events import entered, left\nentered.set()\nassert left.wait(10)\nimport this_neighbour\n"
    )
    events = type(sys)("cuir_test_events")
    events.entered, events.left = entered, exited  # type: ignore[attr-defined]
    sys.modules["cuir_test_events"] = events
    try:
        loading = threading.Thread(target=import_file, args=(file,))
        loading.start()
        assert entered.wait(10)
        with pytest.raises(ModuleNotFoundError):
            __import__("this_neighbour")
        exited.set()
        loading.join()
        assert "this_neighbour" not in sys.modules and "hold_on" not in sys.modules
    finally:
        del sys.modules["cuir_test_events"]


def test_threads_that_load_files_at_once_get_their_own_neighbours(tmp_path: Path) -> None:
    text = "import time\nimport first\ntime.sleep(0.01)\nimport second\nSIZES = first.SIZE, second.SIZE\n"
    files = [write(tmp_path / str(n), first=f"SIZE = {n}\n", second=f"SIZE = {n}\n", rules=text) for n in range(4)]
    values: dict[int, object] = {}
    threads = [threading.Thread(target=lambda n=n, f=f: values.update({n: import_file(f).SIZES})) for n, f in enumerate(files)]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == {n: (n, n) for n in range(4)}


def test_a_folder_on_the_path_is_left_to_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, on_the_path="class Layer: ...\n", rules="from on_the_path import Layer\n")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        import on_the_path  # type: ignore[import-not-found]

        assert import_file(file).Layer is on_the_path.Layer and sys.modules.pop("on_the_path") is on_the_path


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import no_module_of_that_name\n", "PYTHONPATH=. adds the current folder"),
        ("from .model import SIZE\n", "write `import module`"),
        ("def reference(q):\n    return 1\n\ndef make():\n    import no_module_of_that_name\n", "import at its top"),
    ],
)
def test_the_hint_says_where_modules_are_found(tmp_path: Path, text: str, says: str) -> None:
    file = write(tmp_path, model="SIZE = 3\n", rules=text)
    with pytest.raises(CuirError) as caught:
        load_any(f"{file}:make" if "make" in text else str(file))
    result = caught.value.diagnostics[0]
    assert result.code == "X113" and says in (result.hint or "") and result.span is not None
