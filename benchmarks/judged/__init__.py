"""Solutions of which the verdict is known, for `cuir judge`: right ones, wrong ones, and cheats that public write-ups list."""
