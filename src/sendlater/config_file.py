"""Settings from files: sendlater.toml, and a directory with one secret in each file."""

import os
import tomllib
from pathlib import Path
from typing import Any

from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
)

from sendlater.errors import BadSettings

CONFIG_FILE_VARIABLE = "SENDLATER_CONFIG"
SECRETS_VARIABLE = "SENDLATER_SECRETS"


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


def secret_files(settings_cls: type[BaseSettings]) -> PydanticBaseSettingsSource:
    """The directory named by SENDLATER_SECRETS, as Kubernetes, compose and systemd provide it: a
    file has a setting's name and holds its value, as JSON if that is a table.

    Raises BadSettings if it cannot be read, or has a file that is no setting: usually a typo.
    """
    directory = os.environ.get(SECRETS_VARIABLE) or None
    if directory is not None:
        try:
            # Kubernetes keeps the files' versions beside them, in names that begin with a dot.
            found = [path for path in Path(directory).iterdir() if path.name[0] != "."]
            for path in found:
                path.read_text()  # what cannot be read would be passed over
        except (OSError, ValueError) as error:
            raise BadSettings(f"cannot read the secrets in {directory}: {error}") from None
        for path in found:
            if path.name not in settings_cls.model_fields:
                raise BadSettings(
                    f"unknown setting: {path}, expected files with names of settings, such as "
                    "redis or kafka"
                )
    return SecretsSettingsSource(settings_cls, secrets_dir=directory, env_prefix="")
