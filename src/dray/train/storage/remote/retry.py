"""Requests to a storage over the network, retried with growing waits for a limited time."""

from __future__ import annotations

import logging
import math
import random
import re
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from dray.errors import StorageError, describe
from dray.settings import Settings

T = TypeVar("T")

# Storage -> when, by the monotonic clock, a request to it was last given up for want of an answer.
_silent: dict[str, float] = {}

_logger = logging.getLogger(__name__)

_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 5.0
_TELL_AFTER_S = 2.0  # once

# Errors that another attempt would not change; by name if their libraries may be missing.
_FINAL = (
    IsADirectoryError,
    NotADirectoryError,
    NotImplementedError,
    ImportError,
    TypeError,
    ValueError,
    AttributeError,
)
_REFUSALS = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "ParamValidationError",
    "ProfileNotFound",
    "UnauthorizedSSOTokenError",
    "InvalidCredentialError",
    "RefreshError",
    "AccessControlException",  # HDFS's errors are told apart by their texts
    "GSSAPIError",
    "NoSASLMechanism",
)
# An error of HDFS: a class, a text, and the stack of the server.
_OF_HDFS = re.compile(r'(?:Fatal)?RPCError\("[\w.]*?(\w+)", "(.*?)(?:\\n|"\))')


def persistently(what: str, call: Callable[[], T], *, bulk: bool = False) -> T:
    """Return what a request returns, tried again while it fails in ways that may pass.

    Once one has been given up, others to the same storage are tried once each, until one of them is
    answered, or as long has passed again: what a run still has to write takes no longer so.

    Args:
        what: Beginning of the error if it goes on failing, with the URL.
        call: The request.
        bulk: Whether an attempt may well take seconds, so that only errors are worth telling.

    Raises:
        FileNotFoundError: The request says so.
        FileExistsError: The request says so.
        StorageError: It has failed for good, or for longer than `DRAY_STORAGE_RETRY_S` says.
    """
    limit = Settings().storage_retry_s
    teller = _Teller(what, limit)
    if bulk:
        return _tried(what, call, limit, teller)
    timer = threading.Timer(_TELL_AFTER_S, teller.tell)
    timer.daemon = True
    timer.start()
    try:
        return _tried(what, call, limit, teller)
    finally:
        timer.cancel()


class _Teller:
    """Tells the user, once, that something takes its time."""

    def __init__(self, what: str, limit: float) -> None:
        self._what = what
        self._limit = limit
        self._told = False
        self.trouble = "no answer yet"

    def tell(self) -> None:
        if not self._told:
            self._told = True
            _logger.warning("%s: %s; trying for %.0f s", self._what, self.trouble, self._limit)


def _tried(what: str, call: Callable[[], T], limit: float, teller: _Teller) -> T:
    begin, attempts, wait = time.monotonic(), 0, _FIRST_WAIT_S
    storage = "/".join(what.split("/", 3)[:3])  # of its URL all before the path
    patience = 0.0 if begin - _silent.get(storage, -math.inf) < limit else limit
    while True:
        attempts += 1
        try:
            answer = call()
        except (FileNotFoundError, FileExistsError, StorageError):
            raise
        except Exception as error:  # each library has errors of its own
            lasted = time.monotonic() - begin
            pause = max(wait * random.uniform(0.5, 1.0), _asked_pause_s(error))
            is_final = _is_final(error)
            if is_final or lasted + pause > patience:
                if not is_final:
                    _silent[storage] = time.monotonic()
                raise _given_up(what, error, attempts, lasted) from error
            teller.trouble = _described(error)
            if lasted >= _TELL_AFTER_S:
                teller.tell()
        else:
            _silent.pop(storage, None)
            return answer
        time.sleep(pause)
        wait = min(2 * wait, _LONGEST_WAIT_S)


def _asked_pause_s(error: BaseException) -> float:
    """Return the seconds that a server which throttles wants to be left alone, as botocore has it.

    Source: https://www.rfc-editor.org/rfc/rfc9110#field.retry-after
    """
    response = getattr(error, "response", None) or getattr(error.__cause__, "response", None)
    if not isinstance(response, dict):
        return 0.0
    told = response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("retry-after", "")
    return float(told) if told.isdigit() else 0.0  # of a date, nothing


def _is_final(error: BaseException) -> bool:
    return isinstance(error, _FINAL) or _is_refusal(error)


def _is_refusal(error: BaseException) -> bool:
    if isinstance(error, PermissionError) or type(error).__name__ in _REFUSALS:
        return True
    return type(error) is RuntimeError and any(name in str(error) for name in _REFUSALS)


def _described(error: BaseException) -> str:
    said = _OF_HDFS.match(str(error))
    return f"{said[1]}: {said[2]}" if said else describe(error)


def _given_up(what: str, error: Exception, attempts: int, lasted: float) -> StorageError:
    times = f" ({attempts} attempt{'s' if attempts > 1 else ''} in {lasted:.1f} s)"
    if _is_refusal(error):
        advice = (
            "check the credentials that this process finds (environment, configuration files), "
            "or give a storage_filesystem that has some"
        )
    elif _is_final(error):
        advice = "check the storage_filesystem and its options"
    else:
        advice = (
            "check whether the endpoint can be reached; DRAY_STORAGE_RETRY_S sets how long to "
            "try. fit() under the same name continues from the newest checkpoint"
        )
    new = StorageError(f"{what}: {_described(error)}{times}; {advice}")
    new.errno = getattr(error, "errno", None)
    return new
