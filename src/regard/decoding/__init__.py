"""Decoding: from log-probabilities to token ids, for any model that implements `Generator`."""
