"""The HTTP service of an index, its page, and its client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vicinal.utils.imports import lazy_imports

if TYPE_CHECKING:
    from vicinal.serving.app import create_app as create_app
    from vicinal.serving.limits import Limits as Limits
    from vicinal.serving.security import Access as Access
    from vicinal.serving.service import Service as Service
else:
    __getattr__, __dir__ = lazy_imports(__name__)
