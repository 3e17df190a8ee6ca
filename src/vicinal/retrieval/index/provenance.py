"""What made the vectors of an index: the model, the flags of the command, the refiner, and what their scores mean."""

from __future__ import annotations

from collections.abc import Mapping

from vicinal.data.columns import column_aliases
from vicinal.models.refiner import ContextRefiner
from vicinal.retrieval.calibration import Calibration
from vicinal.retrieval.index.made_with import check_same_fingerprint, refiner_flag
from vicinal.retrieval.index.refiner_context import RefinerContext
from vicinal.utils.errors import InputError


class IndexProvenance:
    """Model, refiner and calibration of an index, and checks that other vectors are made in the same way.

    Args:
        model_fingerprint: identifies the model that made the vectors; None if it is unknown.
        context: the unrefined embeddings, of an index of refined ones.
        made_with: the flags of the command that made the vectors.

    Example:
        >>> IndexProvenance("ab", None, {"model": "run"}).fingerprint()
        'ab'
    """

    def __init__(
        self, model_fingerprint: str | None, context: RefinerContext | None, made_with: Mapping[str, str] | None
    ) -> None:
        self.model_fingerprint = model_fingerprint
        self.made_with = dict(made_with or {})
        self._context = context
        self._calibration: Calibration | None = None
        self._verified_refiner: ContextRefiner | None = None

    @property
    def refiner_fingerprint(self) -> str | None:
        """Identifies the refiner that the index was built with; None if embeddings are not refined."""
        return None if self._context is None else self._context.refiner_fingerprint

    @property
    def calibration(self) -> Calibration | None:
        """What scores of matches mean, see :func:`vicinal.retrieval.match_images`; None if that is not known.

        Raises:
            InputError: when set: it is a calibration of another model.
        """
        return self._calibration

    @calibration.setter
    def calibration(self, calibration: Calibration | None) -> None:
        if calibration is not None:
            calibration.check_model(self.fingerprint())
        self._keep_calibration(calibration)

    def _keep_calibration(self, calibration: Calibration | None) -> None:
        self._calibration = calibration

    def fingerprint(self) -> str | None:
        """Return what identifies the model and the refiner of its vectors; None where the model is unknown."""
        refined = "" if self._context is None else f"+{self.refiner_fingerprint}"
        return None if self.model_fingerprint is None else f"{self.model_fingerprint}{refined}"

    @property
    def column_aliases(self) -> dict[str, str]:
        """What the columns `path` and `label` were called in the table that the index was made of."""
        return column_aliases(self.made_with)

    def check_model(self, fingerprint: str | None, made_with: Mapping[str, str] | None = None) -> None:
        """Refuse vectors of another model, which cannot be compared with these; None is an unknown model.

        Args:
            fingerprint: identifies the model of the vectors, and the steps after it.
            made_with: the flags of the command that made the vectors, without `model` if they were stored.

        Raises:
            InputError: both models are known and differ; the message says by which flags.
        """
        check_same_fingerprint(self.model_fingerprint, fingerprint, self.made_with, made_with or {})

    def check_refiner(self, refiner: ContextRefiner | None) -> None:
        """Refuse any refiner but the one that the index was built with, and none where it was built with one.

        Raises:
            InputError: it is another refiner, or there is one too many or too few.
        """
        expected = self.refiner_fingerprint
        if refiner is None and expected is None:
            return
        if refiner is None:
            raise InputError(
                f"the index holds embeddings refined by {expected}; "
                f"give that refiner{refiner_flag(self.made_with) or ' (--refiner)'}"
            )
        if expected is None:
            raise InputError("the index was built without a refiner; leave it out, or build the index again with it")
        if refiner is self._verified_refiner:  # a fingerprint reads all weights, which takes longer than a query
            return
        if (fingerprint := refiner.fingerprint()) != expected:
            raise InputError(
                f"the index was built with the refiner {expected}{refiner_flag(self.made_with)}, "
                f"not with {fingerprint}; use that refiner, or build the index again"
            )
        self._verified_refiner = refiner
