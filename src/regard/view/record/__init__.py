"""The record of one prediction, which every view shows: texts, attention, probabilities, attribution."""
