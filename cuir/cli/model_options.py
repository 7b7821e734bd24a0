"""Options of commands that ask a model: its name, what it may spend, and where exchanges are kept."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..text.diagnostics import CuirError

if TYPE_CHECKING:
    from llm.budget import Budget
    from llm.messages import Asks
    from llm.transcript import Recorder


def _more_than_nothing(usd: float | None) -> float | None:
    """Check a budget. Raises CuirError U100 unless it is positive."""
    if usd is not None and not usd > 0:
        raise CuirError.of(
            "U100", f"--budget is more than 0 US dollars, found {usd:g}: nothing could be asked", hint="leave --budget out for no limit"
        )
    return usd


ASKING = "Asking a language model"  # panel of the help
MODEL = "CUIR_MODEL"  # the variable that names the model to ask where --model does not
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="PROVIDER/NAME",
        help="the model to ask, as litellm names it",
        show_default=f"the variable {MODEL}",
        rich_help_panel=ASKING,
    ),
]
Samples = Annotated[
    int, typer.Option("-k", "--samples", min=1, max=64, metavar="N", help="conversations that are led side by side", rich_help_panel=ASKING)
]
Attempts = Annotated[
    int,
    typer.Option("--attempts", min=1, metavar="N", help="answers of one conversation: the first and its repairs", rich_help_panel=ASKING),
]
Money = Annotated[
    float | None,
    typer.Option(
        "--budget",
        min=0,
        metavar="USD",
        help="US dollars to spend, more than 0",
        show_default=False,
        callback=_more_than_nothing,
        rich_help_panel=ASKING,
    ),
]
Tokens = Annotated[
    int | None,
    typer.Option("--tokens", min=1, metavar="N", help="tokens to spend, asked and answered", show_default=False, rich_help_panel=ASKING),
]
Temperature = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        min=0,
        max=2,
        metavar="T",
        help="temperature of the model, 0 to 2",
        show_default="the provider's",
        rich_help_panel=ASKING,
    ),
]
Timeout = Annotated[float, typer.Option("--timeout", min=1, metavar="SECONDS", help="time to wait for one answer", rich_help_panel=ASKING)]
Record = Annotated[
    Path | None,
    typer.Option("--record", metavar="FILE", help="write every exchange to this file", show_default=False, rich_help_panel=ASKING),
]
Replay = Annotated[
    Path | None,
    typer.Option(
        "--replay", metavar="FILE", help="take the answers from a file that --record wrote", show_default=False, rich_help_panel=ASKING
    ),
]
Cache = Annotated[
    Path | None,
    typer.Option(
        "--cache", metavar="FOLDER", help="a folder for answers: the same request is asked once", show_default=False, rich_help_panel=ASKING
    ),
]


@dataclass(frozen=True)
class Asking:
    """Source of answers, its budget, and the recorder of exchanges."""

    asks: Asks
    budget: Budget
    recorder: Recorder | None


@dataclass(frozen=True)
class ModelOptions:
    """Values of the options of this module, as the command line gave them."""

    model: str | None
    record: Path | None
    replay: Path | None
    cache: Path | None
    temperature: float | None
    timeout: float
    money: float | None
    tokens: int | None


def open_model(task: Mapping[str, object], options: ModelOptions, withheld: bool = False) -> Asking:
    """Return the model of --model or CUIR_MODEL, or a transcript.

    `task` describes the request for the record, which has only hashes of it if `withheld`. Raises CuirError U601, U606.
    """
    from llm.budget import Budget
    from llm.client import Client, library
    from llm.transcript import Recorder, Replayed

    from .command_inputs import check_output_path

    asks: Asks
    record, replay = options.record, options.replay
    if record is not None:
        check_output_path(record, [replay])
    if replay is not None:
        if options.model is not None:
            raise CuirError.of("U100", "--replay takes the answers from a file, so it takes no --model")
        asks = Replayed(replay, task=task)
    else:
        asks = Client(find_model_name(options.model), options.temperature, timeout_s=options.timeout, cache=options.cache)
        library()  # raises early if it is not installed
    recorder = Recorder(record, task, asks.model, withheld) if record is not None else None
    return Asking(asks, Budget(usd=options.money, tokens=options.tokens), recorder)


def find_model_name(model: str | None) -> str:
    """Return the model's name. Raises CuirError U601, which says how to name one."""
    name = model or os.environ.get(MODEL)
    if not name:
        raise CuirError.of(
            "U601",
            "no model is configured",
            hint=f"--model PROVIDER/NAME or the variable {MODEL}, for example anthropic/claude-sonnet-4-5, with the provider's key in the environment "
            "(ANTHROPIC_API_KEY, OPENAI_API_KEY, ...); a model of your own at an address: --model openai/NAME and OPENAI_API_BASE",
        )
    return name
