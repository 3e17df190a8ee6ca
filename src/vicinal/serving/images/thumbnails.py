"""Thumbnails of images, of which the latest are remembered."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from vicinal.serving.images.decoding import ThumbnailTask
from vicinal.serving.images.workers import DecodingPool

MAX_THUMBNAILS = 512  # that are remembered


class Thumbnails:
    """Makes thumbnails.

    Args:
        pool: the processes that decode images.
    """

    def __init__(self, pool: DecodingPool) -> None:
        self._pool = pool
        self._known: OrderedDict[ThumbnailTask, bytes] = OrderedDict()

    async def get(self, task: ThumbnailTask) -> bytes:
        """Return the bytes of a JPEG file.

        Raises:
            InputError: the image cannot be read.
        """
        if task not in self._known:
            self._known[task] = await asyncio.wrap_future(self._pool.submit(task))
            while len(self._known) > MAX_THUMBNAILS:
                self._known.popitem(last=False)
        return self._known[task]
