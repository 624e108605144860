"""The loop that trains, survives and reports."""
