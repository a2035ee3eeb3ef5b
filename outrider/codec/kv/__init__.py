"""KV blocks in transit: self-describing frames, lossless or quantised."""

from outrider.codec.kv.frame import KvFrame as KvFrame
from outrider.codec.kv.frame import KvHeader as KvHeader
from outrider.codec.kv.frame import decode_frame as decode_frame
from outrider.codec.kv.frame import encode_frame as encode_frame
from outrider.codec.kv.frame import max_frame_bytes as max_frame_bytes
from outrider.codec.kv.layout import KvDtype as KvDtype
from outrider.codec.kv.layout import KvLayout as KvLayout
from outrider.codec.kv.layout import PlaneGroup as PlaneGroup
from outrider.codec.kv.payload import Payload as Payload
