"""What is kept and opened again: the folder of a run, its checkpoints, bundles, and the predictor that uses them."""
