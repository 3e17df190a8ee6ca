"""What comes after a model: PCA whitening, and the cut of the embeddings to their first dimensions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from vicinal.data.checks import row_blocks
from vicinal.models.shortened import check_dim, shortened, trained_dims
from vicinal.retrieval.whitening import PCAWhitening
from vicinal.utils.arrays import Floats
from vicinal.utils.console import log
from vicinal.utils.temporary_maps import temporary_map
from vicinal.workflows.sources.embedded_table import EmbeddedTable

if TYPE_CHECKING:
    from vicinal.export.exported_embedder import ExportedEmbedder
    from vicinal.models import Embedder


@dataclass(frozen=True)
class Postprocessing:
    """The steps after a model.

    Args:
        whitening: is applied first; None: no whitening.
        dim: the number of first dimensions that are kept, normalized; None: all.

    Example:
        >>> import numpy as np
        >>> steps = Postprocessing(dim=1)
        >>> steps.names, steps.apply(np.array([[0.6, 0.8]], np.float32))
        (('dim 1',), array([[1.]], dtype=float32))
    """

    whitening: PCAWhitening | None = None
    dim: int | None = None
    _checked_models: set[int] = field(default_factory=set, init=False, repr=False, compare=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the steps; different steps have different names."""
        whitening = () if self.whitening is None else (self.whitening.fingerprint(),)
        return whitening if self.dim is None else (*whitening, f"dim {self.dim}")

    def apply(self, vectors: Floats) -> Floats:
        """Apply the steps to embeddings, float32 [n, d]."""
        if self.whitening is not None:
            vectors = self.whitening.apply(vectors)
        return vectors if self.dim is None else shortened(vectors, self.dim)

    def apply_to(self, embedded: EmbeddedTable, mapped: bool = False) -> EmbeddedTable:
        """Apply the steps to embeddings with their table; if `mapped`, block by block into a temporary file."""
        if not self.names:
            return embedded
        steps = (*embedded.postprocessing, *self.names)
        if not mapped:
            return replace(embedded, vectors=self.apply(embedded.vectors), postprocessing=steps)
        dim = self.dim if self.whitening is None or self.dim is not None else self.whitening.dim
        blocks = map(self.apply, row_blocks(embedded.vectors))
        vectors = temporary_map(blocks, (len(embedded.vectors), int(dim or 0)), "embeddings")
        return replace(embedded, vectors=vectors, postprocessing=steps)

    def check_model(self, model: Embedder | ExportedEmbedder) -> None:
        """Check before anything is embedded that a model has so many dimensions; warn if they are not trained.

        Raises:
            InputError: it has fewer.
        """
        if self.dim is None or self.whitening is not None:
            return
        check_dim(self.dim, model.dim)
        recipe = getattr(model, "recipe", None)  # of an exported model it is not known
        if recipe is None or id(model) in self._checked_models:
            return
        self._checked_models.add(id(model))
        dims = trained_dims(recipe)
        if self.dim < (dims[0] if dims else model.dim):
            trained = f"with Matryoshka for {dims[0]} dimensions and more" if dims else "without Matryoshka"
            log(
                f"warning: the model was trained {trained}; its first {self.dim} dimensions alone may find much less "
                "than PCA whitening to as many (vicinal whiten --dim)"
            )
