"""`python -m lowmark` is the `lowmark` command."""

from lowmark.cli import main

main()
