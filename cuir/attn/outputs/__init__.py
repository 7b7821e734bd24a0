"""Further outputs of the attention kernel, beside O and LSE, as data."""
