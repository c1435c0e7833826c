"""Base policies in the Hugging Face folder format that the trainer and the engines read."""
