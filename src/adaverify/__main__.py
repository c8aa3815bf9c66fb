"""``python -m adaverify``."""

from adaverify.cli import main

main()
