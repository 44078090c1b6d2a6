"""Certificates by which the processes of one cluster know each other.

One authority is made for the cluster, signs a certificate for scheduler, workers and clients, and
its key is thrown away: nobody can sign another later, and none can be stolen. To renew, all are
made again. Dask asks every process that connects for a certificate of the authority; it compares
no host names, so the pairs of one cluster serve on any machine.

NIST P-256 and SHA-256, X.509 version 3 (RFC 5280).
"""

from __future__ import annotations

import datetime
import ipaddress
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dask_sketch.errors import ArtifactError, InputError

if TYPE_CHECKING:
    from distributed.security import Security

PARTS = ("scheduler", "worker", "client")
ENVIRONMENT = "tls.env"
MOST_DAYS = 3650
_SKEW = datetime.timedelta(hours=1)  # clocks of the machines may differ


@dataclass(frozen=True)
class Certificates:
    """What :func:`make_certificates` wrote.

    Attributes
    ----------
    folder
        Where it stands.
    not_before, not_after
        Between these times the certificates hold, in UTC.
    hosts
        Names and addresses in those of the scheduler and the workers.
    environment
        Variables that make Dask use them, as in the file ``tls.env``.
    """

    folder: Path
    not_before: datetime.datetime
    not_after: datetime.datetime
    hosts: tuple[str, ...]
    environment: Mapping[str, str]


def make_certificates(
    folder: str | Path,
    *,
    days: int = 365,
    hosts: Sequence[str] = (),
    mounted_at: str | None = None,
    overwrite: bool = False,
) -> Certificates:
    """Write an authority's certificate, and certificate and key of each part of a cluster.

    ``ca.pem``; ``scheduler.pem``, ``worker.pem`` and ``client.pem`` with their keys in
    files that end in ``.key`` and that only their owner can read; and ``tls.env``, the environment
    variables by which ``dask scheduler``, ``dask worker`` and clients use them and refuse any
    connection without encryption.

    Any of the three certificates lets a process in, and a process that is in can run code on the
    workers. That of the client cannot pose as a scheduler or worker.

    Parameters
    ----------
    folder
        Made if it is not there, for its owner only.
    days
        How long the certificates hold, from 1 to 3650.
    hosts
        Host names and IP addresses to put in the certificates of scheduler and workers. Dask does
        not look at them; a browser does, where the dashboard is served with the same certificate.
    mounted_at
        The folder's path as the processes will see it, for ``tls.env``; by default its path here.
    overwrite
        Replace what stands there: every process of the cluster must then start again.

    Raises
    ------
    ArtifactError
        If one of the files exists and is not to be replaced.
    InputError
        If ``days`` or a host is not valid, or the package ``cryptography`` is missing.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     made = make_certificates(folder, days=30)
    ...     sorted(path.name for path in made.folder.iterdir())
    ['ca.pem', 'client.key', 'client.pem', 'scheduler.key', 'scheduler.pem', 'tls.env',
     'worker.key', 'worker.pem']
    >>> (made.not_after - made.not_before).days
    30
    """
    if type(days) is not int or not 1 <= days <= MOST_DAYS:
        raise InputError(f"days={days!r}: give a whole number from 1 to {MOST_DAYS}.")
    at = Path(folder).expanduser().absolute()
    environment = _environment(mounted_at or str(at))
    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    valid = (now - _SKEW, now + datetime.timedelta(days=days))
    contents = _signed(valid, hosts)
    lines = "".join(f"{name}={shlex.quote(value)}\n" for name, value in environment.items())
    contents[ENVIRONMENT] = lines.encode()
    if not overwrite:
        for name in contents:
            if (at / name).exists():
                raise ArtifactError(
                    f"{at / name} exists already: choose another folder, or pass --overwrite, "
                    "after which every process of the cluster must start again."
                )
    at.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, content in contents.items():
        _write(at / name, content, 0o600 if name.endswith(".key") else 0o644)
    return Certificates(at, *valid, tuple(hosts), environment)


def security_of(folder: str | Path) -> Security:
    """Dask's settings for the certificates in a folder that ``dask-sketch certificates`` wrote.

    A machine needs the authority's certificate and the pair of its own part only.

    Raises
    ------
    InputError
        If the authority's certificate is not there, or no pair is.
    """
    from distributed.security import Security

    at = Path(folder).expanduser().absolute()
    pairs: dict[str, str] = {}
    for part in PARTS:
        cert, key = at / f"{part}.pem", at / f"{part}.key"
        if cert.is_file() and key.is_file():
            pairs |= {f"tls_{part}_cert": str(cert), f"tls_{part}_key": str(key)}
    if not (at / "ca.pem").is_file() or not pairs:
        raise InputError(
            f"tls={str(folder)!r}: no certificates there (ca.pem, client.pem, client.key). Make "
            "them by `dask-sketch certificates DIR`, or copy the folder that the scheduler uses."
        )
    return Security(require_encryption=True, tls_ca_file=str(at / "ca.pem"), **pairs)


def _environment(folder: str) -> dict[str, str]:
    tls = "DASK_DISTRIBUTED__COMM__TLS__"
    variables = {
        "DASK_DISTRIBUTED__COMM__DEFAULT_SCHEME": "tls",
        "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "True",
        f"{tls}CA_FILE": f"{folder}/ca.pem",
    }
    for part in PARTS:
        variables[f"{tls}{part.upper()}__CERT"] = f"{folder}/{part}.pem"
        variables[f"{tls}{part.upper()}__KEY"] = f"{folder}/{part}.key"
    return variables


def _signed(
    valid: tuple[datetime.datetime, datetime.datetime], hosts: Sequence[str]
) -> dict[str, bytes]:
    """Contents of all files but ``tls.env``, by name."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID as use
    except ImportError as error:
        raise InputError(
            "certificates need the package cryptography: pip install 'dask-sketch[tls]'."
        ) from error
    signing = ec.generate_private_key(ec.SECP256R1())
    authority = _name("authority")

    def certificate(subject: Any, key: Any, extensions: list[tuple[Any, bool]]) -> bytes:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(valid[0])
            .not_valid_after(valid[1])
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), False
            )
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        signed = builder.sign(signing, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)

    def usage(**given: bool) -> Any:
        names = ("digital_signature", "content_commitment", "key_encipherment",
                 "data_encipherment", "key_agreement", "key_cert_sign", "crl_sign",
                 "encipher_only", "decipher_only")  # fmt: skip
        return x509.KeyUsage(**{name: given.get(name, False) for name in names})

    contents = {
        "ca.pem": certificate(
            authority,
            signing,
            [
                (x509.BasicConstraints(ca=True, path_length=0), True),
                (usage(key_cert_sign=True, crl_sign=True), True),
            ],
        )
    }
    names = [_alternative(host) for host in hosts]
    for part in PARTS:
        key = ec.generate_private_key(ec.SECP256R1())
        # scheduler and workers are called and call; a client only calls
        uses = [use.CLIENT_AUTH] if part == "client" else [use.SERVER_AUTH, use.CLIENT_AUTH]
        extensions = [
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (usage(digital_signature=True), True),
            (x509.ExtendedKeyUsage(uses), False),
        ]
        if names and part != "client":
            extensions.append((x509.SubjectAlternativeName(names), False))
        contents[f"{part}.pem"] = certificate(_name(part), key, extensions)
        contents[f"{part}.key"] = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    return contents


def _name(part: str) -> Any:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"dask-sketch {part}")])


def _alternative(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        if not host or host != host.strip() or any(c in host for c in "/: "):
            raise ValueError
        return x509.DNSName(host)
    except ValueError as error:
        raise InputError(
            f"hosts: {host!r} is neither a host name (ASCII) nor an IP address."
        ) from error


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write beside the place and move there: never half a file, never a readable key."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:  # mode 0600
        file.write(content)
    beside = Path(file.name)
    beside.chmod(mode)
    beside.replace(path)
