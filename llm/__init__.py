"""Passes that ask a language model: lift, transfer, tune. None exists yet."""
