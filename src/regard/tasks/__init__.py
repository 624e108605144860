"""What is learned: examples, loss, measures."""
