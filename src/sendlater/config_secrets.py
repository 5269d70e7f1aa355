"""Hides secrets in settings: passwords in URLs, and settings with the name of a secret."""

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass


HIDDEN = "**********"
SECRET_WORDS = (
    *("password", "secret", "token", "jaas", "credential", "private"),
    *("key.pem", "keystore.key"),
)
"""A setting whose name contains one of these is hidden."""


def hide_secrets(value: Any, name: str = "") -> Any:
    """`value` with secrets hidden: passwords in URLs, and values with the name of a secret."""
    if isinstance(value, dict):
        return {k: hide_secrets(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [hide_secrets(v, name) for v in value]
    if value and any(word in name.lower() for word in SECRET_WORDS):
        return HIDDEN
    if not isinstance(value, str):
        return value
    value = re.sub(r"(?<=://)[^/\s]*@", f"{HIDDEN}@", value)
    return re.sub(r"(?<=[?&]password=)[^&\s]*", HIDDEN, value)
