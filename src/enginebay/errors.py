"""The exception hierarchy.

EnginebayError                   has `message` (what is wrong) and `hint` (what to do), one line each
├── UsageError                   the caller asked for something impossible; exit code 2
│   ├── ConfigError              a config file, variable or flag is wrong
│   ├── UnknownModel             no such model in the store or the config
│   └── UnknownEngine            no engine of that kind
├── RequestError                 this one request is wrong; the engine is fine
│   ├── InvalidRequest           a parameter is out of range or malformed
│   ├── Unsupported              the engine does not support the parameter
│   ├── ContextOverflow          prompt and output do not fit the context
│   ├── PoisonRequest            it killed two workers, so it is refused
│   ├── NotFound                 no endpoint at this path
│   │   └── MethodNotAllowed     the endpoint does not allow this method; has `allowed`
│   ├── ResponseNotFound         no stored response, conversation or item of this key has that id
│   ├── PreviousResponseNotFound the response to continue is not stored
│   ├── Unauthorized             the API key is missing or unknown
│   └── Forbidden                the API key lacks the scope
├── Overloaded                   the queue is full, or the request waited too long; has `retry_after_s`
│   └── RateLimited              this API key reached its rate limit
├── StateUnavailable             the stored responses and conversations cannot be read
├── TimedOut                     the answer took longer than the server allows
├── EngineMissing                the engine's library is not installed
├── LoadFailed                   the worker failed to load the model
│   ├── OutOfMemory              memory ran out
│   ├── DoesNotFit               it needs more memory than the host has for models
│   └── UnknownArchitecture      the engine does not support the architecture
├── WorkerDied                   the worker process died
│   └── CrashLoop                it keeps dying and is not restarted for now; has `retry_after_s`
├── Draining                     the worker accepts no more requests; another may
├── EngineFailed                 the engine failed on a valid request
│   └── Unreachable              a remote engine cannot be reached or denies access
├── ModelInvalid                 the model's files are corrupt, unsafe or of the wrong kind
├── FetchFailed                  a model or package could not be fetched or stored
├── Offline                      `--offline` is set and the network is needed
└── Cancelled                    the caller cancelled the request
"""

from __future__ import annotations


class EnginebayError(Exception):
    """Base class: one line on what is wrong, one on what to do."""

    exit_code = 1
    kind = "error"

    def __init__(self, message: str, hint: str = "", *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.param = param

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class UsageError(EnginebayError):
    exit_code = 2
    kind = "usage"


class ConfigError(UsageError):
    kind = "config"


class UnknownModel(UsageError):
    kind = "unknown_model"


class UnknownEngine(UsageError):
    kind = "unknown_engine"


class RequestError(EnginebayError):
    exit_code = 2
    kind = "request"


class InvalidRequest(RequestError):
    kind = "invalid_request"


class Unsupported(RequestError):
    kind = "unsupported"


class ContextOverflow(RequestError):
    kind = "context_overflow"


class PoisonRequest(RequestError):
    kind = "poison_request"


class NotFound(RequestError):
    kind = "not_found"


class ResponseNotFound(RequestError):
    kind = "response_not_found"


class PreviousResponseNotFound(RequestError):
    kind = "previous_response_not_found"


class MethodNotAllowed(NotFound):
    kind = "method_not_allowed"

    def __init__(self, message: str, hint: str = "", *, param: str | None = None, allowed: str = "") -> None:
        super().__init__(message, hint, param=param)
        self.allowed = allowed


class Unauthorized(RequestError):
    kind = "unauthorized"


class Forbidden(RequestError):
    kind = "forbidden"


class Overloaded(EnginebayError):
    kind = "overloaded"
    of_model = True  # another engine may have room

    def __init__(self, message: str, hint: str = "", *, param: str | None = None, retry_after_s: float = 1.0) -> None:
        super().__init__(message, hint, param=param)
        self.retry_after_s = retry_after_s


class RateLimited(Overloaded):
    kind = "rate_limited"


class TimedOut(EnginebayError):
    kind = "timed_out"


class EngineMissing(EnginebayError):
    kind = "engine_missing"


class LoadFailed(EnginebayError):
    kind = "load_failed"


class OutOfMemory(LoadFailed):
    kind = "out_of_memory"


class DoesNotFit(LoadFailed):
    """It needs more memory than the host has for models: a retry does not help."""

    kind = "does_not_fit"


class UnknownArchitecture(LoadFailed):
    kind = "unknown_architecture"


class WorkerDied(EnginebayError):
    kind = "worker_died"


class CrashLoop(WorkerDied):
    kind = "crash_loop"

    def __init__(self, message: str, hint: str = "", *, param: str | None = None, retry_after_s: float = 1.0) -> None:
        super().__init__(message, hint, param=param)
        self.retry_after_s = retry_after_s


class Draining(EnginebayError):
    kind = "draining"


class EngineFailed(EnginebayError):
    kind = "engine_failed"


class Unreachable(EngineFailed):
    kind = "unreachable"


class StateUnavailable(EnginebayError):
    kind = "state_unavailable"


class ModelInvalid(EnginebayError):
    kind = "model_invalid"


class FetchFailed(EnginebayError):
    kind = "fetch_failed"


class Offline(EnginebayError):
    kind = "offline"


class Cancelled(EnginebayError):
    kind = "cancelled"


def _collect_subclasses(root: type[EnginebayError]) -> list[type[EnginebayError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in _collect_subclasses(child))]


ERRORS_BY_KIND: dict[str, type[EnginebayError]] = {error.kind: error for error in _collect_subclasses(EnginebayError)}


def from_kind(kind: str, message: str, hint: str = "", param: str | None = None) -> EnginebayError:
    """Rebuild an error that crossed a process boundary."""
    return ERRORS_BY_KIND.get(kind, EngineFailed)(message, hint, param=param)
