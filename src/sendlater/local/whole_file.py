"""Files that others read while they are written: there is the old text or the new one."""

import os
from pathlib import Path


def write_whole(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Write a text beside `path` and rename it into place, readable for its owner alone until then.

    Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_suffix(f".{os.getpid()}")
    written.touch(mode=0o600)
    written.write_text(text)
    written.chmod(mode)
    written.rename(path)
