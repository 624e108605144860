"""Inference in the C++ engine, free of torch at import: the same results as torch, faster."""
