"""Certificates that end soon, and new ones for the same keys."""

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedwright.protocol.errors import ConfigError
from fedwright.protocol.link.security import SERVER_NAME, WARN_DAYS, BundleInfo
from fedwright.protocol.support.files import replace_file
from fedwright.server_runtime.fleet.authority import BROKER_NAME, Authority
from fedwright.server_runtime.fleet.device_keys import CERTIFICATES, certificates_of, void_serials
from fedwright.server_runtime.fleet.revocation import read_revoked
from fedwright.server_runtime.fleet.trust import make_info


@dataclass(frozen=True)
class Ending:
    """A certificate that ends soon, or has ended (days below 0)."""

    name: str
    days: int

    def line(self) -> str:
        """What to know and do."""
        when = f"ends in {self.days} days" if self.days >= 0 else f"has ended {-self.days} days ago"
        if self.name == "authority":
            return f"the authority's own certificate {when}; make a new authority and enroll the fleet anew"
        return f"the certificate of {self.name} {when}; renew it with `fedwright server renew {self.name}`"


def endings(folder: Path, *, within_days: int = WARN_DAYS, now: datetime.datetime | None = None) -> list[Ending]:
    """The certificates in use that end within so many days, soonest first."""
    moment = now or datetime.datetime.now(datetime.timezone.utc)
    in_use = {name: cert for name in names_of(folder) if (cert := latest(folder, name)) is not None}
    in_use["authority"] = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    left = [Ending(name, (cert.not_valid_after_utc - moment).days) for name, cert in in_use.items()]
    return sorted((one for one in left if one.days < within_days), key=lambda one: (one.days, one.name))


def soonest(folder: Path) -> dict[str, float]:
    """When the first certificate in use ends, in seconds since 1970, for each kind: authority, server, broker, ..."""
    found: dict[str, float] = {}
    if not (folder / "ca.pem").exists():
        return found
    in_use = [("authority", x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes()))]
    for name in names_of(folder):
        kind = name if name in (SERVER_NAME, BROKER_NAME) else _place(folder, name).parent.name[:-1]
        cert = latest(folder, name)
        in_use += [] if cert is None else [(kind, cert)]
    for kind, cert in in_use:
        found[kind] = min(found.get(kind, float("inf")), cert.not_valid_after_utc.timestamp())
    return found


def expiries_in(trust: str | None) -> Callable[[], dict[str, float]]:
    """What gives `soonest` of a folder of trust, where a fleet has one."""
    return dict if trust is None else lambda: soonest(Path(trust))


def names_of(folder: Path) -> list[str]:
    """Everybody who has a certificate and is not shut out."""
    kept = {path.name for path in (folder / CERTIFICATES).glob("*")}
    for kind in ("devices", "edges"):
        kept |= {path.name for path in (folder / kind).glob("*")}
    kept |= {name for name in (SERVER_NAME, BROKER_NAME) if (folder / name / "cert.pem").exists()}
    return sorted(kept - set(read_revoked(folder)))


def latest(folder: Path, name: str) -> x509.Certificate | None:
    """The certificate that a name has now."""
    if name in (SERVER_NAME, BROKER_NAME):
        file = folder / name / "cert.pem"
        return x509.load_pem_x509_certificate(file.read_bytes()) if file.exists() else None
    void = void_serials(folder)
    good = [cert for cert in certificates_of(folder, name) if cert.serial_number not in void]
    return max(good, key=lambda cert: cert.not_valid_after_utc, default=None)


def renew(authority: Authority, name: str) -> Path:
    """A new certificate for the key that a name has; returns its folder. The old one stays good till its end."""
    folder = authority.folder
    cert = latest(folder, name)
    if cert is None or name in read_revoked(folder):
        raise ConfigError(f"{folder} has no certificate of {name} that is good; enroll it")
    key = cert.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError(f"the certificate of {name} is of another kind; enroll it anew")
    new = authority.certify(name, key, hosts=_hosts(cert) if name == BROKER_NAME else ())
    target = _place(folder, name)
    target.mkdir(parents=True, exist_ok=True)
    replace_file(target / "cert.pem", new.public_bytes(serialization.Encoding.PEM))
    file = target / "bundle.json"
    if file.exists():
        info = msgspec.json.decode(file.read_bytes(), type=BundleInfo)
        known = make_info(authority, name, new, fleet=info.fleet, broker=info.broker, edges=info.edges)
        replace_file(file, msgspec.json.format(msgspec.json.encode(known)))
    return target


def _place(folder: Path, name: str) -> Path:
    if name in (SERVER_NAME, BROKER_NAME):
        return folder / name
    return folder / ("edges" if (folder / "edges" / name).exists() else "devices") / name


def _hosts(cert: x509.Certificate) -> Sequence[str]:
    names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]
