"""The `everstream` command (`app`). Each subcommand has its own module."""
