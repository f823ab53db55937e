"""Pillion and other implementations on the same weights and prompts, side by side in one run."""
