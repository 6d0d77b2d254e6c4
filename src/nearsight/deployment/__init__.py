"""From a model to what runs in production: measured, exported, quantised."""
