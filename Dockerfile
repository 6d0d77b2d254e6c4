# Serve a model in a container. Build the wheel first, and it alone: rm -rf dist && python -m build --wheel
#
#   docker build --target bundle -t nearsight-bundle .      # for bundles of `nearsight export`: no PyTorch, small
#   docker build --target run -t nearsight-run .            # for runs: with PyTorch
#   docker run -p 127.0.0.1:8000:8000 -e NEARSIGHT_PASSWORD=... -v "$PWD/bundle:/model:ro" nearsight-bundle

FROM python:3.12-slim AS base
RUN useradd --create-home --uid 10001 nearsight
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY dist/*.whl constraints.txt /tmp/
# Beyond the container means beyond this machine: without NEARSIGHT_PASSWORD it refuses to start.
CMD ["nearsight", "serve", "/model", "--host", "0.0.0.0"]
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --start-period=60s CMD ["python", "-c", \
  "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=5)"]

FROM base AS bundle
# What a bundle needs, without what training needs (tests/serving holds this list to what is imported).
RUN pip install --constraint /tmp/constraints.txt numpy pillow pydantic pyyaml rich typer onnxruntime faster-coco-eval \
      starlette uvicorn httptools python-multipart prometheus-client \
 && pip install --no-deps /tmp/*.whl && rm /tmp/*.whl
USER 10001

FROM base AS run
# PyTorch as it comes brings CUDA, 5 GB; where that is too much, take the target `bundle`.
RUN pip install --constraint /tmp/constraints.txt "$(ls /tmp/*.whl)[serve,deploy]" && rm /tmp/*.whl
USER 10001
