"""The command line: `sendlater`, or `python -m sendlater` where no script was installed."""

import sys
from pathlib import Path

EXTRAS = {
    "cli": ("cyclopts", "rich", "watchfiles"),
    "pipeline": ("pyspark", "pandas", "pyarrow", "numpy", "psutil"),
    "server": ("fastapi", "uvicorn", "httptools", "uvloop", "itsdangerous", "jinja2", "yaml"),
}
"""What commands need, by the extra that brings it."""


def main() -> None:
    """Run a command; where an extra that it needs is not installed, say so."""
    try:
        from sendlater.cli import main as run

        run()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        extra = next((name for name, brought in EXTRAS.items() if missing in brought), None)
        if extra is None:
            raise
        sys.exit(f"sendlater: {missing} is not installed: pip install 'sendlater[{extra}]'")


if __name__ == "__main__":
    if Path(sys.path[0]) == Path(__file__).resolve().parent:
        # Run as a file, as by spark-submit: its folder has no modules of their own.
        del sys.path[0]
    main()
