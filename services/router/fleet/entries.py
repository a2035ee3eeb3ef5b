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
    says another one is refused, and with certificates one whose certificate does not say it."""
    address: str
    """gRPC target, `host:port`."""
    model: str = ""
    """What the replica is expected to serve, known before it answers; empty: learned from it."""

    def __post_init__(self) -> None:
        for field in ("name", "region", "address"):
            if not getattr(self, field):
                raise ConfigError(f"a replica has no {field}; set it in [[router.replicas]]")
        check_address(self.address, f"address of replica {self.name}")


@dataclass(frozen=True, slots=True)
class ReplicaTarget:
    """Where further replicas of a region are found (`[[router.replica_targets]]`)."""

    target: str
    """`dns:HOST:PORT` or `srv:NAME`."""
    region: str
    """Region of all that is found there (data residency): a replica that says another one is
    refused, and with certificates one whose certificate does not say the same."""

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
    """Where a region stands (`[[router.regions]]`): the RTT estimate before the first probe."""

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
