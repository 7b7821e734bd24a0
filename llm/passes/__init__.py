"""The passes: transfer, lift, tune. Each says what is asked for and how an answer is judged."""
