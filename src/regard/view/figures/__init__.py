"""One file for each view of a figure: what is chosen from a record, drawn."""
