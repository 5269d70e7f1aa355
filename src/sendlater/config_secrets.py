"""Settings without their secrets: passwords in addresses, and whatever is named like one."""

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass


HIDDEN = "**********"
SECRET_WORDS = (
    *("password", "secret", "token", "jaas", "credential", "private"),
    *("key.pem", "keystore.key"),
)
"""A setting whose name has one of these in it is not shown."""


def hide_secrets(value: Any, name: str = "") -> Any:
    """`value` without secrets: passwords in URLs, and whatever has a secret's name."""
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
