"""`everstream apps productivity` and `figures`."""

import typer


def register(apps: typer.Typer) -> None:
    pass
