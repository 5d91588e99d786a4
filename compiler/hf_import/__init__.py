"""Import of Hugging Face configs: a JSON text, read strictly, to a model in the surface language."""
