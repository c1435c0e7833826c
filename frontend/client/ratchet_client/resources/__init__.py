"""The nouns of the API, one file each."""
