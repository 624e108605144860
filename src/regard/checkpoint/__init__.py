"""A directory others can read: atomic writes, run folders, model folders in Hugging Face layout."""
