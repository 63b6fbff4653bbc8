"""What the Kafka source and sink share: connecting to the brokers, and errors that explain the fix.

confluent-kafka is an optional package. It is imported when a connector is created; if it is
missing, the error shows the command that installs it. Its settings may contain passwords: they
travel with the connector to the workers and are never shown.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from everstream.connectors.retry import Deadline
from everstream.errors import ConnectionLost, ConnectorError, EverstreamError, UserError
from everstream.extras import extra

ANSWER_S = 15.0
"""How long a broker may take to answer before it counts as unreachable."""
LOG = logging.getLogger("everstream.kafka")


def driver() -> Any:
    with extra("kafka"):
        import confluent_kafka
    return confluent_kafka


def administration() -> Any:
    with extra("kafka"):
        import confluent_kafka.admin
    return confluent_kafka.admin


@dataclass(frozen=True)
class Cluster:
    bootstrap: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def settings(self, **own: Any) -> dict[str, Any]:
        """Settings for a client: ours, with dots for the underscores, and the user's."""
        named = {name.replace("_", "."): value for name, value in own.items()}
        return {
            **named,
            "bootstrap.servers": self.bootstrap,
            "client.id": "everstream",
            # The client also reports its log errors by callback; we raise or log each of them once.
            "log_level": 2,
            **self.options,
            "logger": LOG,
        }

    def consumer(self, on_error: Callable[[Any], None] | None = None, **own: Any) -> Any:
        """A client that reads the partitions it is assigned, and joins no group."""
        named = {
            "group_id": "everstream",
            "enable_auto_commit": False,
            "enable_partition_eof": True,
        }
        called = {} if on_error is None else {"error_cb": on_error}
        try:
            return driver().Consumer({**self.settings(**{**named, **own}), **called})
        except driver().KafkaException as error:
            raise self.explained(error) from None

    def admin(self) -> Any:
        """An admin client; created for each query, because it holds threads and connections."""
        try:
            return administration().AdminClient(self.settings())
        except driver().KafkaException as error:
            raise self.explained(error) from None

    def explained(self, error: Any, about: str = "") -> EverstreamError:
        """The client's error as one that names the brokers and explains the fix."""
        kafka = driver()
        cause = error.args[0] if isinstance(error, kafka.KafkaException) else error
        code, text = cause.code(), " ".join(cause.str().split()).rstrip(".")
        codes = kafka.KafkaError
        where = f"Kafka at {self.bootstrap}"
        if code in (codes._AUTHENTICATION, codes.SASL_AUTHENTICATION_FAILED, codes._SSL):
            return ConnectorError(
                f"{where} denies access ({cause.name()}). Check the security settings in "
                "options={'security.protocol': ..., 'sasl.username': ...}."
            )
        if code in (codes._TRANSPORT, codes._ALL_BROKERS_DOWN, codes._RESOLVE, codes._TIMED_OUT):
            return ConnectionLost(
                f"{where} cannot be reached: {text}. Check that the brokers run, that the address "
                "is right and that the names they advertise (advertised.listeners) can be "
                "reached from here."
            )
        if code in (codes._INVALID_ARG, codes._CONFLICT):
            # The error quotes the value of a setting, and the value may be a secret.
            return UserError(
                f"{where}: the client rejects these settings. Check the names and values in "
                f"options={{...}}: {', '.join(sorted(self.options)) or 'none are given'}."
            )
        if code in (
            codes.TOPIC_AUTHORIZATION_FAILED,
            codes.GROUP_AUTHORIZATION_FAILED,
            codes.CLUSTER_AUTHORIZATION_FAILED,
        ):
            return UserError(f"{where}{about}: {text}. Grant the rights to this user.")
        kind = ConnectionLost if cause.retriable() else ConnectorError
        return kind(f"{where}{about}: {text} ({cause.name()}).")


def checked_options(
    options: Mapping[str, Any] | None, reserved: Mapping[str, str]
) -> dict[str, Any]:
    """The user's client settings; refuses those that a keyword sets."""
    given = dict(options or {})
    for name, instead in reserved.items():
        if name in given:
            raise UserError(f"options: '{name}' is set by Kafka(...) itself: {instead}.")
    return given


def checked_topics(topic: str | Sequence[str]) -> tuple[str, ...]:
    topics = (topic,) if isinstance(topic, str) else tuple(topic)
    if not topics or not all(isinstance(name, str) and name for name in topics):
        raise UserError(f"topic={topic!r}: give a topic, several, or a pattern like '^orders-.*'.")
    if len(set(topics)) < len(topics):
        raise UserError(f"topic={topic!r} names a topic twice.")
    if len(topics) > 1 and any(name.startswith("^") for name in topics):
        raise UserError("topic: give a pattern alone, not in a list; write '^(this|that)-.*'.")
    return topics


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
"""Errors for which a retry is useless."""
R = TypeVar("R")


def until_answered(
    once: Callable[[], R],
    cluster: Cluster,
    topic: str,
    patience_s: float,
    *,
    after_failure: Callable[[], None] = lambda: None,
    heard: Callable[[], Any] = lambda: None,
) -> R:
    """Retries `once` until the client raises nothing: brokers come and go, leaders move.

    `after_failure` is called before each retry, and before anything is raised. `heard` returns
    other errors of the client, which often explain more than a timeout does.
    """
    kafka, deadline = driver(), Deadline(patience_s, PAUSE_S)
    while True:
        try:
            return once()
        except kafka.KafkaException as error:
            after_failure()
            if error.args[0].name() in HOPELESS or not deadline.pause():
                raise cluster.explained(heard() or error, f", topic '{topic}'") from None
        except BaseException:
            after_failure()
            raise
