"""The CPU engine: OpenVINO with paged attention over a KV pool of ours.

OpenVINO's own telemetry is kept out. It would report every import to its maker, from a fork of this
process that it ends by SIGTERM after a second. The fork shares the pipe by which signals wake the
event loop: where a firewall drops what it sends, a service would take that SIGTERM for its own, and
stop while it loads.

Its converters of other frameworks' models are kept out, too: no one uses them, and importing them
takes a tenth of a second of every start.
"""

import sys

# What is None here cannot be imported, and OpenVINO does without it.
for unwanted in ("openvino_telemetry", "openvino.tools.ovc"):
    sys.modules[unwanted] = None  # type: ignore[assignment]
