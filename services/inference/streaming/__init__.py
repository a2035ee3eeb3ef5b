"""The event loop's side: live sessions, their frames and telemetry, and block events."""
