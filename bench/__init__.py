import os

# Benches start processes by fork, to set what these are bound to, while threads are in gRPC, whose
# fork handlers crash some children before they get to exec. It reads this when it is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
