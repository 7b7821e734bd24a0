"""Which options of a command go together: one that another leaves without a meaning is refused, never ignored in silence. Owns no option."""

from __future__ import annotations

import typer

from ..text.diagnostics import CuirError


def asked_for(context: typer.Context, *names: str) -> list[str]:
    """The options among these parameters of the command that its command line gives, as they are written there."""
    sources = {name: context.get_parameter_source(name) for name in names}
    return [_written(context, name) for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def only_with(context: typer.Context, needed: str, *names: str) -> None:
    """Raises CuirError U100 for an option that says nothing without the parameter `needed`, which is not given."""
    if asked_for(context, needed):
        return
    for option in asked_for(context, *names):
        what = _written(context, needed)
        raise CuirError.of("U100", f"{option} is for {what}, which is not given", hint=f"add {what}, or leave out {option}")


def one_of(context: typer.Context, *names: str) -> str | None:
    """The one parameter of these, each of which does another job, that is given. Raises CuirError U100 for two of them."""
    given = asked_for(context, *names)
    if len(given) > 1:
        raise CuirError.of(
            "U100", f"{given[0]} and {given[1]} are different jobs, found both", hint=f"leave out one of them: {given[0]} or {given[1]}"
        )
    return next((name for name in names if asked_for(context, name)), None)


def not_beside(context: typer.Context, job: str, why: str, *names: str) -> None:
    """Raises CuirError U100 for an option that says nothing beside the parameter `job`, if that is given; why: what the job does instead."""
    for job_spelling in asked_for(context, job):
        for option in asked_for(context, *names):
            raise CuirError.of(
                "U100", f"{option} says nothing beside {job_spelling}, which {why}", hint=f"leave out {option}, or {job_spelling}"
            )


def _written(context: typer.Context, name: str) -> str:
    """The longest of the spellings of an option; an argument as its help has it."""
    spelling = max((option for p in context.command.params if p.name == name for option in p.opts), key=len)
    return spelling if spelling.startswith("-") else spelling.upper()
