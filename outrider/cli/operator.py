"""Credentials of the command line for services: an operator's certificate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from outrider.cli.local import certificates
from outrider.tls.config import TlsConfig

if TYPE_CHECKING:
    from outrider.tls import Tls

Certificate = Annotated[
    Path | None, typer.Option(help="PEM certificate of an operator, to ask services elsewhere.")
]
PrivateKey = Annotated[Path | None, typer.Option(help="PEM key of --certificate.")]
Ca = Annotated[
    Path | None,
    typer.Option(help="PEM certificate of the CA that signed their certificates."),
]
TrustDomain = Annotated[str, typer.Option(help="Trust domain of the certificates.")]
Plaintext = Annotated[
    bool, typer.Option("--plaintext", help="Ask services elsewhere without certificates.")
]
Flags: TypeAlias = tuple[Path | None, Path | None, Path | None, str, bool]
"""Values of a command's flags, in the order above."""
TRUST_DOMAIN = TlsConfig().trust_domain


def of_flags(
    certificate: Path | None, private_key: Path | None, ca: Path | None, domain: str, plain: bool
) -> Tls:
    """TLS settings from the flags. Raises ConfigError."""
    from outrider.tls import Role, Tls

    return Tls.open(TlsConfig(certificate, private_key, ca, domain, plain), Role.OPERATOR)


def of_mesh(state_dir: Path) -> Tls:
    """The operator of the mesh that `outrider up` runs in a folder. Raises ConfigError."""
    from outrider.tls import Tls

    return Tls.open(certificates.of_process(state_dir, certificates.OPERATOR))
