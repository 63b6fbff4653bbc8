"""The checkpoint protocols that tests choose from, as a user writes them."""

from typing import Any

import everstream as es

CHOICES: dict[str, Any] = {
    "aligned": es.Coordinated(),
    "unaligned": es.Coordinated(mode="unaligned"),
    "uncoordinated": es.Uncoordinated(),
    "hmnr": es.CommunicationInduced(rule="hmnr"),
    "bcs": es.CommunicationInduced(rule="bcs"),
}
