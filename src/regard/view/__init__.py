"""Attention as pictures: a record of text and NumPy arrays, drawn in the terminal or as a page; no torch."""
