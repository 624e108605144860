"""Targets of quality, speed and robustness: each script measures one and exits with 1 where it is missed."""
