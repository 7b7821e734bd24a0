"""Extras of the package: each installed one is imported, and what lacks one says which it is."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from cuir.text.diagnostics import CuirError

ROOT = Path(__file__).parent.parent
EXTRAS = {
    name: [Requirement(r) for r in requirements]
    for name, requirements in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ].items()
}
MODULES = {  # of distributions that are imported by another name
    "cuda-bindings": "cuda.bindings",
    "nvidia-cuda-nvrtc": "nvidia",
    "nvidia-cuda-runtime": "nvidia",
    "nvidia-cutlass": "cutlass_library",
    "mkdocs-material": "material",
    "mkdocstrings-python": "mkdocstrings_handlers.python",
    "pymdown-extensions": "pymdownx",
    "PyQt6-WebEngine": "PyQt6.QtWebEngineWidgets",
    "pytest-xdist": "xdist",
}
PROGRAMS = ("ruff", "mypy")  # that are run, not imported


def test_extras_have_their_names() -> None:
    assert set(EXTRAS) == {"gpu", "nvrtc", "pycuda", "bench", "llm", "transformers", "testing", "site", "browser", "ray", "dev"}


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_what_is_installed_of_an_extra_is_imported(extra: str) -> None:
    missing = []
    for requirement in EXTRAS[extra]:
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(requirement.name)
            continue
        assert requirement.specifier.contains(version), f"{requirement.name} {version} is older than pyproject.toml asks"
        if requirement.name in PROGRAMS:
            assert (Path(sys.executable).parent / requirement.name).exists()
        else:
            importlib.import_module(MODULES.get(requirement.name, requirement.name))
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}; pip install cubridge[{extra}]")


def import_anew(name: str) -> None:
    sys.modules.pop(name, None)
    importlib.import_module(name)


def call(place: str, *arguments: object) -> Callable[[], object]:
    module, _, name = place.rpartition(".")
    return lambda: getattr(importlib.import_module(module), name)(*arguments)


# extra, modules that are missing, what needs them
NEEDS = [
    ("gpu", ("cuda", "cuda.bindings"), call("cuir.runtime.driver_api.driver")),
    ("gpu", ("cutlass_library",), call("cuir.runtime.nvcc.include_dir")),
    ("pycuda", ("pycuda", "pycuda.driver"), call("cuir.runtime.pycuda_loader.import_pycuda")),
    ("llm", ("litellm",), call("llm.client.library")),
    ("bench", ("matplotlib",), call("cuir.text.figures.load_pyplot", "cuir bench")),
    ("transformers", ("transformers",), call("cuir.integrations.transformers.register")),
    ("testing", ("hypothesis",), functools.partial(import_anew, "cuir.testing.strategies")),
]


@pytest.mark.parametrize(("extra", "modules", "need"), NEEDS, ids=[f"{extra} {modules[0]}" for extra, modules, _ in NEEDS])
def test_who_needs_a_missing_extra_names_it(
    monkeypatch: pytest.MonkeyPatch, extra: str, modules: tuple[str, ...], need: Callable[[], object]
) -> None:
    monkeypatch.delenv("CUTLASS_INCLUDE", raising=False)
    for name in ("llm.client.library", "cuir.runtime.pycuda_loader.import_pycuda"):
        module, _, function = name.rpartition(".")
        getattr(importlib.import_module(module), function).cache_clear()
    for name in modules:
        monkeypatch.setitem(sys.modules, name, None)
    strategies = sys.modules.get("cuir.testing.strategies")
    try:
        with pytest.raises(CuirError) as error:
            need()
    finally:
        if strategies is not None:
            sys.modules["cuir.testing.strategies"] = strategies
    (diagnostic,) = error.value.diagnostics
    assert diagnostic.code.startswith("U") and f"cubridge[{extra}]" in (diagnostic.hint or "")


def test_make_site_installs_the_extra() -> None:
    output = subprocess.run(["make", "-n", "site"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "'.[site]'" in output


def test_doctor_names_the_extra_of_each_package(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuir.runtime import environment

    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(environment.importlib.metadata, "version", absent)
    for finding, (package, extra, _) in zip(environment.inspect_packages(), environment.OPTIONAL, strict=True):
        assert finding.remedy == f"pip install cubridge[{extra}]"
        assert package in {r.name for r in EXTRAS[extra]}
