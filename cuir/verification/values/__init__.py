"""Values of inputs: how they are drawn, special ones, and numbers in messages."""
