"""Which model is best on these data, and is it worth it: the same training for several models, side by side."""
