"""`python -m everstream` is the `everstream` command."""

from everstream_command import main

main()
