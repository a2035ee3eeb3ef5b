"""What engine calls cost, fitted as they are counted (pure)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields


@dataclass(slots=True)
class Costs:
    """Sums over calls, for the line of least squares: seconds = fixed_s + row_s * rows."""

    calls: int = 0
    rows: int = 0
    rows_squared: int = 0
    busy_s: float = 0.0
    rows_busy_s: float = 0.0

    def add(self, rows: int, seconds: float) -> None:
        """A call of so many rows took so long."""
        self.calls += 1
        self.rows += rows
        self.rows_squared += rows * rows
        self.busy_s += seconds
        self.rows_busy_s += rows * seconds

    def plus(self, other: Costs) -> Costs:
        """Both together."""
        return Costs(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def since(self, before: Costs) -> Costs:
        """What was added to `before`."""
        return Costs(*(getattr(self, f.name) - getattr(before, f.name) for f in fields(self)))

    def line_s(self) -> tuple[float, float]:
        """fixed_s and row_s; the mean and 0 where all calls were of one size."""
        if not self.calls:
            return 0.0, 0.0
        spread = self.calls * self.rows_squared - self.rows**2
        if spread <= 0:
            return self.busy_s / self.calls, 0.0
        row_s = (self.calls * self.rows_busy_s - self.rows * self.busy_s) / spread
        return (self.busy_s - row_s * self.rows) / self.calls, row_s

    def to_json(self) -> dict[str, float]:
        """The inverse of Costs(**...)."""
        return asdict(self)
