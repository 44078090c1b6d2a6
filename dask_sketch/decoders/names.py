"""Names of the methods, models and options of decoding, for every layer that lists them.

This module imports no other of the package, so that listing the names loads no numerics.
"""

from typing import Literal, get_args

MethodName = Literal[
    "cl-ompr", "cl-omp", "splitting", "iht", "sketch-shift", "density", "likelihood"
]
ModelName = Literal["gaussian", "isotropic", "known", "dirac"]
RefinementName = Literal["efficient"]
MaximaName = Literal["shift", "discrete", "ascent"]

METHODS: tuple[str, ...] = get_args(MethodName)
MODELS: tuple[str, ...] = get_args(ModelName)
REFINEMENTS: tuple[str, ...] = get_args(RefinementName)
MAXIMA: tuple[str, ...] = get_args(MaximaName)
