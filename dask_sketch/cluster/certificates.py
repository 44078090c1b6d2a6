"""Certificates with which the processes of one cluster authenticate each other.

An authority is created for the cluster and signs one certificate each for scheduler, workers and
clients. Its key is then discarded, so that nobody can steal it or sign another certificate.
Renewing means making all certificates again. Dask requires a certificate of the authority from
every process that connects. It does not compare host names, so that the certificates are valid on
any machine.

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

from dask_sketch.errors import ArtifactError, InputError, install_command
from dask_sketch.storage.local_files import write_errors
from dask_sketch.storage.overwrite import resolve_parents

if TYPE_CHECKING:
    from distributed.security import Security

PARTS = ("scheduler", "worker", "client")
ENVIRONMENT = "tls.env"
MAX_DAYS = 3650
_SKEW = datetime.timedelta(hours=1)  # clocks of the machines may differ


@dataclass(frozen=True)
class Certificates:
    """Files that :func:`make_certificates` wrote.

    Attributes
    ----------
    folder
        Folder of the files.
    not_before, not_after
        Times between which the certificates are valid, in UTC.
    hosts
        Names and addresses in the certificates of the scheduler and the workers.
    environment
        Environment variables with which Dask uses them, as in the file ``tls.env``.
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
    """Write the certificates and keys of one cluster.

    The files are ``ca.pem``; ``scheduler.pem``, ``worker.pem`` and ``client.pem`` with their keys
    in files that end in ``.key`` and that only their owner can read; and ``tls.env``, the
    environment variables with which ``dask scheduler``, ``dask worker`` and clients use the
    certificates and refuse connections without encryption.

    Each of the three certificates admits a process to the cluster, and such a process can run code
    on the workers. The certificate of the client is not valid for a scheduler or a worker.

    Parameters
    ----------
    folder
        Folder of the files. It is created if it does not exist, for its owner only.
    days
        Number of days for which the certificates are valid, from 1 to 3650.
    hosts
        Host names and IP addresses in the certificates of scheduler and workers. Dask ignores
        them; a browser checks them, if the dashboard is served with the same certificate.
    mounted_at
        Path of the folder for the processes of the cluster, used in ``tls.env``; by default the
        path of ``folder``.
    overwrite
        Whether to replace existing files. All processes of the cluster must then be restarted.

    Returns
    -------
    certificates

    Raises
    ------
    ArtifactError
        If one of the files exists and ``overwrite`` is false, or they cannot be written.
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
    if type(days) is not int or not 1 <= days <= MAX_DAYS:
        raise InputError(f"days={days!r}: give an integer from 1 to {MAX_DAYS}.")
    at = resolve_parents(Path(folder).expanduser()).absolute()
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
                    f"{at / name} exists: choose another folder, or pass overwrite=True and "
                    "restart all processes of the cluster.",
                    parameter="overwrite",
                )
    with write_errors(at):
        at.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, content in contents.items():
            _write(at / name, content, 0o600 if name.endswith(".key") else 0o644)
    return Certificates(at, *valid, tuple(hosts), environment)


def security_of(folder: str | Path) -> Security:
    """Make Dask's security settings from a folder that ``dask-sketch certificates`` wrote.

    A machine only needs the certificate of the authority, and certificate and key of its own part.

    Parameters
    ----------
    folder
        Folder of the certificates.

    Returns
    -------
    security

    Raises
    ------
    InputError
        If the certificate of the authority or all other certificates are missing.
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
            f"tls={str(folder)!r}: the certificates ca.pem, client.pem and client.key are missing. "
            "Make them by `dask-sketch certificates DIR`, or copy those of the scheduler."
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
    """Contents of all files except ``tls.env``, by name."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID as use
    except ImportError as error:
        raise InputError(
            f"certificates need the package cryptography: {install_command('tls')}."
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
        # scheduler and workers accept and open connections; a client only opens them
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
        raise InputError(f"hosts={host!r}: give a host name (ASCII) or an IP address.") from error


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write atomically: never a part of a file, never a key that others can read."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:  # mode 0600
        temporary = Path(file.name)
        try:
            file.write(content)
            file.flush()
            temporary.chmod(mode)
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
