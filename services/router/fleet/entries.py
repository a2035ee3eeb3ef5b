"""What the settings say of the fleet: replicas, where further ones are found, and regions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from outrider.bounds import between, check_bounds
from outrider.config import check_address
from outrider.errors import ConfigError
from outrider.peers.membership import Lookup, parse_target


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """One inference replica this router may place sessions on (`[[router.replicas]]`)."""

    name: str
    """Unique in the mesh; shown in placements, logs and metrics."""
    region: str
    """Region that holds the prompt while the replica serves it (data residency). A replica that
    reports another region is refused; with certificates, so is one whose certificate does not name
    it."""
    address: str
    """gRPC target, `host:port`."""
    model: str = ""
    """Name of the model that the replica is expected to serve, known before it answers; empty:
    learned from its report."""

    def __post_init__(self) -> None:
        for field in ("name", "region", "address"):
            if not getattr(self, field):
                raise ConfigError(f"a replica has no {field}; set it in [[router.replicas]]")
        check_address(self.address, f"address of replica {self.name}")


@dataclass(frozen=True, slots=True)
class ReplicaTarget:
    """A DNS name that is looked up for further replicas of a region
    (`[[router.replica_targets]]`)."""

    target: str
    """`dns:HOST:PORT` or `srv:NAME`."""
    region: str
    """Region of all replicas found there (data residency). A replica that reports another one is
    refused; with certificates, so is one whose certificate does not name it."""

    def __post_init__(self) -> None:
        if not self.region:
            raise ConfigError(
                f"the target {self.target} has no region; set it in [[router.replica_targets]]"
            )
        if parse_target(self.target, "each of replica_targets").lookup is Lookup.NONE:
            raise ConfigError(
                f"{self.target} in replica_targets is one address; give it a name and a region in "
                "[[router.replicas]], or have it looked up with dns: or srv:"
            )


@dataclass(frozen=True, slots=True)
class RegionConfig:
    """Coordinates of a region (`[[router.regions]]`), for an estimate of its RTT before the first
    probe."""

    name: str
    """The region's name, as replicas state it."""
    latitude: Annotated[float, between(-90, 90)]
    """Degrees north."""
    longitude: Annotated[float, between(-180, 180)]
    """Degrees east."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("a region has no name; set it in [[router.regions]]")
        check_bounds(self, f"region {self.name}: ")
