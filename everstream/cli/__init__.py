"""The `everstream` command. Each subcommand lives in a file of its own."""

from everstream.cli.app import app, main

__all__ = ["app", "main"]
