"""The list of commands, in the order of the help, and the options of `cuir` itself."""

from __future__ import annotations

from typing import Annotated

import typer

from .commands.bench import bench
from .commands.bridge import bridge
from .commands.cache import cache
from .commands.check import check
from .commands.corpus import corpus
from .commands.eval import evaluate
from .commands.explain import explain
from .commands.lift import lift
from .commands.lower import lower
from .commands.mutate import mutate
from .commands.ops import ops
from .commands.run import run
from .commands.show import show
from .commands.transfer import transfer
from .commands.tune import tune
from .commands.verify import verify

app = typer.Typer(
    name="cuir",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(requested: bool) -> None:
    """Print the version and exit, if requested."""
    if requested:
        import cuir

        print(f"cuir {cuir.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version and exit")] = False,
) -> None:
    """CuIR: expert GPU kernels, changed to new attention variants, tested on a CPU under many schedules, compiled for Hopper."""


for command in (check, show, ops, explain, corpus, verify, lower, run, bridge, transfer, lift, mutate, tune, bench, cache):
    app.command()(command)
app.command("eval")(evaluate)
