"""Passes that change the tile IR in place and keep it valid, a module each; `pipeline` orders them."""
