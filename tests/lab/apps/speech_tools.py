"""flite for tests, from Debian's package."""

import shutil

from tests.installing import install


def install_flite() -> None:
    """Skips where this machine gives us no way to install it; any other trouble is a failure."""
    if shutil.which("flite") is None:
        install("flite")
