"""Keys and certificates as they are in files: all that knows the library `cryptography`."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedmate.errors import UserError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

EARLIER = datetime.timedelta(days=1)
"""How long before it is made a certificate is good: a site's clock may be behind."""


def need_cryptography() -> None:
    """Raise `UserError` if the library is missing."""
    try:
        import cryptography.x509  # noqa: F401
    except ImportError:
        raise UserError(
            "Keys are made and read with `cryptography`, which comes with Flower and is missing; "
            "run `pip install 'fedmate[flower]'`."
        ) from None


def now() -> datetime.datetime:
    """Return what time it is."""
    return datetime.datetime.now(datetime.UTC)


# -------------------- keys


def new_key() -> EllipticCurvePrivateKey:
    """Make a private key, ECDSA on P-384: what a SuperLink takes, and browsers and TLS libraries know."""
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def key_as_pem(key: EllipticCurvePrivateKey) -> bytes:
    """Return a private key as TLS servers read it."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def key_as_ssh(key: EllipticCurvePrivateKey) -> bytes:
    """Return a private key as a SuperNode reads it."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


def public_as_ssh(key: EllipticCurvePrivateKey, comment: str) -> bytes:
    """Return the public half of a key as `flwr supernode register` reads it."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + f" {comment}\n".encode()


def read_key(path: Path) -> EllipticCurvePrivateKey:
    """Return a private key without a password, of a server or of a site."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

    content = _read(path)
    load = load_ssh_private_key if b"OPENSSH" in content[:64] else load_pem_private_key
    try:
        key = load(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, EllipticCurvePrivateKey):
        raise UserError(
            f"`{path}` is no private key of the kind that sites have, without a password; "
            "make one with `fedmate deploy keys`."
        )
    return key


# -------------------- certificates


def as_pem(certificate: x509.Certificate) -> bytes:
    """Return a certificate as it is in a file."""
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def read_certificate(path: Path) -> x509.Certificate:
    """Return the first certificate in a file."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(_read(path))
    except ValueError:
        raise UserError(f"`{path}` is no certificate in PEM form; give the right file.") from None


def names_of(certificate: x509.Certificate) -> list[str]:
    """Return the names and addresses that a certificate is for."""
    from cryptography import x509

    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]


def new_authority(key: EllipticCurvePrivateKey, days: int) -> x509.Certificate:
    """Make the certificate of an authority, signed by itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    name = _named("fedmate authority")
    builder = _builder(name, name, key.public_key(), now() + datetime.timedelta(days=days))
    return (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA384())
    )


def new_server(
    key: EllipticCurvePrivateKey,
    names: Sequence[str],
    days: int,
    authority: x509.Certificate,
    authority_key: EllipticCurvePrivateKey,
) -> x509.Certificate:
    """Make the certificate of a server under these names, signed by the authority; it does not outlast that."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID

    until = min(now() + datetime.timedelta(days=days), authority.not_valid_after_utc)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    builder = _builder(_named("fedmate server"), authority.subject, key.public_key(), until)
    return (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(list(map(_general_name, names))), critical=False)
        .add_extension(identifier, critical=False)
        .sign(authority_key, hashes.SHA384())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePublicKey, until: datetime.datetime
) -> x509.CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now() - EARLIER)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _named(name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"`{path}` cannot be read ({error.strerror}); give the right file.") from None
