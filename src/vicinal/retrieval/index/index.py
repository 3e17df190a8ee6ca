"""An index that is kept in a folder, together with the metadata of its images."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
from typing_extensions import Self

from vicinal.data.moved import relative_to
from vicinal.data.table import Table
from vicinal.models.refiner import ContextRefiner
from vicinal.retrieval.calibration import Calibration
from vicinal.retrieval.index.engines.faiss_engine import FaissEngine, Kind
from vicinal.retrieval.index.engines.rescoring import Engine, RescoringEngine, read_engine
from vicinal.retrieval.index.interface import checked_vectors
from vicinal.retrieval.index.made_with import check_made_with
from vicinal.retrieval.index.metadata import Metadata
from vicinal.retrieval.index.refiner_context import RefinerContext
from vicinal.retrieval.index.remote.engine_url import EngineURL, is_engine_url
from vicinal.retrieval.index.searchable import SearchableIndex
from vicinal.retrieval.index.staged_build import StagedBuild
from vicinal.retrieval.index.storage import IndexFiles, check_target, current_files, write_lock
from vicinal.retrieval.scores import Array, UnitVectors
from vicinal.utils.errors import InputError
from vicinal.utils.locks import ReadWriteLock

if TYPE_CHECKING:
    from vicinal.retrieval.index.remote.remote_index import RemoteIndex

TIMEOUT = 600.0  # seconds to wait for another process that writes the same index


class Index(SearchableIndex):
    """Embeddings that are searched by cosine similarity, with metadata of their images.

    The id of an image is the number of images that were added before it, so it is never used again. Deleted vectors
    stay in the search structure, invisible, until the index is built again: removing them would break the graph of
    HNSW.

    An index built with a refiner searches refined embeddings. It also keeps the unrefined embeddings, at 4 bytes per
    dimension and image, because the neighbors of a new image or of a query are found among them; they are real vectors
    even beside codes, which then save little memory. Everything that is added or searched later needs the same
    refiner.

    An index is made by :meth:`build`, :meth:`load` or :meth:`open`. With the URL of a database in place of a folder
    these return a :class:`RemoteIndex <vicinal.retrieval.RemoteIndex>`, which has the same methods.

    Threads may share an index: any number of them search while none adds or deletes, and one adds or deletes while none
    searches; the others wait. Processes share the folder of an index: they read it at any time, and write it one at a
    time. A process that loads an index, changes it and saves it does so within :meth:`open`, so that no other process
    changes it in between.

    Attributes:
        metadata: one row per image that can be found: `id`, and the columns of its table; its own column `id` is called
            `id_of_table`.
        model_fingerprint: identifies the model that made the vectors; None if it is unknown.
        made_with: the flags of `vicinal index` that made the vectors, such as `{"model": "run"}`; empty if unknown.
        root: the folder of the images; their paths are kept from there on, so that it may be moved. None: in full.

    Example:
        >>> import numpy as np, pandas as pd
        >>> from vicinal import Table
        >>> table = Table(pd.DataFrame({"label": ["cat", "dog", "cow"]}))
        >>> index = Index.build(np.eye(3, dtype=np.float32), table)
        >>> index.delete([0])
        >>> neighbors = index.search(np.array([[0.1, 1.0, 0.2]]), k=2)
        >>> index.metadata.lookup(neighbors.ids[0])["label"].tolist()
        ['dog', 'cow']
    """

    def __init__(
        self,
        engine: Engine,
        metadata: Metadata,
        model_fingerprint: str | None = None,
        context: RefinerContext | None = None,
        made_with: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(engine, metadata, model_fingerprint, context, made_with)
        self._save_lock = ReadWriteLock()
        self._saved: tuple[Path, Mapping[str, str]] | None = None  # the folder and the files that it was last equal to
        self._locked_folder: Path | None = None  # whose lock is held

    def save(self, folder: str | Path, timeout: float = TIMEOUT) -> None:
        """Write the index; if the process is killed at any moment, the folder holds the old index or this one.

        An index that was built replaces any other in the folder. One that was loaded from the folder, or saved to it
        before, is refused if another process has changed the folder since; see :meth:`open`.

        Args:
            folder: the folder of the index; it is made if missing.
            timeout: seconds to wait while another process writes it.

        Raises:
            InputError: the folder holds something else, another process has changed it since this index was loaded, or
                another process still writes it after `timeout` seconds.
            OSError: a file cannot be written; the old index stays.
        """
        path = Path(folder).resolve()
        is_locked = self._locked_folder == path
        with (
            self._save_lock.write(),
            nullcontext() if is_locked else write_lock(Path(folder), timeout),
            self._lock.read(),
        ):
            self._save(Path(folder), path)

    def _save(self, folder: Path, path: Path) -> None:
        if not self._is_consistent():
            raise InputError("adding to the index was interrupted; load it again before it is saved")
        if self._saved is not None and self._saved[0] == path and current_files(path) not in (None, self._saved[1]):
            raise InputError(
                f"{folder}: another process has changed the index since it was loaded; load it again and repeat the "
                "change, within Index.open to keep others from writing meanwhile"
            )
        context = None if self._context is None else self._context.engine.to_bytes()
        config = {**self._facts(), "made_with": self.made_with}
        if self.calibration is not None:
            config["calibration"] = self.calibration.to_dict()
        metadata = self.metadata
        if self.root is not None:
            config["root"], metadata = self.root, metadata.with_paths(partial(relative_to, root=self.root))
        originals = self._engine.store if isinstance(self._engine, RescoringEngine) else None
        files = IndexFiles(config, self._engine.to_bytes(), metadata.frame, context, originals)
        self._saved = path, files.save(folder)

    @classmethod
    def build(
        cls,
        vectors: Array,
        table: Table,
        kind: Literal["auto"] | Kind = "auto",
        model_fingerprint: str | None = None,
        refiner: ContextRefiner | None = None,
        made_with: Mapping[str, str] | None = None,
        rescore: int | None = None,
        url: str | None = None,
        overwrite: bool = False,
        timeout: float = TIMEOUT,
        folder: str | Path | None = None,
    ) -> Self:
        """Build an index of all vectors: in memory, to be saved to a folder, or with a URL in a database.

        With `folder` it is built in batches, each saved, and the index is saved in the end: an interrupted call goes on
        where it was, and vectors of a memory map are never all in memory. Quantizers of `ivfpq` and `rabitq` learn from
        256 random vectors per inverted list, at most 1,048,576 in all unless that is less than 39 per list; there are
        about four times as many lists as the square root of the number of vectors.

        Args:
            vectors: float [n, dim].
            table: n rows.
            kind: `exact` compares with every vector; `hnsw` is a graph, faster and nearly exact above 100,000 vectors;
                `auto` is `exact` up to 100,000 vectors, `hnsw` above and in a database. The others search by codes:
                `sq8` of one byte per dimension and `binary` of one bit compare with every vector; `ivfpq` of about one
                byte per four dimensions and `rabitq` of one bit and eight bytes search the nearest inverted lists.
            model_fingerprint: identifies the model that made the vectors.
            refiner: refines every vector first, by its nearest among the others, which are found by comparing every
                vector with every other; not in a database.
            made_with: the flags of the command that made the vectors, which messages about other vectors name.
            rescore: for kinds with codes, how many candidates per neighbor are compared by the vectors themselves,
                which are kept as float16 in a file of the index, not in memory. None: the default of the kind; 0: none,
                the vectors are not kept, and scores are approximate.
            url: of the database, see :meth:`RemoteIndex.build <vicinal.retrieval.RemoteIndex.build>`; None: in memory.
            overwrite: with a URL or `folder`: whether to replace an index that is there.
            timeout: with a URL: seconds during which calls are repeated after faults of the connection; with `folder`:
                seconds to wait while another process writes the index.
            folder: of the index, for kinds with codes. Until the index is complete, the folder holds the old one, or
                none that can be loaded.

        Raises:
            InputError: vectors and table have different lengths, a vector contains NaN or infinity, there are too few
                vectors for `ivfpq`, the kind is unknown, the table has both columns `id` and `id_of_table`, the refiner
                has a different dimension or is for a different model, there is an index at the URL or in the folder
                already, or another process builds one in it.
            OSError: a file cannot be written.
            EngineUnavailableError: the connection to the database is lost for too long.
        """
        if folder is not None:
            if refiner is not None or url is not None:
                raise InputError("an index that is built in batches is in a folder and has no refiner; leave one out")
            return cls._build_staged(
                Path(folder), checked_vectors(vectors, table), table, kind, model_fingerprint, made_with, rescore,
                overwrite=overwrite, timeout=timeout,
            )  # fmt: skip
        if url is None:
            return super().build(vectors, table, kind, model_fingerprint, refiner, made_with, rescore)
        if refiner is not None:
            raise InputError(f"an index of refined embeddings is kept in a folder, not at {EngineURL.parse(url)}")
        remote = _remote_index().build(
            vectors, table, url, kind, model_fingerprint, made_with, rescore, overwrite=overwrite, timeout=timeout
        )
        return cast(Self, remote)

    @classmethod
    def _build_staged(
        cls,
        folder: Path,
        vectors: UnitVectors,
        table: Table,
        kind: Literal["auto"] | Kind,
        model_fingerprint: str | None,
        made_with: Mapping[str, str] | None,
        rescore: int | None,
        *,
        overwrite: bool,
        timeout: float,
    ) -> Self:
        """Build an index in a folder, batch by batch, and save it."""
        check_target(folder)
        if current_files(folder) is not None and not overwrite:
            raise InputError(f"{folder} is an index already; add to it, or overwrite it")
        metadata = Metadata.from_table(table, np.arange(len(table)))
        with StagedBuild.open(folder, vectors, kind, rescore) as build:
            build.encode()
            with write_lock(folder, timeout):
                index = cls(build.engine(), metadata, model_fingerprint, None, made_with)
                with index._holding(folder):
                    index.save(folder)
        return index

    @classmethod
    def load(cls, folder: str | Path) -> Index:
        """Read an index that :meth:`save` wrote, or connect to the one at the URL of a database.

        To change it, use :meth:`open`.

        Raises:
            InputError: there is no index, it is of a later format, or damaged.
            EngineUnavailableError: the database does not answer.
        """
        if is_engine_url(folder):
            return cast("Index", _remote_index().connect(str(folder)))
        files = IndexFiles.load(Path(folder))
        try:
            index = cls._from_files(files)
        except InputError as error:
            raise InputError(f"{folder}: the index is damaged; build it again ({error})") from None
        index._saved = Path(folder).resolve(), files.config["files"]
        return index

    @classmethod
    @contextmanager
    def open(cls, folder: str | Path, timeout: float = TIMEOUT) -> Iterator[Index]:
        """Load an index for a block that changes it, and save it at the end; no other process writes it meanwhile.

        If the block fails, nothing is saved. Other processes may read the index throughout; they see it as it was
        until it is saved. An index in a database is changed at once, by any number of processes.

        Args:
            folder: the folder of the index, or the URL of a database.
            timeout: seconds to wait while another process writes it, or during which a database is asked again.

        Raises:
            InputError: there is no index, it is of a later format, or damaged, or another process still writes it after
                `timeout` seconds.
            OSError: a file cannot be written; the old index stays.
            EngineUnavailableError: the database does not answer.

        Example:
            >>> import numpy as np, pandas as pd, tempfile
            >>> from vicinal import Table
            >>> table = Table(pd.DataFrame({"label": ["cat", "dog"]}))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     Index.build(np.eye(2), table).save(folder)
            ...     with Index.open(folder) as index:
            ...         index.add(np.eye(2), table)
            ...         index.delete([0])
            ...     Index.load(folder)
            array([2, 3])
            Index(exact, 3 images, 2 dimensions)
        """
        if is_engine_url(folder):
            with _remote_index().connect(str(folder), timeout) as remote:
                yield cast("Index", remote)
            return
        if current_files(Path(folder)) is None:
            cls.load(folder)  # says what is wrong, before a lock is made in the folder
        with write_lock(Path(folder), timeout):
            index = cls.load(folder)
            with index._holding(folder):
                yield index
                index.save(folder)

    @contextmanager
    def _holding(self, folder: str | Path) -> Iterator[None]:
        """A block in which the caller holds the lock of a folder, so that saving to it does not wait for that."""
        self._locked_folder = Path(folder).resolve()
        try:
            yield
        finally:
            self._locked_folder = None

    @classmethod
    def _from_files(cls, files: IndexFiles) -> Index:
        """Return the index of an index's files.

        Raises:
            InputError: they do not belong together, or are not what an index holds.
        """
        config, context = files.config, None
        made_with = config.get("made_with", {})
        check_made_with(made_with)
        engine = read_engine(config.get("kind"), files.vectors, files.originals, config.get("rescore"))
        if files.context is not None:
            context = RefinerContext(FaissEngine.from_bytes(files.context), config.get("refiner_fingerprint", ""))
        metadata, root = Metadata.from_stored(files.metadata), config.get("root")
        if root is not None:
            if not (isinstance(root, str) and os.path.isabs(root)):
                raise InputError("its root is not the absolute path of a folder")
            metadata = metadata.with_paths(partial(os.path.join, root))
        index = cls(engine, metadata, config.get("model_fingerprint"), context, made_with)
        index.root = root
        if "calibration" in config:
            index.calibration = Calibration.from_dict(config["calibration"])
        if not (index._facts().items() <= config.items() and index._is_consistent()):
            raise InputError("its files do not belong together")
        return index


def _remote_index() -> type[RemoteIndex]:
    from vicinal.retrieval.index.remote.remote_index import RemoteIndex

    return RemoteIndex
