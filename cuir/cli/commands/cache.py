"""Command `cache`: the files in the cache folder."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ..completion import complete_cache
from ..options import Json
from ..output import print_json, stdout


def cache(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="one kind of files: kernels, cubins, verdicts, results, ptx or tuning", autocompletion=complete_cache, show_default=False
        ),
    ] = None,
    remove: Annotated[bool, typer.Option("--clear", help="remove these files; results of tuning only if KIND is tuning")] = False,
    as_json: Json = False,
) -> None:
    """Show or clear the files that earlier runs left: their number and size by kind, and the limit.

    Examples:
        cuir cache
        cuir cache cubins --clear
    """
    from ...caching import disk
    from ...text.diagnostics import CuirError
    from ..command_inputs import suggestion
    from ..tables import print_table

    kinds = [k for k in disk.KINDS if kind in (None, k.name)]
    if kind is not None and not kinds:
        names = [k.name for k in disk.KINDS]
        raise CuirError.of("U127", f"the cache folder has no files of kind `{kind}`", hint=suggestion(kind, names, "the kinds are"))
    folder, limit = disk.cache_dir(), disk.size_limit()
    rows: list[dict[str, Any]] = []
    for k in kinds:
        if remove and (k.evicted or kind == k.name):
            number, size = disk.clear(k)
        else:
            sizes = [status.st_size for _, status in k.files()]
            number, size = len(sizes), sum(sizes)
        rows.append({"kind": k.name, "files": number, "bytes": size, "key": k.key, "removed": remove and (k.evicted or kind == k.name)})
    if remove:
        disk.remove_leftovers()
    if as_json:
        print_json({"ok": True, "diagnostics": [], "folder": str(folder), "limit": limit, "kinds": rows})
        return
    stdout().print(f"{folder}, at most {limit / 2**20:g} MiB (CUIR_CACHE_LIMIT)", highlight=False, soft_wrap=True)
    columns = ("kind", "files", "MiB", "removed" if remove else "an entry is found by")
    cells = [
        (
            r["kind"],
            r["files"],
            f"{r['bytes'] / 2**20:.1f}",
            ("yes" if r["removed"] else f"no: cuir cache {r['kind']} --clear") if remove else r["key"],
        )
        for r in rows
    ]
    print_table("", columns, cells)
