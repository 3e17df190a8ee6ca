"""The page of the service: static files, of which some are those of the report's pages."""

from __future__ import annotations

from importlib import resources

from fastapi import APIRouter, Response

from vicinal.serving.problems import Problem

OF_REPORT = ("page.css", "theme.js", "matching_patches.js")  # files of `vicinal.report.page`
MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}

router = APIRouter(include_in_schema=False)


@router.api_route("/", methods=["GET", "HEAD"])
@router.api_route("/static/{name}", methods=["GET", "HEAD"])
def page(name: str = "index.html") -> Response:
    """Answer with a file of the page."""
    files = {file.name: file for file in resources.files(__name__).iterdir()}
    files |= {each: resources.files("vicinal.report.page").joinpath(each) for each in OF_REPORT}
    kind = MEDIA_TYPES.get(name.rpartition(".")[2])
    if kind is None or name not in files:
        raise Problem(404, "the page has no such file")
    return Response(files[name].read_bytes(), media_type=kind, headers={"Cache-Control": "no-cache"})
