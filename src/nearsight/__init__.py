"""Nearsight: vision transformers that look close first."""
