"""Every architecture on the same data with the same budget: pre-training, classification, tagging and stories."""
