"""The `everstream` command (`app`). Each subcommand is a module of its own."""
