"""Analyses over the tile IR: each takes a kernel or a role, changes nothing, and says what holds of its values."""
