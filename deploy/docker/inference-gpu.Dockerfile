# The inference on a GPU. Its authors have neither built nor run it; see docs/guides/tensorrt-llm.md.
# TRTLLM_IMAGE is NVIDIA's TensorRT-LLM release image, tag 1.2.1: it holds CUDA, torch and the
# package, for Python 3.12. Build from the repository's root:
#   docker build --file deploy/docker/inference-gpu.Dockerfile \
#       --build-arg TRTLLM_IMAGE=... --tag outrider-inference-gpu:0.1.0 .
ARG PYTHON_IMAGE=python:3.11-slim-bookworm
ARG TRTLLM_IMAGE

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
COPY deploy/docker/requirements/build.txt ./
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --no-cache-dir --require-hashes --requirement build.txt
COPY pyproject.toml README.md LICENSE ./
COPY outrider ./outrider
COPY services ./services
RUN /opt/build/bin/pip wheel --no-cache-dir --no-index --no-deps --no-build-isolation --wheel-dir /wheels .

FROM ${TRTLLM_IMAGE}
LABEL org.opencontainers.image.title="outrider-inference-gpu" \
      org.opencontainers.image.licenses="Apache-2.0"
WORKDIR /opt
COPY deploy/docker/requirements/inference-gpu.txt ./
COPY --from=build /wheels /wheels
# What the image has stays as it is: Outrider's packages go into an environment on top, which sees the
# image's. It has no pip of its own, the image's serves. PIP_CONSTRAINT: NVIDIA's images hold every
# package at the version they came with, by a file that this variable names. In the end nothing may
# be at odds with another package that was not before.
ENV PIP_CONSTRAINT=""
RUN (python3 -m pip check > before.txt || true) \
    && echo "No broken requirements found." >> before.txt \
    && python3 -m venv --system-site-packages --without-pip /opt/outrider \
    && /opt/outrider/bin/python -m pip install --no-cache-dir --ignore-installed --no-deps \
        --require-hashes --requirement inference-gpu.txt \
    && /opt/outrider/bin/python -m pip install --no-cache-dir --no-index --no-deps /wheels/*.whl \
    && (/opt/outrider/bin/python -m pip check > after.txt || true) \
    && ! grep --invert-match --line-regexp --fixed-strings --file before.txt after.txt \
    && rm -r /wheels inference-gpu.txt before.txt after.txt
# USER: compilers of kernels name their caches by it, and user 10001 is in no list of users.
ENV PATH=/opt/outrider/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    USER=outrider
USER 10001:10001
EXPOSE 7300/tcp 9100/tcp
STOPSIGNAL SIGTERM
# Loading a model takes minutes.
HEALTHCHECK --interval=10s --timeout=3s --start-period=600s --retries=3 \
    CMD ["python3", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:9100/health', timeout=2)"]
ENTRYPOINT ["outrider", "serve", "inference"]
CMD ["--set", "host=0.0.0.0", "--set", "port=7300", "--set", "admin.port=9100", "--set", "engine=tensorrt-llm"]
