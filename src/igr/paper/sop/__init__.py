"""Structured output prediction: the lower half of an image from its upper half, through binary stochastic units."""
