"""Command `explain`: the codes of errors."""

from __future__ import annotations

from typing import Annotated

import typer

from ..completion import complete_code
from ..options import Json
from ..output import make_styled_text, print_json, stdout


def explain(
    context: typer.Context,
    code: Annotated[
        str | None, typer.Argument(help="a code of an error, as in error[T111]", autocompletion=complete_code, show_default=False)
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="every code as markdown (docs/errors.md)")] = False,
    as_json: Json = False,
) -> None:
    """Explain the code of an error; without one, list all codes.

    Examples:
        cuir explain T111
    """
    from ...text import codes
    from ...text.diagnostics import CuirError
    from ..command_inputs import suggest_codes
    from ..options import not_beside
    from ..tables import print_table

    not_beside(context, "markdown", "prints every code as markdown", "code", "as_json")
    if code is not None:
        entry = codes.CODES.get(code.upper())
        if entry is None:
            raise CuirError.of("U107", f"no error has the code `{code}`", hint=suggest_codes(code))
        if as_json:
            print_json(
                {
                    "ok": True,
                    "diagnostics": [],
                    "code": entry.code,
                    "title": entry.title,
                    "family": codes.get_family(entry.code),
                    "help": entry.help,
                }
            )
        else:
            stdout().print(make_styled_text((entry.code, "bold"), f"  {entry.title}\n\n{entry.help}"))
    elif as_json:
        print_json(
            {"ok": True, "diagnostics": [], "codes": [{"code": c.code, "title": c.title, "help": c.help} for c in codes.CODES.values()]}
        )
    elif markdown:
        print(codes.render_markdown(), end="")
    else:
        for letter, words in codes.FAMILIES.items():
            print_table(words, ("code", "title"), [(c.code, c.title) for c in codes.CODES.values() if c.code.startswith(letter)])
