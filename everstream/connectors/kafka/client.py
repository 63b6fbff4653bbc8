"""Kafka, what source and sink share: how to reach the brokers, and errors that say what to do.

confluent-kafka is an optional package: it is imported when a connector is made, and missed with
the command that installs it. Its settings may hold passwords: they travel with the connector to
the workers and are shown nowhere.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from everstream.connectors.retry import Deadline
from everstream.errors import ConnectionLost, ConnectorError, EverstreamError, UserError
from everstream.extras import extra

ANSWER_S = 15.0
"""How long a broker may take to answer before it counts as out of reach."""
LOG = logging.getLogger("everstream.kafka")


def driver() -> Any:
    """The confluent_kafka module, or a UserError that says how to install it."""
    with extra("kafka"):
        import confluent_kafka
    return confluent_kafka


def administration() -> Any:
    """Its part that asks brokers about topics and offsets."""
    with extra("kafka"):
        import confluent_kafka.admin
    return confluent_kafka.admin


@dataclass(frozen=True)
class Cluster:
    """Where the brokers are, and what it takes to get in."""

    bootstrap: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def settings(self, **ours: Any) -> dict[str, Any]:
        """For a client: ours, with dots for the underscores, and what the user has given."""
        named = {name.replace("_", "."): value for name, value in ours.items()}
        return {
            **named,
            "bootstrap.servers": self.bootstrap,
            "client.id": "everstream",
            # What it would log as an error it also tells, and we raise it or log it once.
            "log_level": 2,
            **self.options,
            "logger": LOG,
        }

    def admin(self) -> Any:
        """A client that asks; made anew for each question, it holds threads and connections."""
        try:
            return administration().AdminClient(self.settings())
        except driver().KafkaException as error:
            raise self.explained(error) from None

    def explained(self, error: Any, about: str = "") -> EverstreamError:
        """What the client says, as an error that names the brokers and says what to do."""
        kafka = driver()
        told = error.args[0] if isinstance(error, kafka.KafkaException) else error
        code, words = told.code(), " ".join(told.str().split()).rstrip(".")
        codes = kafka.KafkaError
        where = f"Kafka at {self.bootstrap}"
        if code in (codes._AUTHENTICATION, codes.SASL_AUTHENTICATION_FAILED, codes._SSL):
            return ConnectorError(
                f"{where} does not let us in ({told.name()}). Check the security settings in "
                "options={'security.protocol': ..., 'sasl.username': ...}."
            )
        if code in (codes._TRANSPORT, codes._ALL_BROKERS_DOWN, codes._RESOLVE, codes._TIMED_OUT):
            return ConnectionLost(
                f"{where} cannot be reached: {words}. Check that the brokers run, that the address "
                "is right and that the names they give themselves (advertised.listeners) can be "
                "reached from here."
            )
        if code in (codes._INVALID_ARG, codes._CONFLICT):
            # It says what is wrong with the value of a setting, and the value may be a secret.
            return UserError(
                f"{where}: the client does not take these settings. Check the names and values in "
                f"options={{...}}: {', '.join(sorted(self.options)) or 'none are given'}."
            )
        if code in (
            codes.TOPIC_AUTHORIZATION_FAILED,
            codes.GROUP_AUTHORIZATION_FAILED,
            codes.CLUSTER_AUTHORIZATION_FAILED,
        ):
            return UserError(f"{where}{about}: {words}. Grant the rights to this user.")
        kind = ConnectionLost if told.retriable() else ConnectorError
        return kind(f"{where}{about}: {words} ({told.name()}).")


def checked_options(options: Mapping[str, Any] | None, ours: Mapping[str, str]) -> dict[str, Any]:
    """The user's settings for the client, without those that a keyword of ours stands for."""
    given = dict(options or {})
    for name, instead in ours.items():
        if name in given:
            raise UserError(f"options: '{name}' is set by Kafka(...) itself: {instead}.")
    return given


def checked_topics(topic: str | Sequence[str]) -> tuple[str, ...]:
    """The names, or one pattern that begins with ^."""
    topics = (topic,) if isinstance(topic, str) else tuple(topic)
    if not topics or not all(isinstance(name, str) and name for name in topics):
        raise UserError(f"topic={topic!r}: name a topic, several, or a pattern as '^orders-.*'.")
    if len(set(topics)) < len(topics):
        raise UserError(f"topic={topic!r} names a topic twice.")
    if len(topics) > 1 and any(name.startswith("^") for name in topics):
        raise UserError("topic: a pattern stands alone; write it as '^(this|that)-.*'.")
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
"""Errors that asking again does not change."""
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
    """What `once` gives when the client raises nothing: brokers come and go, leaders move.

    `after_failure` is called before the next try, and before anything is raised. `heard` gives
    what the client has said besides, which often tells more than that something took too long.
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
