"""`python -m services.tokenizer.parts HOST:PORT`: a worker of that tokenizer service."""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
from pathlib import Path

from outrider.errors import ConfigError
from outrider.telemetry.logs import configure_logging
from outrider.tls import Role, Tls, TlsConfig
from services.tokenizer.parts.worker import stay, work


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m services.tokenizer.parts", description=__doc__)
    parser.add_argument("address", help="HOST:WORKER_PORT of the tokenizer service")
    parser.add_argument("--name", default=f"{socket.gethostname()}-{os.getpid()}")
    parser.add_argument("--once", action="store_true", help="end when the service is lost")
    parser.add_argument("--certificate", type=Path, help="PEM, of the role tokenizer-worker")
    parser.add_argument("--private-key", type=Path, help="PEM key of the certificate")
    parser.add_argument("--ca", type=Path, help="PEM that the service's certificate leads to")
    parser.add_argument("--trust-domain", default=TlsConfig().trust_domain)
    parser.add_argument(
        "--allow-plaintext", action="store_true", help="for other machines without certificates"
    )
    arguments = parser.parse_args()
    # Its service logs what becomes of a worker that is its own.
    configure_logging("tokenizer-worker", "warning" if arguments.once else "info")
    try:
        tls = Tls.open(_tls_config(arguments), Role.TOKENIZER_WORKER)
        run = work if arguments.once else stay
        asyncio.run(run(arguments.address, arguments.name, tls))
    except ConfigError as error:
        parser.error(str(error))
    return 0


def _tls_config(arguments: argparse.Namespace) -> TlsConfig:
    return TlsConfig(
        certificate=arguments.certificate,
        private_key=arguments.private_key,
        ca=arguments.ca,
        trust_domain=arguments.trust_domain,
        allow_plaintext=arguments.allow_plaintext,
    )


if __name__ == "__main__":
    sys.exit(main())
