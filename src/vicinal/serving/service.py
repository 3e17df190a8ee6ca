"""The service: an index, what embeds images, and the answers to requests."""

from __future__ import annotations

import asyncio
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from vicinal.data.table import Table
from vicinal.retrieval.index.index import Index
from vicinal.retrieval.search import plain_records
from vicinal.serving.bodies import DeleteBody, EmbedBody, ItemBody, SearchBody
from vicinal.serving.limits import Limits
from vicinal.serving.matches import Query, SearchOptions, search_batch, shown_columns
from vicinal.serving.problems import Problem
from vicinal.utils.errors import InputError


class Service:
    def __init__(self, folder: str, embedder: Any = None, limits: Limits | None = None, read_only: bool = False) -> None:
        self.folder, self.embedder, self.limits = Path(folder), embedder, limits or Limits()
        self.read_only = read_only
        self.index = Index.load(folder)

    def without_paths(self, text: str) -> str:
        return text.replace(str(self.folder), self.folder.name)

    def embed_image(self, data: bytes, box: Any) -> Any:
        if self.embedder is None:
            raise Problem(422, "the service has no model, so it takes vectors and ids only")
        try:
            image = Image.open(BytesIO(data)).convert("RGB")
        except Exception:
            raise Problem(422, "image: it is not an image that can be read") from None
        if box is not None:
            left, top, width, height = box
            image = image.crop((int(left), int(top), int(left + width), int(top + height)))
        return self.embedder.embed([image], progress=False)[0]

    async def search(self, body: SearchBody) -> dict[str, Any]:
        def run() -> Any:
            if body.vector is not None:
                vector = np.array(body.vector, np.float32)
                if len(vector) != self.index.dim:
                    raise Problem(422, f"vector: it has {len(vector)} dimensions, the index has {self.index.dim}")
            elif body.id is not None:
                self._row(body.id)
                vector = self.index.vectors()[self.index.metadata.positions([body.id])[0]]
            else:
                vector = self.embed_image(body.image or b"", body.box)
            options = SearchOptions(body.k + (body.exclude_id is not None), body.min_score, body.min_probability, body.filter, body.group_by, body.rerank)
            answer = search_batch(self.index, [Query(vector, options)])[0]
            if isinstance(answer, InputError):
                raise answer
            answer["matches"] = [m for m in answer["matches"] if m["id"] != body.exclude_id][: body.k]
            answer["count"] = len(answer["matches"])
            return answer

        return await asyncio.to_thread(run)

    async def embed(self, body: EmbedBody) -> dict[str, Any]:
        vector = await asyncio.to_thread(self.embed_image, body.image or b"", body.box)
        return {"vector": vector.tolist(), "dim": len(vector), "model": self.index.model_fingerprint}

    async def add(self, body: ItemBody, key: str | None) -> dict[str, Any]:
        def run() -> Any:
            columns: dict[str, Any] = dict(body.columns)
            if body.label is not None:
                columns["label"] = body.label
            if body.image is not None:
                vector = self.embed_image(body.image, None)
                (self.folder / "added").mkdir(exist_ok=True)
                path = self.folder / "added" / f"{len(self.index)}.img"
                path.write_bytes(body.image)
                columns["path"] = str(path.resolve())
            else:
                vector = np.array(body.vector, np.float32)
            return self.index.add(vector[None], Table(pd.DataFrame({n: [v] for n, v in columns.items()}, index=[0])))

        return {"ids": (await asyncio.to_thread(run)).tolist()}

    async def delete(self, body: DeleteBody) -> dict[str, Any]:
        ids = self.index.where(body.filter) if body.filter is not None else np.array(body.ids)
        known = ids[np.isin(ids, self.index.metadata.ids)]
        self.index.delete(known)
        return {"deleted": len(known)}

    def _row(self, number: int) -> dict[str, Any]:
        try:
            return plain_records(self.index.metadata.lookup([number]))[0]
        except InputError:
            raise Problem(404, f"there is no item {number}; it was never given or is deleted") from None

    async def item(self, number: int) -> dict[str, Any]:
        record = self._row(number)
        return {"id": number, "label": record.get("label"), "columns": shown_columns(record, self.index.root)}

    async def thumbnail(self, number: int, size: int) -> bytes:
        path = self._row(number).get("path")
        try:
            image = Image.open(str(path)).convert("RGB")
        except Exception:
            raise Problem(404, f"item {number} has no image file") from None
        image.thumbnail((size, size))
        data = BytesIO()
        image.save(data, "JPEG", quality=85)
        return data.getvalue()

    async def info(self) -> dict[str, Any]:
        from vicinal import __version__

        index = self.index
        columns = []
        for name in index.metadata.frame:
            if name in ("id", "path"):
                continue
            values = index.metadata.frame[name].dropna()
            kind = "boolean" if values.dtype == bool else "number" if pd.api.types.is_numeric_dtype(values) else "text"
            distinct = sorted(values.unique().tolist())
            columns.append({"name": str(name), "type": kind, "values": distinct if len(distinct) <= 50 else None})
        return {
            "name": self.folder.name,
            "images": len(index),
            "dim": index.dim,
            "kind": index.kind,
            "model": {"fingerprint": index.model_fingerprint, "name": index.made_with.get("model")},
            "calibration": None if index.calibration is None else index.calibration.describe(),
            "columns": columns,
            "limits": self.limits.to_dict(),
            "can_write": not self.read_only,
            "can_embed": self.embedder is not None,
            "version": __version__,
        }

    @property
    def is_ready(self) -> bool:
        return True
