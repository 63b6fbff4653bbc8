"""What a run says, through Python's `logging`: the logger `everstream`, with the pipeline's name in
each record; and a formatter that makes each record a line of JSON, with operator and shard."""

import json
import logging
import sys

from everstream.engine.reporting.listener import Listener

LOGGER = "everstream"
FIELDS = ("pipeline", "operator", "shard", "worker")

logging.getLogger(LOGGER).addHandler(logging.NullHandler())  # who has set up nothing sees nothing


class Logging(Listener):
    """Logs what is said of a run."""

    def __init__(self, pipeline: str) -> None:
        self._logger = logging.getLogger(LOGGER)
        self._where = {"pipeline": pipeline, "operator": None, "shard": None, "worker": None}

    def note(self, text: str, warning: bool) -> None:
        level = logging.WARNING if warning else logging.INFO
        self._logger.log(level, "%s", text, extra=self._where)


class JsonFormatter(logging.Formatter):
    """One line of JSON for each record."""

    def format(self, record: logging.LogRecord) -> str:
        said = {
            "at": round(record.created, 3),
            "level": record.levelname,
            "logger": record.name,
            "text": record.getMessage(),
            **{field: getattr(record, field, None) for field in FIELDS},
        }
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return json.dumps(said)


def log_as_json() -> None:
    """From now on all that is logged in this process comes out as lines of JSON, on standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    for noisy in ("py4j", "asyncio", "uvicorn"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
