"""Readers of the official checkpoints: a released state dict becomes a spec and the state dict of our model."""
