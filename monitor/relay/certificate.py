"""A certificate for the receiver, signed by an authority of the home's own: nodes trust that one, and keep trusting
when it is renewed."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.relay import files
from logprobe.monitor.relay.files import RelayFiles

_AUTHORITY_DAYS: Final = 3650
_EARLIER: Final = timedelta(days=2)  # clocks of nodes are not always right


def make(place: RelayFiles, hosts: Sequence[str], days: int, now: datetime) -> x509.Certificate:
    """Makes or renews the receiver's certificate for `hosts` (names or addresses), and the authority if there is none.

    Raises `ConfigurationError` or `OSError`.
    """
    if not hosts:
        raise ConfigurationError("no host: pass --host NAME as nodes call the service (may be repeated)")
    place.create()
    authority, authority_key = _authority(place, now)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder(hosts[0], authority.subject, key, now, days)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    files.write(place.key, _pem(key), secret=True)
    files.write(place.certificate, certificate.public_bytes(serialization.Encoding.PEM), secret=False)
    return certificate


def expiry(pem: bytes) -> datetime:
    """When a certificate stops counting. Raises `ConfigurationError` when it is none."""
    try:
        return x509.load_pem_x509_certificate(pem).not_valid_after_utc
    except ValueError as error:
        raise ConfigurationError(f"not a PEM certificate ({error})") from error


def _authority(place: RelayFiles, now: datetime) -> tuple[x509.Certificate, Any]:
    if place.authority.exists():
        try:
            key = serialization.load_pem_private_key(files.read_secret(place.authority_key), password=None)
            return x509.load_pem_x509_certificate(place.authority.read_bytes()), key
        except (ValueError, TypeError) as error:
            raise ConfigurationError(
                f"{place.authority} or its key cannot be used ({error}); remove both, and give nodes the new ca.pem"
            ) from error
    made = ec.generate_private_key(ec.SECP256R1())
    # Whoever trusts several authorities finds the right one by its name.
    called = f"logprobe authority {secrets.token_hex(8)}"
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, called)])
    certificate = (
        _builder(called, name, made, now, _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(made.public_key()), critical=False)
        .sign(made, hashes.SHA256())
    )
    files.write(place.authority_key, _pem(made), secret=True)
    files.write(place.authority, certificate.public_bytes(serialization.Encoding.PEM), secret=False)
    return certificate, made


def _builder(name: str, issuer: x509.Name, key: Any, now: datetime, days: int) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + timedelta(days=days))
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise ConfigurationError(f"{host!r} is not a host name ({error})") from error


def _pem(key: Any) -> bytes:
    content: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return content
