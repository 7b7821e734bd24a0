"""Combinations of options: an option that another one makes meaningless is refused, never ignored."""

from __future__ import annotations

import typer

from ..text.diagnostics import CuirError


def list_given_options(context: typer.Context, *names: str) -> list[str]:
    """Return the options among these parameters that the command line gives, as they are written there."""
    sources = {name: context.get_parameter_source(name) for name in names}
    return [_spell_option(context, name) for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def only_with(context: typer.Context, needed: str, *names: str) -> None:
    """Refuse the options `names` without the parameter `needed`, which they depend on.

    Raises CuirError U100.
    """
    if list_given_options(context, needed):
        return
    for option in list_given_options(context, *names):
        spelling = _spell_option(context, needed)
        raise CuirError.of("U100", f"{option} is for {spelling}, which is not given", hint=f"add {spelling}, or leave out {option}")


def one_of(context: typer.Context, *names: str) -> str | None:
    """Return the one option that the command line gives among mutually exclusive ones, or None.

    Raises CuirError U100 for two of them.
    """
    present = list_given_options(context, *names)
    if len(present) > 1:
        raise CuirError.of(
            "U100",
            f"{present[0]} and {present[1]} are different jobs, found both",
            hint=f"leave out one of them: {present[0]} or {present[1]}",
        )
    return next((name for name in names if list_given_options(context, name)), None)


def not_beside(context: typer.Context, job: str, why: str, *names: str) -> None:
    """Refuse the options `names` together with the parameter `job`, which ignores them.

    `why` says what the job does instead. Raises CuirError U100.
    """
    for job_spelling in list_given_options(context, job):
        for option in list_given_options(context, *names):
            raise CuirError.of(
                "U100", f"{option} says nothing beside {job_spelling}, which {why}", hint=f"leave out {option}, or {job_spelling}"
            )


def _spell_option(context: typer.Context, name: str) -> str:
    """Return the longest spelling of an option (`--level`), or the name of an argument (`FILE`).

    The name is as the help shows it.
    """
    spelling = max((option for p in context.command.params if p.name == name for option in p.opts), key=len)
    return spelling if spelling.startswith("-") else spelling.upper()
