"""`python -m everstream` is the `everstream` command."""

from everstream.cli.app import main

main()
