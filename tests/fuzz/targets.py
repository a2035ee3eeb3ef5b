"""What is fuzzed: parsers of bytes that a peer, a disk or a cache gave."""

from __future__ import annotations

import json
import tempfile
import zlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import pylsqpack
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.message import DecodeError, Message

from outrider.access import keys_file
from outrider.access.api_keys import KeyTable, to_row
from outrider.client.wire import ChatOptions, request_frame, typed_frame
from outrider.codec import varint
from outrider.codec.frames import FrameDecoder, encode_frame
from outrider.codec.tokens import Block, TokenCodec, TokenCoder
from outrider.edge_list import EdgeList, ListedEdge, sign
from outrider.edge_list import read as read_edge_list
from outrider.models.chat import Message as ChatMessage
from outrider.models.checkpoint import read_checkpoint_config
from outrider.models.folder import read_definition as read_definition_of_folder
from outrider.models.folder import unpack
from outrider.models.gguf_vocabulary import read_definition
from outrider.models.safetensors_file import Extent, SafetensorsFile
from outrider.models.sources.members import shards_of, weight_map
from outrider.models.strict_json import read_object
from outrider.models.tools import ToolCall
from outrider.models.vocabulary import Vocabulary
from outrider.sampling.params import SamplingParams
from outrider.session.client_wire import read as read_chat_frame
from outrider.speculation.learnt import NOTHING, Learnt, binding_of, from_bytes, to_bytes
from outrider.speculation.ngram_store import NgramStatistics
from outrider.speculation.ngrams import pack
from outrider.tokenization.shared_cache.entries import Entries
from outrider.v1 import common_pb2, edge_pb2, inference_pb2, router_pb2
from outrider.wire import error_from_proto, token_block_to_proto
from services.edge.access.key_set import read_key_set
from services.edge.access.tokens import TokenPolicy, TokenVerifier
from services.edge.drafter import protocol as drafter_protocol
from services.edge.drafter.protocol import (
    CloseReply,
    CommitTokens,
    DrafterReady,
    DraftSource,
    DraftUpdate,
    FromDrafter,
    OpenReply,
    ToDrafter,
)
from services.edge.http3.messages import read_request
from services.edge.wire import client as edge_wire
from services.edge.wire.region import RegionWire
from services.inference.streaming.wire import Contract, draft_of, open_request
from tests.api_keys import key_of, text_of
from tests.edge.access.issuer import AUDIENCE, ISSUER, NOW, jwk, key_set, token
from tests.fuzz.checkpoints import small_checkpoint_configs, small_safetensors
from tests.fuzz.gguf import small_gguf
from tests.fuzz.tokenizers import small_archive, small_tokenizer_jsons
from tests.router.relay.mesh import Mesh, opening

_DIGEST: Final = b"\x01" * 32
_SIZE: Final = 500
_CODER: Final = TokenCoder(_DIGEST, _SIZE)
_IDENTITY: Final = b"\x0a" * 32
_CONTRACT: Final = Contract(
    "m", "r", "us", _DIGEST, _IDENTITY, _SIZE, _CODER, 4096, "fake", 16, 32, 16
)
_BINDING: Final = binding_of(b"model")
_NAME: Final = b"outrider:tokens:1:name"


@dataclass(frozen=True, slots=True)
class Target:
    """One parser. `parse` takes any bytes and returns, or raises an OutriderError."""

    name: str
    seeds: Sequence[bytes]
    parse: Callable[[bytes], object]


def _client_stream(data: bytes) -> object:
    """As an edge reads a stream: frames, and what is in them."""
    decoder, kinds = FrameDecoder(1 << 16), []
    for at in range(0, len(data), 100):
        for payload in decoder.feed(data[at : at + 100]):
            if edge_wire.is_typed_text(payload):
                edge_wire.read_typed_text(payload)
            else:
                kinds.append(type(edge_wire.read(payload)).__name__)
    return kinds, decoder.at_boundary


def _edge_stream(data: bytes) -> object:
    """As a client reads one."""
    return [type(read_chat_frame(payload)).__name__ for payload in FrameDecoder().feed(data)]


def _token_block(data: bytes) -> object:
    codec = TokenCodec(1 + data[0] % 3) if data else TokenCodec.VARINT
    count = data[1] if len(data) > 1 else 0
    checksum = int.from_bytes(data[2:6], "little")
    block = Block(codec, count, checksum, data[6:])
    return len(_CODER.decode(block, max_count=200)), len(_CODER.decode_array(block, max_count=200))


def _varints(data: bytes) -> object:
    listed = varint.decode(data, max_count=1000)
    assert listed == varint.decode_array(data, max_count=1000).tolist()
    return len(listed)


def _parsed(kind: type[Message], data: bytes) -> Message | None:
    """gRPC ends the stream where a message does not parse (outrider.rpc.incoming)."""
    try:
        return kind.FromString(data)
    except DecodeError:
        return None


def _replica_frame(data: bytes) -> object:
    frame = _parsed(inference_pb2.SessionUp, data)
    if not isinstance(frame, inference_pb2.SessionUp):
        return None
    kind = frame.WhichOneof("kind")
    if kind == "open":
        return type(open_request(1, frame.open, _CONTRACT, 0.0)).__name__
    return type(draft_of(frame.draft, _CONTRACT)).__name__ if kind == "draft" else kind


def _router_frame(data: bytes) -> object:
    """Any frame that an edge sends leaves the router with its books in order."""
    request = _parsed(router_pb2.RouteRequest, data)
    if not isinstance(request, router_pb2.RouteRequest):
        return None
    mesh = Mesh()
    mesh.switch.from_edge(mesh.edge(), request.frames, mesh.clock())
    return [frame.WhichOneof("kind") for frame in request.frames]


def _region_frame(data: bytes) -> object:
    """As an edge reads what a region says."""
    frame = _parsed(inference_pb2.SessionDown, data)
    if not isinstance(frame, inference_pb2.SessionDown):
        return None
    return type(RegionWire(_CODER, _DIGEST, "us").read(frame)).__name__


def _error_detail(data: bytes) -> object:
    detail = _parsed(common_pb2.ErrorDetail, data)
    return isinstance(detail, common_pb2.ErrorDetail) and error_from_proto(detail).reason


def _learnt_bytes() -> bytes:
    tables = [{1: pack(7, 3)}, {2 << 20 | 1: pack(8, 2)}, {}]
    return to_bytes(Learnt(tables, {"hit_rates.greedy": (0.5, 1.0)}), _BINDING)


_LEARNT_HEADER_BYTES: Final = len(to_bytes(NOTHING, _BINDING)) - len(b"{}")
"""Of a file of what was learnt, its checksum last."""


def _learnt_file(data: bytes) -> object:
    """With a checksum that fits, or nothing but that would be tried."""
    body = data[_LEARNT_HEADER_BYTES:]
    repaired = data[: _LEARNT_HEADER_BYTES - 4] + zlib.crc32(body).to_bytes(4, "little") + body
    learnt = from_bytes(repaired, _BINDING, _SIZE)
    return len(learnt.tables), NgramStatistics(learnt=learnt).learnt().is_empty


def _drafter_pipe(data: bytes) -> object:
    payload = data[1:] or b"\x00"
    is_down = bool(data) and data[0] % 2 == 0
    decode = drafter_protocol.decode_to_drafter if is_down else drafter_protocol.decode_from_drafter
    return type(decode(payload)).__name__


def _shared_entry(data: bytes) -> object:
    found = Entries("secret", _DIGEST, _SIZE).ids(_NAME, data)
    return None if found is None else len(found)


def _api_key(data: bytes) -> object:
    return KeyTable([key_of("a")]).find(data.decode("utf-8", "surrogateescape"), 0.0).id


def _keys_files() -> list[bytes]:
    rows = [to_row(key_of("a")), to_row(key_of("b", "acme", expires=5.0, models=("m",)))]
    return [json.dumps({"revision": 3, "keys": rows}).encode()]


def _keys_file(folder: Path, data: bytes) -> object:
    path = folder / "keys.json"
    path.write_bytes(data)
    return len(keys_file.read(path).keys)


def _edge_lists() -> list[bytes]:
    edges = ListedEdge("a.example", 1), ListedEdge("::1", 2, 3, "eu", "b.example")
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    return [sign(EdgeList(edges, 1, 2), key).encoded()]


def _edge_list(data: bytes) -> object:
    return len(read_edge_list(data).edges.edges)


_ALGORITHMS: Final = frozenset({"ES256", "RS256"})


def _token(data: bytes) -> object:
    verifier = TokenVerifier(TokenPolicy(ISSUER, AUDIENCE, _ALGORITHMS), lambda: None)
    verifier.set_keys(read_key_set(key_set(jwk("ES256", "k")), _ALGORITHMS))
    return verifier.check(data.decode("utf-8", "surrogateescape"), NOW).tenant


def _key_set(data: bytes) -> object:
    return len(read_key_set(data, _ALGORITHMS))


def _gguf(folder: Path, data: bytes) -> object:
    path = folder / "fuzzed.gguf"
    path.write_bytes(data)
    return type(read_definition(path)).__name__


def _tokenizer_json(data: bytes) -> object:
    found = Vocabulary.from_tokenizer_json(data.decode("utf-8", "replace"))
    return found.size, found.encode("a b<s>")


def _folder_archive(folder: Path, data: bytes) -> object:
    archive = folder / "fuzzed.tar"
    archive.write_bytes(data)
    with tempfile.TemporaryDirectory(dir=folder) as out:
        unpack(archive, Path(out))
        return read_definition_of_folder(Path(out)).tokens[:2]


def _safetensors(folder: Path, data: bytes) -> object:
    path = folder / "fuzzed.safetensors"
    path.write_bytes(data)
    opened = SafetensorsFile(Extent.of_file(path))
    return [len(opened.bytes_of(name)) for name in opened.tensors]


def _checkpoint_config(data: bytes) -> object:
    """A header's bytes, as a config.json."""
    try:
        config = read_object(data)
    except (ValueError, RecursionError):
        return None
    return sum(1 for _ in read_checkpoint_config(config).tensors(with_head=True))


def _weight_map(data: bytes) -> object:
    return sorted(shards_of(weight_map(data)))


def _http3_request(data: bytes) -> object:
    """As an edge reads the header section of a request: QPACK, then HTTP."""
    try:
        _, headers = pylsqpack.Decoder(0, 0).feed_header(0, data)
    except (pylsqpack.DecompressionFailed, pylsqpack.StreamBlocked):
        return None
    return read_request(headers)


def _header_sections() -> list[bytes]:
    pseudo = [(b":method", b"POST"), (b":scheme", b"https"), (b":path", b"/v1/a?b=c")]
    fields = [(b":authority", b"edge.test:4433"), (b"content-length", b"12"), (b"te", b"trailers")]
    encoder = pylsqpack.Encoder()
    return [
        encoder.encode(0, [*pseudo, *fields])[1],
        encoder.encode(4, [*pseudo, (b"host", b"a"), (b"cookie", b"b"), (b"cookie", b"c")])[1],
    ]


def _chat_frames() -> list[bytes]:
    sampling = SamplingParams(temperature=0.7, stop=("x",), logit_bias={3: 1.0}, max_tokens=9)
    plain = request_frame([ChatMessage("user", "hello")], ChatOptions(sampling=sampling), ("", ""))
    call = ToolCall("call00001", "f", '{"a": [1, "x"]}')
    chat = [
        ChatMessage("user", "hello", name="n"),
        ChatMessage("assistant", "", (call,), reasoning="Hm"),
        ChatMessage("tool", "5", tool_call_id="call00001"),
    ]
    tools = ('{"name": "f", "parameters": {"type": "object", "required": ["a"]}}',)
    with_tools = request_frame(chat, ChatOptions(tools=tools, tool_choice="f"), ("", ""))
    resumed = edge_pb2.ChatRequest(
        idempotency_key="k",
        resume=edge_pb2.ResumePoint(
            resume_token="t" * 32, upto=2, num_chars=3, ids=[1, 2], model_identity=_IDENTITY
        ),
        residency=["eu"],
    )
    frame = edge_pb2.ClientFrame(chat=resumed).SerializeToString()
    cancel = edge_pb2.ClientFrame(cancel=edge_pb2.CancelChat()).SerializeToString()
    typed = typed_frame(chat, "typed", tools=tools) * 2
    return [plain, with_tools, encode_frame(frame), typed, encode_frame(cancel)]


def _edge_frames() -> list[bytes]:
    frames = [
        edge_pb2.EdgeFrame(accepted=edge_pb2.ChatAccepted(request_id="r", resume_token="t")),
        edge_pb2.EdgeFrame(provisional=edge_pb2.ProvisionalText(base=1, text="a", stability=0.5)),
        edge_pb2.EdgeFrame(commit=edge_pb2.CommitText(text="a", ids=[1], upto=1)),
        edge_pb2.EdgeFrame(done=edge_pb2.ChatDone(upto=1, region="us")),
        edge_pb2.EdgeFrame(error=common_pb2.ErrorDetail(reason="OVERLOADED", message="no")),
    ]
    return [encode_frame(frame.SerializeToString()) for frame in frames]


def _block(ids: tuple[int, ...]) -> common_pb2.TokenBlock:
    return token_block_to_proto(_CODER.encode(ids))


def _session_frames() -> list[inference_pb2.SessionUp]:
    ids = inference_pb2.PromptDelta(tail=_block((3, 4, 5)))
    opened = opening(
        1, request_id="request", ids=ids, codecs=[common_pb2.TOKEN_CODEC_VARINT], cache_salt=b"salt"
    )
    draft = inference_pb2.Draft(epoch=1, base=0, ids=b"\x07\x08")
    cancel = inference_pb2.CancelSession(reason="test")
    return [
        opened,
        inference_pb2.SessionUp(session=1, draft=draft),
        inference_pb2.SessionUp(session=1, cancel=cancel),
    ]


def _region_frames() -> list[bytes]:
    details = inference_pb2.CommitDetails(pace=inference_pb2.Pace(row_ms=1.0), lossy_tokens=1)
    return [
        inference_pb2.SessionDown(session=1, **{kind: message}).SerializeToString()  # type: ignore[arg-type]
        for kind, message in (
            ("opened", inference_pb2.SessionOpened(prompt_tokens=3)),
            ("commit", inference_pb2.Commit(ids=b"\x03\x04", details=details.SerializeToString())),
            ("done", inference_pb2.SessionDone()),
            ("error", common_pb2.ErrorDetail(reason="OVERLOADED", message="no")),
        )
    ]


def _drafter_frames() -> list[bytes]:
    params = SamplingParams(max_tokens=5)
    down: list[ToDrafter] = [
        OpenReply(1, (1, 2), (3,), params, (0,), 8),
        CommitTokens(1, (4,), 8),
        CloseReply(1),
    ]
    up: list[FromDrafter] = [
        DraftUpdate(1, 2, (3,), (0.5,), (DraftSource.MODEL,), 100),
        DrafterReady("model"),
    ]
    return [b"\x00" + drafter_protocol.encode(message) for message in down] + [
        b"\x01" + drafter_protocol.encode(message) for message in up
    ]


def _blocks() -> list[bytes]:
    made = []
    for codec in _CODER.supported:
        block = _CODER.encode((1, 2, 300), codec)
        head = bytes([block.codec - 1, block.count]) + (block.checksum or 0).to_bytes(4, "little")
        made.append(head + block.payload)
    return made


def targets(folder: Path | None = None) -> list[Target]:
    """All of them; files are written to `folder`."""
    folder = folder or Path(tempfile.mkdtemp(prefix="outrider-fuzz-"))
    ups = [frame.SerializeToString() for frame in _session_frames()]
    routed = [
        router_pb2.RouteRequest(frames=frames).SerializeToString()
        for frames in (*([frame] for frame in _session_frames()), _session_frames())
    ]
    packed = varint.encode_array(np.arange(0, 100_000, 977, dtype=np.uint32))
    detail = common_pb2.ErrorDetail(reason="OVERLOADED", message="no")
    entry = Entries("secret", _DIGEST, _SIZE).value(_NAME, array("I", [1, 2, 3]))
    return [
        Target("client_stream", _chat_frames(), _client_stream),
        Target("edge_stream", _edge_frames(), _edge_stream),
        Target("http3_request", _header_sections(), _http3_request),
        Target("token_block", _blocks(), _token_block),
        Target("varints", [packed, b"\x00"], _varints),
        Target("replica_frame", ups, _replica_frame),
        Target("router_frame", routed, _router_frame),
        Target("region_frame", _region_frames(), _region_frame),
        Target("error_detail", [detail.SerializeToString()], _error_detail),
        Target("drafter_pipe", _drafter_frames(), _drafter_pipe),
        Target("api_key", [text_of("a").encode()], _api_key),
        Target("keys_file", _keys_files(), partial(_keys_file, folder)),
        Target("edge_list", _edge_lists(), _edge_list),
        Target("token", [token().encode(), token(aud=["a", AUDIENCE]).encode()], _token),
        Target("key_set", [key_set(jwk("ES256", "k"), jwk("RS256", "r"))], _key_set),
        Target("shared_entry", [entry], _shared_entry),
        Target("learnt_file", [_learnt_bytes()], _learnt_file),
        Target("gguf", [small_gguf(), small_gguf(pieces=True)], partial(_gguf, folder)),
        Target("tokenizer_json", small_tokenizer_jsons(), _tokenizer_json),
        Target("folder_archive", [small_archive()], partial(_folder_archive, folder)),
        Target("safetensors", small_safetensors(), partial(_safetensors, folder)),
        Target("checkpoint_config", small_checkpoint_configs(), _checkpoint_config),
        Target("weight_map", [b'{"weight_map": {"a": "model.safetensors"}}'], _weight_map),
    ]
