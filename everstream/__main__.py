"""`python -m everstream` is the `everstream` command."""

from everstream.cli import main

main()
