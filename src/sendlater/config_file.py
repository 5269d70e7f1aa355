"""The settings file, sendlater.toml."""

import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_settings import (
    PydanticBaseSettingsSource,
)

from sendlater.errors import BadSettings

if TYPE_CHECKING:
    pass


CONFIG_FILE_VARIABLE = "SENDLATER_CONFIG"


class FileSettings(PydanticBaseSettingsSource):
    """The TOML file named by SENDLATER_CONFIG, or ./sendlater.toml if it exists."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        raise NotImplementedError

    def __call__(self) -> dict[str, Any]:
        named = os.environ.get(CONFIG_FILE_VARIABLE, "")
        path = Path(named or "sendlater.toml")
        if not named and not path.exists():
            return {}
        try:
            return tomllib.loads(path.read_text())
        except (OSError, ValueError) as error:
            told = getattr(error, "strerror", None) or error
            raise BadSettings(f"cannot read the settings file {path}: {told}") from error
