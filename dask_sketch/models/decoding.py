"""The record of how a model was decoded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Decoding:
    """How a model was found, and how well it matches its sketch.

    Attributes
    ----------
    method, model
        As given to :func:`dask_sketch.decode`.
    cost
        ``||z - A P||**2`` of the model, its weights summing to one.
    noise_level
        Expected cost at the true law of the samples, ``(1 - ||z||**2) / n``. A good fit costs
        less, because parameters absorb part of the noise.
    trace
        Cost after each iteration, weights not yet normalised; of a long sketch, on the part of its
        frequencies that the search ran on, and with all of them at the end.
    seconds
        Wall time of all replicates.
    seed, replicates
        As given.
    n_evaluations
        Evaluations of correlation or cost with their gradients, of all replicates.
    converged
        Whether the last descent met its tolerance before its limit of iterations.
    message
        How the last descent ended, in the optimiser's words.
    refine
        As given.
    variance_floor
        Smallest variance that the components were allowed, as given; none for points.
    searched
        Noise level when other components were last searched for. A fit that began at an earlier
        model, and found that it still held, has that model's; none otherwise.
    feature_names
        Names of the features, where the feature map knows them.
    """

    method: str
    model: str
    cost: float
    noise_level: float
    trace: tuple[float, ...]
    seconds: float
    seed: int
    replicates: int
    n_evaluations: int
    converged: bool
    message: str
    refine: str | None = None
    variance_floor: float | None = None
    searched: float | None = None
    feature_names: tuple[str, ...] | None = None

    @property
    def steps(self) -> str:
        """What an entry of the trace stands for, in words."""
        return f"{'level' if self.method == 'splitting' else 'iteration'} of {self.method}"

    def _fields(self) -> dict[str, str]:
        """What a glance should show, in words."""
        refined = "" if self.refine is None else f", {self.refine} refinement"
        return {
            "decoded by": f"{self.method}{refined} in {self.seconds:.2f} s",
            "cost": f"{self.cost:.3g} (noise level {self.noise_level:.3g})",
        }

    def _repr_html_(self) -> str:
        from dask_sketch.display.models import decoding_card

        return decoding_card(self)
