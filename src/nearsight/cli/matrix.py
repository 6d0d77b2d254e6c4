"""`nearsight matrix`: where the table of parts and hosts is made now."""

import typer


def matrix(context: typer.Context) -> None:
    """Say where the measured table of parts and hosts is, and what makes it again."""
    raise ValueError(
        "`nearsight matrix` went to the maintainers' tools: docs/matrix.md has the table, and "
        "`python -m tools.matrix` in a clone of the repository measures it again."
    )
