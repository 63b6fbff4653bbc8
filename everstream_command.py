"""Starts the `everstream` command.

Outside the package, so that Ctrl-C ends the command without a traceback while it loads as well.
"""

import signal
import sys

INTERRUPTED = 128 + signal.SIGINT


def main() -> None:
    try:
        from everstream.cli.app import main as command

        command()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        # While Python exits, a further Ctrl-C ends the process at once.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
