"""`python -m sendlater`: the command line, where no script was installed."""

from sendlater.cli import main

main()
