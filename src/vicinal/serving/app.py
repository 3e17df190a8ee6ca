"""The application: endpoints, the page and errors, around a service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.responses import FileResponse
from starlette.staticfiles import StaticFiles

from vicinal import __version__
from vicinal.serving.problems import Problem, add_problem_handlers
from vicinal.serving.routes import router

PAGE = Path(__file__).parent / "page"
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

    @app.get("/", include_in_schema=False)
    async def page(_: Request) -> Response:
        if not (PAGE / "index.html").is_file():
            raise Problem(404, "this installation has no page")
        return FileResponse(PAGE / "index.html", media_type="text/html; charset=utf-8")

    app.mount("/static", StaticFiles(directory=PAGE, check_dir=False))

    @app.middleware("http")
    async def add_headers(request: Request, call_next: Any) -> Response:
        response: Response = await call_next(request)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    return app
