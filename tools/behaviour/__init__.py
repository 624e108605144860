"""Acceptance test for changes that must not change behaviour: recorded digests of answers, arrays and weights."""
