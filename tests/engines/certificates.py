"""Certificates of a test's own authority, for servers on loopback."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

_LIFE = datetime.timedelta(days=1)
_KEY_BITS = 2048


@dataclass(frozen=True, slots=True)
class Authority:
    """Signs certificates of 127.0.0.1."""

    folder: Path
    name: x509.Name
    key: rsa.RSAPrivateKey
    certificate: x509.Certificate

    @property
    def ca_file(self) -> Path:
        return self.folder / "ca.crt"

    @classmethod
    def made(cls, folder: Path) -> "Authority":
        name = _name("test-authority")
        key = rsa.generate_private_key(public_exponent=65537, key_size=_KEY_BITS)
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        builder = _builder(name, name, key).add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        certificate = builder.add_extension(usage, True).sign(key, hashes.SHA256())
        authority = cls(folder, name, key, certificate)
        authority.ca_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return authority

    def issue(self, common_name: str) -> tuple[Path, Path]:
        """Write a server's certificate and key; return their files."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=_KEY_BITS)
        addresses = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
        builder = _builder(_name(common_name), self.name, key).add_extension(
            x509.SubjectAlternativeName(addresses), False
        )
        certificate = builder.sign(self.key, hashes.SHA256())
        certificate_file, key_file = self.folder / f"{common_name}.crt", self.folder / f"{common_name}.key"
        certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        return certificate_file, key_file


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(subject: x509.Name, issuer: x509.Name, key: rsa.RSAPrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + _LIFE)
    )
