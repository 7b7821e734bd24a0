"""`python -m cuir` is the command `cuir`."""

from .cli import main

if __name__ == "__main__":
    main()
