"""Texts in, results out, with attention on request: one pipeline per task."""
