"""What maintainers run: the matrix of parts and hosts, the catalogue of models. Not installed."""
