"""What commands take where nothing is said. Imports nothing, as `--help` shows it."""

EXPERT = "flash_fwd_sm90"
