"""The HTTP service of an index, its page, and its client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vicinal.utils.imports import lazy_imports

if TYPE_CHECKING:
    from vicinal.serving.app import create_app
    from vicinal.serving.limits import Limits
    from vicinal.serving.security import Access
    from vicinal.serving.service import Service
else:
    __getattr__, __dir__ = lazy_imports(__name__)

__all__ = ["Access", "Limits", "Service", "create_app"]
