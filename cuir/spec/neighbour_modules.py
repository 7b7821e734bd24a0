"""Import of modules beside a user's file, as `python FILE` finds them.

They are found for as long as the file is loaded.

`sys.path` serves all threads, so it stays as it is: a finder looks into the folder for the thread that loads the file.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import inspect
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

_OURS = frozenset({"cuir", "torch", "numpy", *sys.stdlib_module_names})  # never replaced, whatever lies beside the file
_PathFinder = importlib.machinery.PathFinder
_lock = threading.RLock()  # names of modules serve all threads: one file is loaded at a time


class _Folder(threading.local):
    """Folder into which the imports of this thread look first, and names of modules found there."""

    def __init__(self) -> None:
        self.path: str | None = None
        self.names: set[str] = set()


_folder = _Folder()


class _NeighbourFinder:
    """Finder of top-level modules in the folder of the file that this thread loads."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if _folder.path is None or path is not None or name in sys.builtin_module_names:
            return None
        spec = _PathFinder.find_spec(name, [_folder.path, *sys.path])  # a package elsewhere precedes a folder without __init__.py
        if spec is None or not _is_within(_folder.path, spec.origin, spec.submodule_search_locations):
            return None
        if not _is_installed(spec):
            _folder.names.add(name)
        return spec


@contextlib.contextmanager
def find_neighbours(file: Path) -> Iterator[None]:
    """Let imports of this thread find modules in the folder of `file` first.

    Afterwards `sys.modules` has none of their names, so that they hide no other module, and the next file finds its own.
    """
    folder = os.path.dirname(os.path.realpath(file))
    if folder == _folder.path or any(os.path.realpath(p) == folder for p in sys.path):
        yield
        return
    with _lock:
        if _NeighbourFinder not in sys.meta_path:
            sys.meta_path.insert(0, _NeighbourFinder)  # pytest's finder of modules to rewrite would be earlier
        outer = _folder.path, _folder.names
        hidden = _remove_modules(_list_hidden(folder))
        _folder.path, _folder.names = folder, set()
        try:
            yield
        finally:
            names = _folder.names
            _folder.path, _folder.names = outer
            _remove_modules(names)
            sys.modules.update(hidden)


def describe_missing_module(error: BaseException) -> str | None:
    """Return a hint for an exception of an import in a user's file, or None for another exception."""
    if isinstance(error, ModuleNotFoundError):
        return "modules are found beside the file while it is loaded, so import at its top; and on PYTHONPATH: PYTHONPATH=. adds the current folder"
    if isinstance(error, ImportError) and "relative import" in str(error):
        return "the file is loaded as `python FILE` loads it, in no package: write `import module` of a module beside it"
    return None


def _list_hidden(folder: str) -> set[str]:
    """List loaded modules from elsewhere whose names belong to modules in a folder."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        names = {e.name if os.path.isfile(os.path.join(e.path, "__init__.py")) else inspect.getmodulename(e.name) for e in entries}
        loaded = {n for n in names if n is not None and n in sys.modules} - _OURS
        return {n for n in loaded if not _is_within(folder, getattr(sys.modules[n], "__file__", None), None)}
    return set()


def _remove_modules(names: set[str]) -> dict[str, ModuleType]:
    """Remove modules and their submodules from `sys.modules`; return them."""
    removed = [n for n in list(sys.modules) if n.partition(".")[0] in names] if names else []
    return {n: module for n in removed if (module := sys.modules.pop(n, None)) is not None}


def _is_installed(spec: importlib.machinery.ModuleSpec) -> bool:
    """Return True for a module that all imports of this process find in the same place.

    An editable installation is such a module.
    """
    finders = [f for f in sys.meta_path if f is not _NeighbourFinder and hasattr(f, "find_spec")]
    specs = (f.find_spec(spec.name, None) for f in finders)
    return any(candidate is not None and candidate.origin is not None and candidate.origin == spec.origin for candidate in specs)


def _is_within(folder: str, origin: str | None, locations: Sequence[str] | None) -> bool:
    """Return True for a module of a file in the folder, or a package in a folder of it."""
    places = [os.path.dirname(p) for p in locations] if locations else [os.path.dirname(origin or "")]
    return any(os.path.realpath(p) == folder for p in places if p)


__all__ = ["describe_missing_module", "find_neighbours"]
