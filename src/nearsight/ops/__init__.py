"""Numeric kernels as plain functions."""
