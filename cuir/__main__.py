"""Entry point of `python -m cuir`, which is the command `cuir`."""

from .cli import main

if __name__ == "__main__":
    main()
