"""Compiled inference: the same answers as torch, faster; a thin face of the C++ library, which knows no torch."""
