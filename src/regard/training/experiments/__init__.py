"""One experiment per task: which data, which model, which metrics, what is saved."""
