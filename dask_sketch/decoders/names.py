"""Names of the methods, models and options of decoding, for every layer that lists them.

This module imports no other of the package, so that listing the names loads no numerics.
"""

from typing import Literal, get_args

MethodName = Literal[
    "cl-ompr", "cl-omp", "splitting", "iht", "sketch-shift", "density", "likelihood"
]
AtomName = Literal["gaussian", "isotropic", "known", "dirac"]
TransformName = Literal["von-mises-fisher", "alpha-stable"]
RefinementName = Literal["efficient"]
MaximaName = Literal["shift", "discrete", "ascent"]

METHODS: tuple[str, ...] = get_args(MethodName)
ATOMS: tuple[str, ...] = get_args(AtomName)  # models of most methods
TRANSFORMS: tuple[str, ...] = get_args(TransformName)  # models with a method of their own
MODELS = (*ATOMS, *TRANSFORMS)
REFINEMENTS: tuple[str, ...] = get_args(RefinementName)
MAXIMA: tuple[str, ...] = get_args(MaximaName)
