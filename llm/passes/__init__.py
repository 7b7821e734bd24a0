"""Passes: transfer, lift, tune. Each defines its requests and how an answer is judged."""
