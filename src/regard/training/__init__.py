"""Training runs: the loop, its optimizer, distributed training, evaluation and reports."""
