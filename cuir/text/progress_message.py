"""Messages of work under way that also say which share of it is done."""

from __future__ import annotations


class ProgressMessage(str):
    """Text for people, with the share of the work that is done, 0 to 1.

    A plain string says nothing about the share.
    """

    share: float

    def __new__(cls, text: str, share: float) -> ProgressMessage:
        message = super().__new__(cls, text)
        message.share = min(max(share, 0.0), 1.0)
        return message


def get_share(message: str) -> float | None:
    """Return the share that a message tells, None for a plain string."""
    return message.share if isinstance(message, ProgressMessage) else None
