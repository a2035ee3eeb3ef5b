# The tokenizer. Build from the repository's root:
#   docker build --file deploy/docker/tokenizer.Dockerfile --tag outrider-tokenizer:0.1.0 .
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
COPY deploy/docker/requirements/build.txt deploy/docker/requirements/tokenizer.txt ./
# Only files of these hashes are installed (tools/pin_hashes.py writes them).
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --no-cache-dir --require-hashes --requirement build.txt \
    && python -m venv /opt/outrider \
    && /opt/outrider/bin/pip install --no-cache-dir --require-hashes --requirement tokenizer.txt
COPY pyproject.toml README.md LICENSE ./
COPY outrider ./outrider
COPY services ./services
RUN /opt/build/bin/pip wheel --no-cache-dir --no-index --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/outrider/bin/pip install --no-cache-dir --no-index --no-deps /wheels/*.whl

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="outrider-tokenizer" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/outrider /opt/outrider
# For volumes: a new one gets the owner that its folder has here.
RUN install --directory --owner 10001 --group 10001 \
    /var/lib/outrider /var/lib/outrider/models /var/lib/outrider/state
ENV PATH=/opt/outrider/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp
USER 10001:10001
EXPOSE 7200/tcp 9100/tcp
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:9100/health', timeout=2)"]
ENTRYPOINT ["outrider", "serve", "tokenizer"]
# Any address of the container and a known admin port, for the health check and port mappings.
CMD ["--set", "host=0.0.0.0", "--set", "port=7200", "--set", "admin.port=9100"]
