"""Links carry bytes on topics; `connect` opens the one that a URL names."""

from pathlib import Path

from fedwright.protocol.link.base import Link, Received

__all__ = ["Link", "Received", "connect"]


def connect(
    url: str,
    *,
    client_id: str,
    will: tuple[str, bytes] | None = None,
    ca: Path | None = None,
    cert: Path | None = None,
    key: Path | None = None,
) -> Link:
    """Open a link to mqtt://host:port or mqtts://host:port; LinkError when the broker cannot be reached."""
    from fedwright.protocol.link.mqtt import TlsFiles, open_mqtt

    return open_mqtt(url, client_id=client_id, will=will, tls=TlsFiles(ca, cert, key))
