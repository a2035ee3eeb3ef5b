"""The loop's side of the service: peers' streams, their sessions, frames, telemetry."""
