"""Model folders and run directories: crash-safe writing, Hugging Face layout, safetensors, tokenizer files."""
