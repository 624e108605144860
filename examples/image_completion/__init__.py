"""Image completion with a causal language model: pixels are tokens, and missing rows are a continuation."""
