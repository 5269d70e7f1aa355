"""Which variables of the environment are ours, and which only share our prefix."""

import re

ENV_PREFIX = "SENDLATER_"

_PORT_URL = r"(tcp|udp|sctp)://\S+:\d+"
_INJECTED = tuple(
    (re.compile(rf"SENDLATER(_[A-Z0-9]+)*{name}"), re.compile(value))
    for name, value in (
        ("_SERVICE_HOST", r"[0-9a-fA-F.:]+"),
        ("_SERVICE_PORT(_[A-Z0-9]+)*", r"\d+"),
        ("_PORT", _PORT_URL),
        (r"_PORT_\d+_(TCP|UDP|SCTP)", _PORT_URL),
        (r"_PORT_\d+_(TCP|UDP|SCTP)_PROTO", "tcp|udp|sctp"),
        (r"_PORT_\d+_(TCP|UDP|SCTP)_PORT", r"\d+"),
        (r"_PORT_\d+_(TCP|UDP|SCTP)_ADDR", r"[0-9a-fA-F.:]+"),
    )
)
"""Name and value of what Kubernetes puts into every pod about a Service named `sendlater` or
`sendlater-...`: the variables of "Discovering services" in its documentation on Services."""


def injected_by_kubernetes(name: str, value: str) -> bool:
    """Whether a variable describes a Service and is no setting: name and value have its shape.

    By both, so that a typo such as SENDLATER_HTTP_PORT=8080 is still refused.
    """
    return any(shape.fullmatch(name) and content.fullmatch(value) for shape, content in _INJECTED)
