"""Nonparametric modelling: a VAE whose prior is a Dirichlet process mixture of Gaussians."""
