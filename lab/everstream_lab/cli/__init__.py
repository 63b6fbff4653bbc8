"""The commands of the laboratory, which `everstream` finds through an entry point."""

import typer


def register(app: typer.Typer) -> None:
    """Add `bench`, `apps`, `model` and `reproduce` to the `everstream` command."""
    from everstream_lab.cli import (
        apps_exec,
        apps_reports,
        bench_connectors,
        bench_protocols,
        bench_transactions,
        model,
        reproduce,
    )
    from everstream_lab.cli.apps import apps
    from everstream_lab.cli.bench import bench

    bench_transactions.register(bench)
    bench_protocols.register(bench)
    bench_connectors.register(bench)
    app.add_typer(bench, name="bench")
    apps_exec.register(apps)
    apps_reports.register(apps)
    app.add_typer(apps, name="apps")
    model.register(app)
    reproduce.register(app)
