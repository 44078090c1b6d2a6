"""Sketch to model: decoders, the objective that they minimise, and efficient refinement."""
