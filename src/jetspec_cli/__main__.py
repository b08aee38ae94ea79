"""``python -m jetspec_cli``: the same as the command ``jetspec``."""

from jetspec_cli.app import main

main()
