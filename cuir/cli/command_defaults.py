"""Default values of commands. Imports nothing, as `--help` shows it."""

EXPERT = "flash_fwd_sm90"
