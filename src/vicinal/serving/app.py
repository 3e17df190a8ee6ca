"""The application: endpoints, the page and errors, around a service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from vicinal import __version__
from vicinal.serving.guard import Guard
from vicinal.serving.monitoring import Monitor
from vicinal.serving.page import router as page_router
from vicinal.serving.problems import Defects, add_problem_handlers
from vicinal.serving.routes import router
from vicinal.serving.security import Access, Security
from vicinal.serving.service import Service


def create_app(service: Service, access: Access | None = None, is_logged: bool = False) -> FastAPI:
    """Create the ASGI application of a service.

    Args:
        service: what answers.
        access: who may ask; None: everyone, for tests and for applications that see to it themselves.
        is_logged: whether a line about each request is written to stderr.
    """
    access = access or Access()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = FastAPI(title="Vicinal", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.service = service
    add_problem_handlers(app)
    app.include_router(router)
    app.include_router(page_router)
    # the last one is the first to see a request
    app.add_middleware(Guard, limits=service.limits, load=service.load)
    app.add_middleware(Defects)
    app.add_middleware(Security, access=access)
    if access.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(access.origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key"],
        )
    app.add_middleware(Monitor, metrics=service.metrics, is_logged=is_logged)
    return app
