"""Reports about models: contents of a folder, speed, comparison, error analysis; the demo and the doctor."""
