# syntax=docker/dockerfile:1
# The service of an index, `vicinal serve`; docs/guides/install.md says how it is built and run.
#   docker build -t vicinal .                                                         runs on a CPU
#   docker build -t vicinal:gpu --build-arg TORCH_INDEX=https://pypi.org/simple .    with CUDA, which is much larger

FROM python:3.11-slim-bookworm AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS=serve
ENV PATH=/opt/vicinal/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/vicinal
WORKDIR /src
COPY constraints.txt .
# These two come from an index of their own, and nothing else does; what they need comes with the rest, from PyPI.
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --no-deps --index-url "$TORCH_INDEX" --constraint constraints.txt torch torchvision
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --constraint constraints.txt ".[$EXTRAS]"

FROM python:3.11-slim-bookworm
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin vicinal && install --directory --owner=vicinal /data
COPY --from=build /opt/vicinal /opt/vicinal
# The root may be read-only: what is written goes to /data and /tmp.
ENV PATH=/opt/vicinal/bin:$PATH HOME=/tmp NUMBA_CACHE_DIR=/tmp/numba PYTHONUNBUFFERED=1 OMP_WAIT_POLICY=PASSIVE
USER 10001
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=90s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["vicinal", "serve"]
CMD ["/data/index", "--model", "/data/run", "--host", "0.0.0.0", "--port", "8000", "--token_file", "/run/secrets/vicinal_token"]
