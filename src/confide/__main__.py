"""`python -m confide` is the same as `confide`."""

from .cli import main

main()
