"""Tasks: what a model learns, how its answers are judged."""
