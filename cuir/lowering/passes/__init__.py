"""Passes over the tile IR: each file is one, `run(kernel)`, which changes the IR in place and keeps it valid. Order: pipeline.py."""
