"""Zeroth-order tools for any torch module: direction, perturbed evaluation, difference, clip and step."""
