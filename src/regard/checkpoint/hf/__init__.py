"""Reading and writing Hugging Face model folders."""
