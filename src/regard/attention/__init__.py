"""Scaled dot-product and other attention, masks, positional schemes, caches, traces and head ablation."""
