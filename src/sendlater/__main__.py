"""The command line: `sendlater`, or `python -m sendlater` where no script was installed."""

import sys

NEEDED = ("cyclopts", "rich")
"""What the extra `cli` brings."""


def main() -> None:
    """Run a command; where the extra `cli` is not installed, say so."""
    try:
        from sendlater.cli import main as run
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in NEEDED:
            raise
        sys.exit(f"sendlater: {missing} is not installed: pip install 'sendlater[cli]'")
    run()


if __name__ == "__main__":
    main()
