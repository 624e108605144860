"""Fixtures shared with the tests of pipelines."""

from tests.pipeline.conftest import pipeline, toy

__all__ = ["pipeline", "toy"]
