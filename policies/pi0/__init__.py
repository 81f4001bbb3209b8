"""Policies in the format of pi0 (Black 2024), as transformers builds them."""
