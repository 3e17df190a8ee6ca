"""The application: endpoints, the page and errors, around a service."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response

from vicinal import __version__
from vicinal.serving.page import router as page_router
from vicinal.serving.problems import add_problem_handlers
from vicinal.serving.routes import router

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def create_app(service: Any) -> FastAPI:
    """Create the ASGI application of a service."""
    app = FastAPI(title="Vicinal", version=__version__, docs_url=None, redoc_url=None)
    app.state.service = service
    add_problem_handlers(app)
    app.include_router(router)
    app.include_router(page_router)

    @app.middleware("http")
    async def add_headers(request: Request, call_next: Any) -> Response:
        response: Response = await call_next(request)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    return app
