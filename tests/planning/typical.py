"""A job like many others, for the adviser to think about."""

from typing import Any

TYPICAL: dict[str, Any] = {
    "state_size": "200MB",
    "write_bandwidth": "200MB/s",
    "rate": "50k/s",
    "capacity": "150k/s",
    "mtbf": "1h",
    "recovery": "2s",
    "capture": "100ms",
    "record_size": "100B",
    "shards": 8,
}
