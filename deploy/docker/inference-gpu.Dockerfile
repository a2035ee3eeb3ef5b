# The inference on a GPU. Its authors have neither built nor run it; see docs/guides/tensorrt-llm.md.
# TRTLLM_IMAGE is NVIDIA's TensorRT-LLM release image, tag 1.2.1: it holds CUDA, torch and the
# package. Build from the repository's root:
#   docker build --file deploy/docker/inference-gpu.Dockerfile \
#       --build-arg TRTLLM_IMAGE=... --tag outrider-inference-gpu:0.1.0 .
ARG TRTLLM_IMAGE
FROM ${TRTLLM_IMAGE}
LABEL org.opencontainers.image.title="outrider-inference-gpu" \
      org.opencontainers.image.licenses="Apache-2.0"
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY outrider ./outrider
COPY services ./services
# What the image has stays as it is: pip fails rather than change a version that is installed.
RUN python3 -m pip list --format=freeze > /tmp/installed.txt \
    && python3 -m pip install --no-cache-dir --constraint /tmp/installed.txt . \
    && rm /tmp/installed.txt
ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp
USER 10001:10001
EXPOSE 7300/tcp 9100/tcp
STOPSIGNAL SIGTERM
# Loading a model takes minutes.
HEALTHCHECK --interval=10s --timeout=3s --start-period=600s --retries=3 \
    CMD ["python3", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:9100/health', timeout=2)"]
ENTRYPOINT ["outrider", "serve", "inference"]
CMD ["--set", "host=0.0.0.0", "--set", "port=7300", "--set", "admin.port=9100", "--set", "engine=tensorrt-llm"]
