"""The CPU engine: OpenVINO with paged attention over a KV pool of ours.

OpenVINO's own telemetry is kept out. It would report every import to its maker, from a fork of this
process that it ends by SIGTERM after a second. The fork shares the pipe by which signals wake the
event loop: where a firewall drops what it sends, a service would take that SIGTERM for its own, and
stop while it loads.
"""

import sys

# What is None here cannot be imported, and OpenVINO does without it.
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
