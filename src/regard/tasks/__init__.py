"""Tasks: examples, objectives and metrics of what models are trained for."""
