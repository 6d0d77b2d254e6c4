"""`python -m nearsight` is `nearsight`."""

from .cli.shell import main

main()
