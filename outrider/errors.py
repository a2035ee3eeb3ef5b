"""Every failure Outrider reports, each with its gRPC and HTTP code.

OutriderError                    INTERNAL            500
├── InvalidRequestError          INVALID_ARGUMENT    400
│   ├── InvalidSamplingError     INVALID_ARGUMENT    400
│   ├── EmptyPromptError         INVALID_ARGUMENT    400
│   ├── PromptTooLongError       INVALID_ARGUMENT    400
│   ├── MalformedFrameError      INVALID_ARGUMENT    400
│   ├── FrameTooLargeError       INVALID_ARGUMENT    413
│   ├── HeadTooLargeError        INVALID_ARGUMENT    431
│   ├── BadTokenBlockError       INVALID_ARGUMENT    400
│   ├── KeyReusedError           INVALID_ARGUMENT    422
│   ├── MediaTypeError           INVALID_ARGUMENT    415
│   ├── MisdirectedError         INVALID_ARGUMENT    421
│   └── SlowRequestError         INVALID_ARGUMENT    408
├── UnknownRouteError            NOT_FOUND           404
├── MethodNotAllowedError        INVALID_ARGUMENT    405
├── UnauthenticatedError         UNAUTHENTICATED     401
├── PermissionDeniedError        PERMISSION_DENIED   403
├── UnknownModelError            NOT_FOUND           404
├── UnknownChatError             NOT_FOUND           404
├── VocabularyMismatchError      FAILED_PRECONDITION 409
├── PrefixUnknownError           FAILED_PRECONDITION 409
├── DuplicateSessionError        ALREADY_EXISTS      409
├── OverloadedError              RESOURCE_EXHAUSTED  429
│   └── RateLimitedError         RESOURCE_EXHAUSTED  429
├── CancelledError               CANCELLED           499
├── DeadlineError                DEADLINE_EXCEEDED   504
├── UnavailableError             UNAVAILABLE         503
│   ├── DrainingError            UNAVAILABLE         503
│   ├── NoReplicaError           UNAVAILABLE         503
│   ├── ReplicaLostError         UNAVAILABLE         503
│   └── VocabularyUnavailableError  UNAVAILABLE      503
├── EngineError                  INTERNAL            500
├── PoisonousRequestError        INTERNAL            500
├── PeerFaultError               INTERNAL            502
├── ConfigError                  INVALID_ARGUMENT    400
│   ├── EdgeListError            INVALID_ARGUMENT    400
│   └── InsufficientMemoryError  RESOURCE_EXHAUSTED  503
└── ModelStoreError              INTERNAL            500
    ├── ArtifactMissingError     NOT_FOUND           404
    ├── ArtifactCorruptError     DATA_LOSS           500
    └── SourceError              UNAVAILABLE         503
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Final, Self

_DIGITS: Final = re.compile("[0-9]{1,18}")


class OutriderError(Exception):
    """The root. The message says what is wrong and what to do, in one sentence.

    `reason` is the stable wire name, `retry_delay_ms` is 0 unless retrying can help.
    """

    grpc_code: ClassVar[str] = "INTERNAL"
    http_status: ClassVar[int] = 500
    reason: ClassVar[str] = "INTERNAL"

    def __init__(
        self,
        message: str,
        *,
        retry_delay_ms: int = 0,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retry_delay_ms = retry_delay_ms
        self.metadata: dict[str, str] = dict(metadata or {})

    def bare(self) -> Self:
        """Drop traceback, cause and context, and return the error. For code that keeps an error:
        the frames of its traceback often hold the keeper itself, which would be a reference
        cycle."""
        self.__cause__ = self.__context__ = None
        return self.with_traceback(None)


class InvalidRequestError(OutriderError):
    """The request cannot be served as it stands; sending it again will not help."""

    grpc_code = "INVALID_ARGUMENT"
    http_status = 400
    reason = "INVALID_REQUEST"


class InvalidSamplingError(InvalidRequestError):
    """A sampling value is outside its range."""

    reason = "INVALID_SAMPLING"


class EmptyPromptError(InvalidRequestError):
    """The prompt is empty."""

    reason = "EMPTY_PROMPT"


class PromptTooLongError(InvalidRequestError):
    """Prompt and reply do not fit the model's context. `metadata` may have `prompt_tokens` and
    `max_prompt_tokens`."""

    reason = "PROMPT_TOO_LONG"

    @classmethod
    def of(cls, num_tokens: int, longest: int, *, is_whole: bool = True) -> PromptTooLongError:
        """For a prompt of `num_tokens`, where at most `longest` fit and one token more is the
        context; with `is_whole` false it has more, which were not counted. Clients find both
        numbers in these words, which OpenAI and vLLM use."""
        more = "" if is_whole else " and more"
        return cls(
            f"this model's maximum context length is {longest + 1} tokens; your prompt resulted in "
            f"{num_tokens} tokens{more}, and at most {longest} fit: it exceeds the context window; "
            "reduce the length of the messages",
            metadata={"prompt_tokens": str(num_tokens), "max_prompt_tokens": str(longest)},
        )

    @classmethod
    def of_text(cls, what: str, num_chars: int, longest: int) -> PromptTooLongError:
        """For a text of `num_chars` characters, too long for any model here: at most `longest` are
        read. `what` names it: "the chat"."""
        return cls(
            f"{what} has {num_chars} characters and is longer than the model's context length can "
            f"be: at most {longest} are read here; reduce the length of the messages"
        )

    @property
    def num_tokens(self) -> tuple[int, int] | None:
        """Tokens of the prompt, and how many fit; None if they were not counted."""
        stated = (self.metadata.get("prompt_tokens"), self.metadata.get("max_prompt_tokens"))
        found = [int(it) for it in stated if it is not None and _DIGITS.fullmatch(it)]
        return (found[0], found[1]) if len(found) == len(stated) else None


class MalformedFrameError(InvalidRequestError):
    """Bytes that are no frame of this protocol, or a frame that is out of place."""

    reason = "MALFORMED_FRAME"


class FrameTooLargeError(InvalidRequestError):
    """A frame above the receiver's limit; it was not read."""

    http_status = 413
    reason = "FRAME_TOO_LARGE"


class HeadTooLargeError(InvalidRequestError):
    """The headers of a request above the receiver's limit."""

    http_status = 431
    reason = "HEAD_TOO_LARGE"


class BadTokenBlockError(InvalidRequestError):
    """A token block that is truncated, too long, of an unknown codec, or fails its checksum."""

    reason = "BAD_TOKEN_BLOCK"


class KeyReusedError(InvalidRequestError):
    """An idempotency key that was used for another request."""

    http_status = 422
    reason = "KEY_REUSED"


class MediaTypeError(InvalidRequestError):
    """A body in a form that is not read here."""

    http_status = 415
    reason = "MEDIA_TYPE"


class MisdirectedError(InvalidRequestError):
    """A request for a host that the receiver is not."""

    http_status = 421
    reason = "MISDIRECTED"


class SlowRequestError(InvalidRequestError):
    """The request did not arrive whole in time."""

    http_status = 408
    reason = "SLOW_REQUEST"


class UnknownRouteError(OutriderError):
    """No resource has this path."""

    grpc_code = "NOT_FOUND"
    http_status = 404
    reason = "UNKNOWN_ROUTE"


class MethodNotAllowedError(OutriderError):
    """The resource does not support the request's method."""

    grpc_code = "INVALID_ARGUMENT"
    http_status = 405
    reason = "METHOD_NOT_ALLOWED"


class UnauthenticatedError(OutriderError):
    """The caller sent no valid credential or certificate."""

    grpc_code = "UNAUTHENTICATED"
    http_status = 401
    reason = "UNAUTHENTICATED"


class PermissionDeniedError(OutriderError):
    """The credential does not allow this request; the message lists what it allows."""

    grpc_code = "PERMISSION_DENIED"
    http_status = 403
    reason = "PERMISSION_DENIED"


class UnknownModelError(OutriderError):
    """No such model here."""

    grpc_code = "NOT_FOUND"
    http_status = 404
    reason = "UNKNOWN_MODEL"


class UnknownChatError(OutriderError):
    """The chat does not exist or was dropped, so it cannot be resumed; send the whole request."""

    grpc_code = "NOT_FOUND"
    http_status = 404
    reason = "UNKNOWN_CHAT"


class VocabularyMismatchError(OutriderError):
    """The two sides do not mean the same by a token id; the message names both digests."""

    grpc_code = "FAILED_PRECONDITION"
    http_status = 409
    reason = "VOCABULARY_MISMATCH"


class PrefixUnknownError(OutriderError):
    """The receiver does not hold the prompt prefix; send the whole prompt."""

    grpc_code = "FAILED_PRECONDITION"
    http_status = 409
    reason = "PREFIX_UNKNOWN"


class DuplicateSessionError(OutriderError):
    """A session of this number or request id is already open."""

    grpc_code = "ALREADY_EXISTS"
    http_status = 409
    reason = "DUPLICATE_SESSION"


class OverloadedError(OutriderError):
    """No capacity at present; retry after `retry_delay_ms`."""

    grpc_code = "RESOURCE_EXHAUSTED"
    http_status = 429
    reason = "OVERLOADED"


class RateLimitedError(OverloadedError):
    """The tenant has reached a limit of this period. `metadata` names it: `limited` (requests,
    input_tokens, output_tokens, sessions), `limit`, `remaining` and `reset_ms`."""

    reason = "RATE_LIMITED"


class CancelledError(OutriderError):
    """The caller went away or asked to stop."""

    grpc_code = "CANCELLED"
    http_status = 499
    reason = "CANCELLED"


class DeadlineError(OutriderError):
    """The deadline passed, or can no longer be met."""

    grpc_code = "DEADLINE_EXCEEDED"
    http_status = 504
    reason = "DEADLINE"


class UnavailableError(OutriderError):
    """A tier cannot be reached."""

    grpc_code = "UNAVAILABLE"
    http_status = 503
    reason = "UNAVAILABLE"


class VocabularyUnavailableError(UnavailableError):
    """A tokenizer cannot load the vocabulary of one model, or is loading it: its other models are
    served."""

    reason = "VOCABULARY_UNAVAILABLE"


class DrainingError(UnavailableError):
    """The process is being stopped; another one, or its successor, takes the request."""

    reason = "DRAINING"


class NoReplicaError(UnavailableError):
    """No replica can serve this session."""

    reason = "NO_REPLICA"


class ReplicaLostError(UnavailableError):
    """The replica went away while it served the session."""

    reason = "REPLICA_LOST"


class EngineError(OutriderError):
    """The inference engine failed."""

    reason = "ENGINE"


class UnsupportedModelError(EngineError):
    """The engine cannot run this model's file; another try would end the same way."""

    reason = "UNSUPPORTED_MODEL"


class PoisonousRequestError(OutriderError):
    """Replica after replica was lost when it served this request; it is not tried again."""

    reason = "POISONOUS_REQUEST"


class PeerFaultError(OutriderError):
    """A service behind this one sent an invalid answer; the caller's request was not at fault."""

    http_status = 502
    reason = "PEER_FAULT"

    @classmethod
    def of(cls, error: OutriderError) -> PeerFaultError:
        """From the error that the service's answer was refused with."""
        return cls(error.message, metadata=error.metadata)


class ConfigError(OutriderError):
    """A configuration value is missing, unknown or out of range."""

    grpc_code = "INVALID_ARGUMENT"
    http_status = 400
    reason = "CONFIG"


class EdgeListError(ConfigError):
    """A signed list of edges is damaged, not signed by a trusted key, too old, or has ended."""

    reason = "EDGE_LIST"


class InsufficientMemoryError(ConfigError):
    """The configuration needs more memory than is free now; it may fit later."""

    grpc_code = "RESOURCE_EXHAUSTED"
    http_status = 503
    reason = "INSUFFICIENT_MEMORY"
    needed_bytes: int = 0
    """Memory that has to be free, in bytes; 0: unknown."""

    @classmethod
    def of(cls, needed_bytes: int, message: str) -> InsufficientMemoryError:
        """An error that carries the number of bytes needed."""
        error = cls(message)
        error.needed_bytes = needed_bytes
        return error


class ModelStoreError(OutriderError):
    """The model store cannot do what was asked."""

    reason = "MODEL_STORE"


class ArtifactMissingError(ModelStoreError):
    """The artifact is not in the store and was not to be fetched."""

    grpc_code = "NOT_FOUND"
    http_status = 404
    reason = "ARTIFACT_MISSING"


class ArtifactCorruptError(ModelStoreError):
    """The artifact's bytes do not hash to its name."""

    grpc_code = "DATA_LOSS"
    reason = "ARTIFACT_CORRUPT"


class SourceError(ModelStoreError):
    """The artifact's source cannot be read."""

    grpc_code = "UNAVAILABLE"
    http_status = 503
    reason = "SOURCE"


def by_reason(reason: str) -> type[OutriderError]:
    """The error class of a wire `reason`; the root for names this version does not know."""
    return _BY_REASON.get(reason, OutriderError)


def _tree(root: type[OutriderError]) -> list[type[OutriderError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in _tree(child))]


_BY_REASON = {cls.reason: cls for cls in _tree(OutriderError)}
