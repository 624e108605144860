"""From log-probabilities to tokens: knows `Generator`, no family of models."""
