"""`python -m nearsight` is `nearsight`."""

from .cli import main

main()
