"""Links carry bytes on topics; `connect` opens the one that a URL names."""

from fedwright.protocol.address import Login
from fedwright.protocol.link.base import Link, Received, Watch, Will
from fedwright.protocol.link.security import TlsFiles

__all__ = ["Link", "Received", "TlsFiles", "Watch", "Will", "connect"]


def connect(
    url: str,
    *,
    client_id: str,
    will: Will | tuple[str, bytes] | None = None,
    tls: TlsFiles | None = None,
    login: Login | None = None,
    watch: Watch = lambda here: None,
) -> Link:
    """Open a link to mqtt://host:port or mqtts://host:port; LinkError when the broker cannot be reached."""
    from fedwright.protocol.link.mqtt import open_mqtt

    return open_mqtt(url, client_id=client_id, will=will, tls=tls or TlsFiles(), login=login, watch=watch)
