import os

# Benches start processes by fork, to set what they are bound to, while threads are in gRPC. Its fork
# handlers then crash some of the children before they get to exec; read when gRPC is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
