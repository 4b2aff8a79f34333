"""Where the page listens and who may open it: on a loopback address anybody, elsewhere people that a file names."""

from dataclasses import dataclass
from pathlib import Path

from fedwright.protocol.errors import ConfigError

DEFAULT = "127.0.0.1:8765"
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class PageSettings:
    """Where the page listens and who may open it.

    certificate, key: the server's own, for TLS. people: the file that says who may look and act. client_ca: who issues
    the certificates of people. bench: the folder that `fedwright bench report` wrote.
    """

    address: str = DEFAULT
    certificate: Path | None = None
    key: Path | None = None
    people: Path | None = None
    client_ca: Path | None = None
    bench: Path | None = None

    @property
    def host(self) -> str:
        """Without the port."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """0 lets the system choose."""
        return int(self.address.rpartition(":")[2])

    @property
    def is_local(self) -> bool:
        """Whether nobody but this machine reaches the page."""
        return self.host in LOOPBACK

    @property
    def url(self) -> str:
        """What to open in a browser."""
        return f"{'http' if self.certificate is None else 'https'}://{self.address}/"

    def check(self) -> None:
        """Raise ConfigError for an address that is none, and for a page that would be open to others."""
        port = self.address.rpartition(":")[2]
        if not self.host or not port.isdecimal() or int(port) > 65535:
            raise ConfigError(f"the page's address {self.address!r} must be HOST:PORT, such as {DEFAULT}")
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("--page-certificate and --page-key belong together; give both")
        if self.client_ca is not None and (self.certificate is None or self.people is None):
            raise ConfigError("--page-client-ca needs --page-certificate, --page-key and --page-people too")
        if not self.is_local and (self.certificate is None or self.people is None):
            raise ConfigError(
                f"the page would be open to others at {self.address}; give --page-certificate and --page-key for TLS "
                f"and --page-people for who may open it (`fedwright page --allow NAME`), or stay on {DEFAULT}"
            )
        for file in (self.certificate, self.key, self.people, self.client_ca):
            if file is not None and not file.is_file():
                raise ConfigError(f"there is no file {file}; check the path")
