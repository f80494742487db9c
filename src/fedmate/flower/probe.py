"""Asking a SuperLink, as a site would, without a SuperNode and without disturbing one.

A SuperNode begins by announcing itself and how often it will give a sign of life. One that announces an impossible
interval is refused: for that, if its key is registered, and for its key, if it is not. Nothing changes at the
SuperLink.
"""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedmate.errors import FedmateError
from fedmate.flower.environment import need_flower, silence

if TYPE_CHECKING:
    import httpx
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

PATIENCE = 10.0
"""Seconds to wait for a SuperLink."""

IMPOSSIBLE = 0.0
"""An interval of signs of life that no SuperLink takes."""

UNAUTHORISED = 401
NOT_BEHIND_THE_GATE = (502, 503, 504)

UNKNOWN_AUTHORITY = "nobody who is trusted here has signed its certificate: give its `ca.crt` as `--root-certificates`"
REASONS = {
    9: "its certificate is not good yet: is the clock of one of the two wrong?",
    10: "its certificate has expired: the server needs another one (`fedmate deploy keys`)",
    18: UNKNOWN_AUTHORITY,
    19: UNKNOWN_AUTHORITY,
    20: UNKNOWN_AUTHORITY,
    62: "its certificate is for other names than this: use one of those that `fedmate deploy keys --server` was given",
    64: "its certificate is for other addresses than this: use one that `fedmate deploy keys --server` was given",
}
"""What OpenSSL's numbers mean to somebody who sets up a site."""


class ProbeError(FedmateError):
    """Why a SuperLink cannot be asked: a sentence without its end."""


class Reached(NamedTuple):
    """A SuperLink that answers.

    Attributes:
        until: when its certificate ends.
        behind: seconds by which this machine's clock is behind the SuperLink's, if that tells the time.
    """

    until: datetime.datetime
    behind: float | None


def reach(superlink: str, root_certificates: Path | None) -> Reached:
    """Connect to a SuperLink over TLS, or raise `ProbeError`."""
    need_flower()
    import httpx

    with _told(superlink), httpx.Client(verify=_trust(root_certificates), timeout=PATIENCE) as client:
        with client.stream("GET", f"https://{superlink}/health") as response:
            tls: ssl.SSLObject = response.extensions["network_stream"].get_extra_info("ssl_object")
            certificate = tls.getpeercert() or {}
        seconds = ssl.cert_time_to_seconds(str(certificate["notAfter"]))
        return Reached(datetime.datetime.fromtimestamp(seconds, datetime.UTC), _behind(response))


def is_registered(superlink: str, root_certificates: Path | None, key: EllipticCurvePrivateKey) -> bool:
    """Tell whether a SuperLink knows a site's key, or raise `ProbeError`."""
    need_flower()
    silence()
    import httpx
    from flwr.proto.fleet_pb2 import ActivateNodeRequest
    from flwr.supercore.error import ApiErrorCode, FlowerError
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    signing = NodeAuthHttpInterceptor(key, key.public_key())
    trusted = None if root_certificates is None else root_certificates.read_bytes()
    announcement = ActivateNodeRequest(public_key=public_key_to_bytes(key.public_key()), heartbeat_interval=IMPOSSIBLE)
    with _told(superlink), FleetHttpClient.from_server_address(superlink, False, trusted, [signing]) as client:
        try:
            client.ActivateNode(announcement)
        except httpx.HTTPStatusError as error:
            told = FlowerError.from_json(error.response.text)
            if told is not None and told.code == ApiErrorCode.FLEET_INVALID_HEARTBEAT_INTERVAL:
                return True
            if told is not None and told.code == ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED:
                return False
            raise ProbeError(_refusal(error.response)) from None
    return True


def _trust(root_certificates: Path | None) -> ssl.SSLContext:
    """Return whom to believe: an authority of one's own, or those that the system knows."""
    try:
        return ssl.create_default_context(cafile=root_certificates)
    except (OSError, ssl.SSLError) as error:
        raise ProbeError(f"`{root_certificates}` cannot be read as certificates ({error.strerror or error})") from None


@contextmanager
def _told(superlink: str) -> Iterator[None]:
    """Say in a sentence why a SuperLink is not reached."""
    import httpx

    try:
        yield
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ProbeError(f"`{superlink}` is not reached, {_reason(error)}") from None


def _reason(error: Exception) -> str:
    import httpx

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return REASONS.get(cause.verify_code, f"its certificate is refused ({cause.verify_message})")
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.TimeoutException):
        return f"it does not answer in {PATIENCE:g} s: is its port open to this site?"
    if isinstance(error, httpx.ProxyError):
        return f"the proxy of this site refuses ({error})"
    return f"{error}: is the address right, and does the SuperLink run there?"


def _behind(response: httpx.Response) -> float | None:
    try:
        there = parsedate_to_datetime(response.headers["date"])
    except (KeyError, ValueError):
        return None
    return (there - datetime.datetime.now(datetime.UTC)).total_seconds()


def _refusal(response: httpx.Response) -> str:
    if response.status_code == UNAUTHORISED:
        return "the SuperLink does not believe this site's signature: is the clock of one of the two wrong?"
    if response.status_code in NOT_BEHIND_THE_GATE:
        return f"the gate before the SuperLink answers {response.status_code}: does the SuperLink run?"
    return f"the SuperLink answers {response.status_code} to an announcement: is it Flower 1.41 or later?"
