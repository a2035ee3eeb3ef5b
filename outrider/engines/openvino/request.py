"""One infer request, on memory of ours for what goes in."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov

from outrider.engines.base import Logits
from outrider.engines.openvino.batch import Inputs
from outrider.engines.openvino.kv import KvTensors


class Request:
    """An infer request of a compiled model on a KV pool.

    Its inputs are arrays that stay: a call writes into them and passes only those with a new shape
    to OpenVINO. Passing all ten takes longer than filling them.
    """

    def __init__(self, compiled: Any, kv: KvTensors) -> None:
        self._request = compiled.create_infer_request()
        kv.bind(self._request)
        self._bound: Inputs = {}
        self.busy_s = 0.0
        """Seconds that its calls were computed for so far."""

    def start(self, inputs: Inputs) -> None:
        """Begin a call. Raises RuntimeError."""
        bound = self._bound
        for name, array in inputs.items():
            known = bound.get(name)
            if known is not None and known.shape == array.shape:
                known[...] = array
            else:
                bound[name] = array
                self._request.set_tensor(name, ov.Tensor(array, shared_memory=True))
        self._request.start_async()

    def wait(self) -> None:
        """Until the call is over. Raises RuntimeError."""
        self._request.wait()
        self.busy_s += self._request.latency / 1e3

    def mark(self) -> None:
        """Make no row of the last call's logits look like one."""
        self.logits()[:, 0] = np.nan

    def logits(self) -> Logits:
        """[n, V] of the last call, in memory that the next one overwrites."""
        logits: Logits = self._request.get_output_tensor(0).data[:, 0]
        return logits
