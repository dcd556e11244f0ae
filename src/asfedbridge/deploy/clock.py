"""Diagnoses why a node cannot connect: no SuperLink at the address, a wrong certificate, or clocks that differ.

A SuperNode signs each request with the time. flwr answers a node whose clock is more than 5 seconds ahead or more than
305 behind with a bare 401, and the SuperNode exits without mentioning clocks.
"""

import http.client
import ssl
import time
from email.utils import parsedate_to_datetime
from pathlib import Path

from asfedbridge.core import BadInput
from asfedbridge.deploy.flwr_internals import SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE

TIMEOUT = 20.0  # seconds for an answer
FIX = (
    "the clock of this machine differs from the SuperLink's: set it (NTP). A node that is more than "
    f"{SYSTEM_TIME_TOLERANCE} seconds ahead, or {TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE} behind, is refused (401)"
)


def check_superlink(address: str, certificates: Path) -> str:
    """One line if the node can connect; BadInput if not."""
    ahead = seconds_ahead(address, certificates)
    told = f"{abs(ahead):.0f} seconds {'ahead' if ahead > 0 else 'behind'}"
    if abs(ahead) > SYSTEM_TIME_TOLERANCE - 1:  # one second is the resolution of the header
        raise BadInput(f"{address}: {told}: {FIX}")
    return f"{address} answers, its certificate is valid, this machine's clock is {told}"


def seconds_ahead(address: str, certificates: Path) -> float:
    """Seconds by which this machine's clock is ahead of an HTTPS server's; negative if it is behind."""
    host, _, port = address.rpartition(":")
    try:
        context = ssl.create_default_context(cafile=certificates)
        connection = http.client.HTTPSConnection(host.strip("[]"), int(port), timeout=TIMEOUT, context=context)
        try:
            begin = time.time()
            connection.request("HEAD", "/")
            header = connection.getresponse().getheader("date")
            ours = (begin + time.time()) / 2
        finally:
            connection.close()
        return ours - parsedate_to_datetime(str(header)).timestamp() - 0.5  # the header has whole seconds
    except ssl.SSLCertVerificationError as error:
        raise BadInput(
            f"{address}: its certificate was not issued by {certificates} ({error.verify_message})"
        ) from None
    except FileNotFoundError:
        raise BadInput(f"--root-certificates {certificates}: no such file") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise BadInput(
            f"{address}: no SuperLink with TLS answers at this address ({type(error).__name__}: {error})"
        ) from None
