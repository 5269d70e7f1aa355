"""Which variables of the environment are ours, and which only share our prefix."""

import re
from collections.abc import Mapping

from pydantic.fields import FieldInfo

from sendlater.addresses import CLIENT_VARIABLES
from sendlater.config_file import CONFIG_FILE_VARIABLE, SECRETS_VARIABLE

ENV_PREFIX = "SENDLATER_"
NO_SETTINGS = (CONFIG_FILE_VARIABLE, SECRETS_VARIABLE, *CLIENT_VARIABLES)
"""Variables with that prefix that are not settings."""

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


def unknown_variable(
    environment: Mapping[str, str], settings: Mapping[str, FieldInfo]
) -> str | None:
    """The first variable with our prefix that is no setting, usually a typo; None if all are."""
    tables = {name for name, field in settings.items() if field.default == {}}
    for variable, value in environment.items():
        prefix, name = variable[: len(ENV_PREFIX)].upper(), variable[len(ENV_PREFIX) :].lower()
        if prefix != ENV_PREFIX or variable.upper() in NO_SETTINGS:
            continue
        field, nested, _ = name.partition("__")
        known = field in (tables if nested else settings)
        if not known and not injected_by_kubernetes(variable, value):
            return variable
    return None


def injected_by_kubernetes(name: str, value: str) -> bool:
    """Whether a variable describes a Service and is no setting: name and value have its shape.

    By both, so that a typo such as SENDLATER_HTTP_PORT=8080 is still refused.
    """
    return any(shape.fullmatch(name) and content.fullmatch(value) for shape, content in _INJECTED)
