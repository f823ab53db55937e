"""Kernels on Apple GPUs, in a loaded model: chosen shape by shape by a check of bits and a race."""
