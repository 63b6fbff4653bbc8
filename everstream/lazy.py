"""Packages whose names are loaded on first use, so that a program loads only what it needs."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: dict[str, Any], homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package.

    package: its globals. homes: module -> the names that the package has from it, between spaces;
    without any, the module itself, if it is one of the package's own.
    """
    name_of_package: str = package["__name__"]
    home = {name: module for module, names in homes.items() for name in names.split()}
    modules = {
        module.rpartition(".")[2]: module
        for module in homes
        if module.rpartition(".")[0] == name_of_package
    }

    def get(name: str) -> Any:
        if name in home:
            found = getattr(import_module(home[name]), name)
        elif name in modules:
            found = import_module(modules[name])
        else:
            raise AttributeError(f"module '{name_of_package}' has no attribute {name!r}")
        package[name] = found  # the next access does not come here
        return found

    return get, lambda: sorted({*package, *home, *modules})
