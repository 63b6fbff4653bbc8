"""`everstream annotate`: show the pipeline that annotated code becomes, as a program."""

from typing import Annotated

import typer

from everstream.cli.runs.command import Arguments
from everstream.cli.say import errors_in_one_line
from everstream.errors import UserError


def register(app: typer.Typer) -> None:
    app.command("annotate")(annotate)


def annotate(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FUNCTION",
            help="FILE.py for all functions with @es.annotated; FILE.py:NAME or module:NAME for one.",
        ),
    ],
    arguments: Arguments = None,
) -> None:
    """Show the pipeline that an @es.annotated function becomes, as readable Python.

    The program has the source, the stages with their inputs and outputs (including those that were
    inferred), their state and how they are connected. If you give arguments, you can save the
    program beside the file and run it unchanged. Does not start Spark.

    Example: everstream annotate primes.py:main -- limit=1000 > primes_pipeline.py

    Exit codes: 0 shown; 2 wrong usage, or a mistake in the annotations, which is reported.
    """
    with errors_in_one_line():
        typer.echo(shown(target, tuple(arguments or ())), nl=False)


def shown(target: str, arguments: tuple[str, ...]) -> str:
    """The programs of the functions that `target` names."""
    from everstream.annotations import AnnotatedFunction
    from everstream.annotations.printing import printed
    from everstream.cli.runs.finding import load_module, parsed

    module, place, name = load_module(target)
    functions = {
        key: value for key, value in vars(module).items() if isinstance(value, AnnotatedFunction)
    }
    if name is not None:
        if name not in functions:
            known = ", ".join(functions) or "none"
            raise UserError(f"{place} has no annotated function '{name}'; there are: {known}.")
        functions = {name: functions[name]}
    if not functions:
        raise UserError(f"{place} has no function with @es.annotated.")
    if arguments and len(functions) > 1:
        choices = " or ".join(f"{place}:{key}" for key in functions)
        raise UserError(f"which function are these arguments for? Say {choices}.")
    texts = []
    for function in functions.values():
        complete = bool(arguments) or not function.program.parameters
        texts.append(printed(function, parsed(function, arguments) if complete else None))
    return "\n\n".join(texts)
