"""Asking Kafka until it answers: brokers come and go, and leaders move within seconds."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from everstream.connectors.kafka_client import Cluster, driver

PAUSE_S = 0.2
HOPELESS = (
    "TOPIC_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "SASL_AUTHENTICATION_FAILED",
    "INVALID_TRANSACTION_TIMEOUT",
    "MSG_SIZE_TOO_LARGE",
    "INVALID_RECORD",
    "INVALID_REPLICATION_FACTOR",
    "POLICY_VIOLATION",
    "UNSUPPORTED_VERSION",
    "_UNKNOWN_PARTITION",
    "_UNSUPPORTED_FEATURE",
    "_INVALID_ARG",
)
"""Errors that asking again does not change."""
R = TypeVar("R")


def patiently(
    once: Callable[[], R],
    cluster: Cluster,
    topic: str,
    patience_s: float,
    *,
    after_failure: Callable[[], None] = lambda: None,
    heard: Callable[[], Any] = lambda: None,
) -> R:
    """What `once` gives when the client at last raises nothing; explained, if that never comes.

    `after_failure` is called before the next try, and before anything is raised. `heard` gives
    what the client has said besides, which often tells more than that something took too long.
    """
    kafka, until_s = driver(), time.monotonic() + patience_s
    while True:
        try:
            return once()
        except kafka.KafkaException as error:
            after_failure()
            if error.args[0].name() in HOPELESS or time.monotonic() > until_s:
                raise cluster.explained(heard() or error, f", topic '{topic}'") from None
        except BaseException:
            after_failure()
            raise
        time.sleep(PAUSE_S)
