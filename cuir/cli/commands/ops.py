"""Command `ops`: the primitives and operators of the language, from their table."""

from __future__ import annotations

from typing import Annotated

import typer

from ..completion import complete_op
from ..options import Json
from ..output import print_json, stdout


def ops(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(help="one entry: its name or how it is written", autocompletion=complete_op, show_default=False)
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="the whole reference as markdown (docs/reference.md)")] = False,
    as_json: Json = False,
) -> None:
    """List the primitives and operators of the language, or describe one.

    Examples:
        cuir ops
        cuir ops mbarrier.wait
    """
    from ...checking.rewrite_hints import describe_composition
    from ...text.diagnostics import CuirError
    from ..command_inputs import suggestion
    from ..options import not_beside
    from ..reference_pages import as_json as describe_entry
    from ..reference_pages import entries, families, in_short, places
    from ..reference_pages import markdown as make_page
    from ..tables import print_entry, print_table

    not_beside(context, "markdown", "prints the whole reference as markdown", "name", "as_json")
    entries_by_name = entries()
    if name is not None:
        chosen = [op for op in entries_by_name.values() if name in (op.name, op.written)]
        written = describe_composition(name)
        if not chosen and written is None:
            raise CuirError.of(
                "U106",
                f"no primitive or operator is called `{name}`",
                hint=suggestion(name, entries_by_name, "the table holds", [op.written for op in entries_by_name.values()]),
            )
        if not chosen and not as_json:
            stdout().print(f"{name} is no primitive: {written}", highlight=False, soft_wrap=True)
        elif as_json:
            print_json(
                {
                    "ok": True,
                    "diagnostics": [],
                    "entries": [describe_entry(op) | {"meaning": places(op.name)} for op in chosen],
                    **({} if chosen else {"instead": written}),
                }
            )
        else:
            for op in chosen:
                print_entry(op)
    elif as_json:
        print_json({"ok": True, "diagnostics": [], "entries": [describe_entry(op) for op in entries_by_name.values()]})
    elif markdown:
        print(make_page(), end="")
    else:
        for family, members in families().items():
            print_table(family, ("name", "meaning"), [(op.name, in_short(op)) for op in members])
