"""The errors adaverify raises on purpose; every message names the input and the remedy."""


class AdaverifyError(Exception):
    """Base of every error raised on purpose."""


class ConfigError(AdaverifyError, ValueError):
    """A model, drafter, flag or configuration that cannot be served; raised at start."""


class InvalidRequestError(AdaverifyError, ValueError):
    """A request that cannot be served as asked (HTTP 400).

    Parameters
    ----------
    message : str
        What is wrong and how to mend it.
    param : str, optional
        Name of the offending field.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class QueueFullError(AdaverifyError):
    """More requests are waiting than the queue holds (HTTP 503 with Retry-After)."""


class ShuttingDownError(AdaverifyError):
    """The engine finishes what runs and takes no new work (HTTP 503)."""


class RequestFailedError(AdaverifyError):
    """One request ended with an error (HTTP 500); all others go on."""


class EngineDeadError(AdaverifyError):
    """The engine's loop died; nothing more can be served (HTTP 500)."""


class TraceError(AdaverifyError, ValueError):
    """A trace that cannot be read or holds nothing to score."""
