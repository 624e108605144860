"""Layers that the model families are composed of."""
