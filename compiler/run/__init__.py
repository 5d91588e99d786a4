"""Models run: prompts prefilled, tokens generated, on virtual chips or JAX devices."""
